"""The encoder: fairseq's, with layers whose heads are chosen one by one."""

from __future__ import annotations

import logging
import re
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_fixed.attention import MixedHeadAttention as Mixed
from fairseq_fixed.attention.learned import Scored
from fairseq_fixed.heads import HeadsError, parse_heads
from fairseq_fixed.layout import SequenceLayout
from fairseq_fixed.models.layer import FixedTransformerEncoderLayer
from fairseq_fixed.models.options import head_options
from fairseq_fixed.vocabulary import RANKS, Vocabulary

__all__ = ["FixedTransformerEncoder"]

logger = logging.getLogger(__name__)


class FixedTransformerEncoder(TransformerEncoderBase):
    """fairseq's transformer encoder with mixed-head layers.

    Embeddings, positions, layer drop, quantization noise, activation checkpointing and FSDP
    wrapping are fairseq's.

    Args:
        cfg: fairseq's configuration with the options of `models/options.py` beside it.
        dictionary: of the source language.
        embed_tokens: the token embedding.
        return_fc: also keep the feed-forward blocks' outputs.

    Raises:
        HeadsError: heads that do not fit the encoder.
        ValueError: an option that cannot work with these layers.
        VocabularyError: heads that need word boundaries which the dictionary does not show.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        return_fc: bool = False,
    ) -> None:
        if cfg.encoder.xformers_att_config is not None:
            raise ValueError(
                "--encoder-xformers-att-config replaces fairseq's own attention, which this "
                "encoder does not use; leave it out, or train --arch transformer"
            )
        # fairseq asks for layers one by one without saying which: deal the specs out in order
        self._specs_left = list(
            parse_heads(
                cfg.encoder_heads,
                layers=cfg.encoder.layers,
                heads=cfg.encoder.attention_heads,
                embed_dim=embed_tokens.embedding_dim,
            )
        )
        super().__init__(cfg, dictionary, embed_tokens, return_fc=return_fc)
        if self._specs_left:
            raise HeadsError(f"heads: {len(self._specs_left)} layers' heads were left over")
        del self._specs_left
        self.dropout_module.module_name = "TransformerEncoder"  # for --retain-dropout-modules
        if cfg.no_encoder_positional_embeddings:
            self.embed_positions = None
        self.tisa_shared = cfg.tisa_shared
        if cfg.tisa_shared:
            self._share_tisa()
        if cfg.tisa_kernels and not any(getattr(m, "tisa", None) for m in self.modules()):
            logger.warning("--tisa-kernels does nothing: no encoder head scores queries and keys")
        needs = frozenset().union(*(m.needs for m in self.modules() if isinstance(m, Mixed)))
        self.vocabulary = _vocabulary(dictionary, cfg.word_boundaries, needs) if needs else None

    def _share_tisa(self) -> None:
        """Let every layer use the first layer's TISA functions, run by run of heads.

        Raises:
            HeadsError: layers whose runs of scored heads differ, or that FSDP has wrapped.
        """
        if any(type(layer).__name__ == "FullyShardedDataParallel" for layer in self.layers):
            raise HeadsError("--tisa-shared does not work with --ddp-backend fully_sharded")
        runs = [
            [m for m in layer.modules() if isinstance(m, Scored) and m.tisa is not None]
            for layer in self.layers
        ]
        sizes = [[run.num_heads for run in layer] for layer in runs]
        if any(size != sizes[0] for size in sizes):
            raise HeadsError(
                f"--tisa-shared: layers have different runs of scored heads: {sizes}; "
                "leave it out, or give all layers the same heads"
            )
        for layer in runs[1:]:
            for run, first in zip(layer, runs[0], strict=True):
                run.tisa = first.tisa

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> dict[str, Any]:
        """Fit a checkpoint of another mix to this one, where all weights agree.

        Raises:
            HeadsError: TISA functions that differ by layer, for layers that share them.
        """
        rarity = f"{name}.vocabulary.{RANKS}"
        former = f"{name}.vocabulary.rarity"
        if former in state_dict:
            state_dict.setdefault(rarity, state_dict.pop(former))
        if self.vocabulary is not None and self.vocabulary.rarity is not None:
            state_dict.setdefault(rarity, self.vocabulary.rarity)
        else:
            state_dict.pop(rarity, None)
        if self.tisa_shared:
            # name.layers.0.self_attn.runs.0.tisa.center: by run and parameter
            seen: dict[str, Tensor] = {}
            for key in [k for k in state_dict if k.startswith(f"{name}.layers.") and ".tisa." in k]:
                which = key.removeprefix(f"{name}.layers.").partition(".")[2]
                if not torch.equal(seen.setdefault(which, state_dict[key]), state_dict[key]):
                    raise HeadsError(
                        "--tisa-shared: the checkpoint's layers have TISA functions of their own; "
                        "load it without --tisa-shared"
                    )
        return super().upgrade_state_dict_named(state_dict, name)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build the next layer, wrapped as fairseq wraps its own."""
        layer = FixedTransformerEncoderLayer(
            cfg.encoder.embed_dim,
            cfg.encoder.ffn_embed_dim,
            self._specs_left.pop(0),
            dropout=cfg.dropout,
            attention_dropout=cfg.attention_dropout,
            # models that still say relu_dropout, as in fairseq
            activation_dropout=float(cfg.activation_dropout or cfg.relu_dropout or 0),
            activation_fn=cfg.activation_fn,
            normalize_before=cfg.encoder.normalize_before,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
            export=cfg.export,
            return_fc=self.return_fc,
            head_options={**head_options(cfg), "max_positions": cfg.max_source_positions},
        )
        if cfg.checkpoint_activations:
            layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        # under checkpointing FSDP wraps every layer, whatever its size, as in fairseq
        minimum = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
        return fsdp_wrap(layer, min_num_params=minimum)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict[str, list[Any]]:
        """Encode a batch.

        Args:
            src_tokens: (batch, n), padded on either side.
            src_lengths: not used; lengths are read off the tokens.
            return_all_hiddens: also return the embedding and every layer's output.
            token_embeddings: (batch, n, embed_dim), in place of the embedding look-up.

        Returns:
            The dictionary that fairseq's decoder expects: `encoder_out` (n, batch, embed_dim),
            `encoder_padding_mask` (batch, n), `encoder_embedding` (batch, n, embed_dim),
            `encoder_states` and `fc_results` (lists), `src_tokens` (empty), `src_lengths`
            (batch, 1); each in a list.
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        layout = SequenceLayout.from_tokens(src_tokens, self.padding_idx, self.vocabulary)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if layout.padding_mask is not None:
            x = x.masked_fill(padding_mask[:, :, None], 0)
        x = x.transpose(0, 1)  # (batch, n, embed_dim) -> (n, batch, embed_dim)

        states: list[Tensor] = [x] if return_all_hiddens else []
        fc_results: list[Tensor | None] = []
        for layer in self.layers:
            out = layer(x, layout=layout)
            x, fc_result = out if isinstance(out, tuple) else (out, None)
            if return_all_hiddens:
                states.append(x)
                fc_results.append(fc_result)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "fc_results": fc_results,
            "src_tokens": [],
            "src_lengths": [(~padding_mask).sum(dim=1, keepdim=True).int()],
        }


#: names of languages and masks, which fairseq's multilingual tasks and mBART's add: no words
_TAG = re.compile(r"__\w+__|\[[a-z]+_[A-Z]+\]|<mask>")


def _vocabulary(dictionary: Dictionary, boundaries: str, needs: frozenset[str]) -> Vocabulary:
    tags = [
        index
        for index, (symbol, count) in enumerate(
            zip(dictionary.symbols, dictionary.count, strict=True)
        )
        if count <= 1 and _TAG.fullmatch(symbol)  # added with the count 1
    ]
    return Vocabulary(
        dictionary.symbols,
        dictionary.count,
        special=(dictionary.bos(), dictionary.pad(), dictionary.eos(), *tags),
        unk=dictionary.unk(),
        boundaries=boundaries,
        words="words" in needs,
        rarity="rarity" in needs,
    )
