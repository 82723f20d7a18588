"""`fixed_transformer`: fairseq's transformer with an encoder of mixed heads."""

from __future__ import annotations

import argparse
import difflib
import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from fairseq.models.transformer.transformer_legacy import TransformerModel, base_architecture
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import nn

from fairseq_fixed.heads import keep_layers
from fairseq_fixed.models.decoder import FixedTransformerDecoder
from fairseq_fixed.models.encoder import FixedTransformerEncoder
from fairseq_fixed.models.options import add_options, check_options, set_defaults

__all__ = ["FixedTransformerModel"]


@register_model("fixed_transformer")
class FixedTransformerModel(TransformerModel):
    """Encoder-decoder transformer whose encoder heads are chosen one by one.

    Takes every option of fairseq's `transformer` and those of `models/options.py`. The decoder is
    fairseq's own, unless `--decoder-heads` chooses its self-attention. Registered the legacy way,
    so that `--arch NAME` works on the command line and
    `model: {_name: NAME, encoder_heads: …}` under Hydra.
    """

    @classmethod
    def hub_models(cls) -> dict[str, str]:
        """None are published: fairseq's `transformer` models are not this model's."""
        return {}

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str | Path,
        checkpoint_file: str = "model.pt",
        data_name_or_path: str = ".",
        **kwargs: Any,
    ) -> Any:
        """Load a trained model for translation from Python, as fairseq's `GeneratorHubInterface`.

        Args:
            model_name_or_path: a run's folder, which is enough (`system` and `seed` choose among
                its models); or a folder of checkpoints, as for any fairseq model.
            checkpoint_file: of a folder of checkpoints.
            data_name_or_path: of a folder of checkpoints: where its dictionaries are.
            kwargs: of a folder of checkpoints: options to override.
        """
        from fairseq_fixed.experiments.paths import RECIPE

        if (Path(model_name_or_path) / RECIPE).is_file():
            from fairseq_fixed.experiments.hub import from_run

            return from_run(model_name_or_path, **kwargs)
        return super().from_pretrained(
            str(model_name_or_path), checkpoint_file, data_name_or_path, **kwargs
        )

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """Add fairseq's options of `transformer` and the model's own."""
        super().add_args(parser)
        add_options(parser)

    @classmethod
    def build_model(
        cls, args: argparse.Namespace | DictConfig, task: FairseqTask
    ) -> FixedTransformerModel:
        """Build the model from the command line's Namespace or Hydra's DictConfig.

        Raises:
            HeadsError: heads that do not fit the encoder.
            ValueError: an option unknown to the model, which Hydra would pass over; a value that
                is not among an option's choices.
            VocabularyError: heads that need word boundaries which the dictionary does not show.
        """
        if isinstance(args, DictConfig):
            _refuse_unknown(args)
            # TransformerConfig.from_namespace keeps what it does not know of a Namespace, but
            # drops it of a DictConfig: the heads would silently be the default ones
            plain = cast("dict[str, Any]", OmegaConf.to_container(args, resolve=True))
            namespace = argparse.Namespace(**plain)
        else:
            namespace = args
        set_defaults(namespace)
        check_options(namespace)
        base_architecture(namespace)
        _mend_layers_to_keep(namespace)
        _prune_heads(namespace)
        model = super().build_model(namespace, task)
        if isinstance(args, DictConfig):
            # what is saved in checkpoints must say how the model was built, pruned layers included
            with open_dict(args):
                heads = ("encoder_heads", "decoder_heads")
                for name in (*heads, "encoder_layers", "decoder_layers", *_TO_KEEP):
                    args[name] = getattr(namespace, name)
        return model

    def load_state_dict(
        self,
        state_dict: dict[str, torch.Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: argparse.Namespace | None = None,
    ) -> Any:
        """Load parameters, pruned to `--encoder-layers-to-keep` unless they are so already."""
        if model_cfg is not None and _already_pruned(model_cfg, state_dict):
            with open_dict(model_cfg) if isinstance(model_cfg, DictConfig) else nullcontext():
                for name in _TO_KEEP:
                    setattr(model_cfg, name, None)
        return super().load_state_dict(state_dict, strict, model_cfg, args)

    @classmethod
    def build_encoder(
        cls, args: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> FixedTransformerEncoder:
        """Build the encoder of mixed heads."""
        return FixedTransformerEncoder(
            TransformerConfig.from_namespace(args), src_dict, embed_tokens
        )

    @classmethod
    def build_decoder(
        cls, args: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> TransformerDecoderBase:
        """Build fairseq's own decoder, or one of mixed heads where `decoder_heads` names them."""
        cfg = TransformerConfig.from_namespace(args)
        if not cfg.decoder_heads:
            return super().build_decoder(args, tgt_dict, embed_tokens)
        return FixedTransformerDecoder(
            cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention
        )


@functools.cache
def _known_options() -> frozenset[str]:
    parser = argparse.ArgumentParser(add_help=False)
    FixedTransformerModel.add_args(parser)
    # what fairseq's architectures set beyond their flags, and how Hydra names the model
    architecture = argparse.Namespace()
    base_architecture(architecture)
    return frozenset(
        {action.dest for action in parser._actions} | set(vars(architecture)) | {"_name", "arch"}
    )


def _refuse_unknown(args: DictConfig) -> None:
    known = _known_options()
    for name in map(str, args):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean model.{close[0]}?" if close else ""
            raise ValueError(f"model.{name} is no option of fixed_transformer.{hint}")


_TO_KEEP = ("encoder_layers_to_keep", "decoder_layers_to_keep")


def _mend_layers_to_keep(args: argparse.Namespace) -> None:
    """Give both options the form in which fairseq's pruning works.

    Its parser makes `[0, 2]` of `0,2`, which its models then split as a string; and where one
    side is pruned and the other is not, it drops all the other's layers.
    """
    for name in _TO_KEEP:
        layers = getattr(args, name)
        if layers and not isinstance(layers, str):
            setattr(args, name, ",".join(map(str, layers)))
    if any(getattr(args, name) for name in _TO_KEEP):
        for name, count in zip(_TO_KEEP, (args.encoder_layers, args.decoder_layers), strict=True):
            setattr(args, name, getattr(args, name) or ",".join(map(str, range(count))))


def _already_pruned(args: Any, state_dict: dict[str, torch.Tensor]) -> bool:
    """Return whether a checkpoint has as many layers as are to be kept: trained so, or saved so."""
    for side, name in zip(("encoder", "decoder"), _TO_KEEP, strict=True):
        kept = getattr(args, name, None)
        if not kept:
            return False
        layers = {key.split(".")[2] for key in state_dict if key.startswith(f"{side}.layers.")}
        if len(layers) != len(kept.split(",")):
            return False
    return True


def _prune_heads(args: Any) -> None:
    """Rewrite heads for `--encoder-layers-to-keep` and its like: ranges name layers as built."""
    for side, name in zip(("encoder", "decoder"), _TO_KEEP, strict=True):
        heads, layers = getattr(args, f"{side}_heads"), getattr(args, f"{side}_layers")
        if not heads or not getattr(args, name):
            continue
        kept = [int(layer) for layer in getattr(args, name).split(",")]
        if len(kept) == layers:
            continue  # nothing is dropped, or fairseq already pruned these very options
        number = getattr(args, f"{side}_attention_heads")
        pruned = keep_layers(heads, kept, layers=layers, heads=number, side=side)
        setattr(args, f"{side}_heads", pruned)
