"""Conversion of trained models: the same weights behind other heads.

A vanilla transformer's heads are all learned. Made into `band` heads they keep their projections,
so that a trained model can be translated with at once (with `band_projection=exact` that is the
projection of arXiv 2409.00068); made into fixed heads they lose their queries and keys and keep
their values, a start for training on with `--finetune-from-model`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fairseq_fixed.attention import MixedHeadAttention, head_class
from fairseq_fixed.attention.causal import CausalAttention
from fairseq_fixed.checkpoints import CheckpointError, load_checkpoint, save_checkpoint
from fairseq_fixed.heads import HeadSpec, parse_heads

__all__ = ["ConversionError", "convert_checkpoint", "convert_state", "model_arguments"]

_LEARNED = HeadSpec("learned")


class ConversionError(CheckpointError):
    """A checkpoint that cannot be given these heads; the message says where and why."""


def convert_checkpoint(
    source: Path | str,
    output: Path | str,
    *,
    encoder_heads: str,
    decoder_heads: str | None = None,
    options: Mapping[str, object] | None = None,
) -> None:
    """Give a trained model other heads, and write it as a `fixed_transformer`.

    Args:
        source: checkpoint of fairseq's `transformer` or its like, or of `fixed_transformer`.
        output: file to write.
        encoder_heads: as for :func:`convert_state`, as is all that follows.
        decoder_heads: likewise.
        options: likewise.

    Raises:
        ConversionError: as :func:`convert_state`.
        CheckpointError: a file that cannot be read.
        HeadsError: heads that do not fit the model.
    """
    if Path(output).resolve() == Path(source).resolve():
        raise ConversionError(f"{source}: would be replaced by what it becomes; give another out")
    state = load_checkpoint(source)
    convert_state(
        state, source, encoder_heads=encoder_heads, decoder_heads=decoder_heads, options=options
    )
    save_checkpoint(state, output)


def convert_state(
    state: dict[str, Any],
    source: Path | str,
    *,
    encoder_heads: str,
    decoder_heads: str | None = None,
    options: Mapping[str, object] | None = None,
) -> None:
    """Give a trained model other heads, in place.

    Head h of a layer becomes head h. Values, output projections and all else stay as they are.
    The optimizer's state is left out: its moments belong to other parameters.

    Args:
        state: from :func:`checkpoints.load_checkpoint`; what it holds after an error is undefined.
        source: its file, for messages.
        encoder_heads: as for `--encoder-heads`.
        decoder_heads: as for `--decoder-heads`; None: as they are.
        options: further options of the model (`models/options.py`), such as `band_projection`;
            TISA is not converted: `tisa_kernels=0` leaves it out.

    Raises:
        ConversionError: a model without a transformer's self-attention, an unknown option, or a
            head that has no queries and keys and is to score.
        HeadsError: heads that do not fit the model.
    """
    from fairseq_fixed.models.joint_projection import split_joint_projection

    args = model_arguments(state, source)
    model: dict[str, Tensor] = state["model"]
    for name in [name for name in model if name.endswith(".self_attn.in_proj_weight")]:
        split_joint_projection(model, name.removesuffix(".in_proj_weight"))
    # asked before defaults are set: a vanilla model has no such option
    before = {side: getattr(args, f"{side}_heads", "") for side in ("encoder", "decoder")}
    _set_options(args, options or {}, source)
    for side, heads in (("encoder", encoder_heads), ("decoder", decoder_heads)):
        if heads is not None:
            _convert_side(model, args, side, before[side], heads, source)
    args.arch = args._name = "fixed_transformer"
    # one pruned by --encoder-layers-to-keep is saved pruned
    args.encoder_layers_to_keep = args.decoder_layers_to_keep = None
    if state.get("cfg"):
        state["cfg"]["model"] = args
        state["args"] = None
    else:
        state["args"] = args  # as before Hydra; fairseq makes a cfg of it while loading
    state["last_optimizer_state"] = None


def model_arguments(state: Mapping[str, Any], source: Path | str) -> argparse.Namespace:
    """Return the options that a checkpoint's transformer was built with, as a new Namespace.

    Args:
        state: from :func:`checkpoints.load_checkpoint`.
        source: its file, for messages.

    Raises:
        ConversionError: it does not say, or is no transformer.
    """
    found = (state.get("cfg") or {}).get("model") or state.get("args")
    if found is None:
        raise ConversionError(f"{source}: does not say how its model was built (no cfg, no args)")
    values = dict(found) if isinstance(found, Mapping) else dict(vars(found))
    if isinstance(values.get("encoder"), Mapping):
        raise ConversionError(
            f"{source}: a model of {values.get('_name')!r} keeps its options in a form of its own; "
            "only models of the architecture transformer and its like are converted"
        )
    args = argparse.Namespace(**values)
    for side in ("encoder", "decoder"):
        for name in ("layers", "attention_heads", "embed_dim"):
            if not hasattr(args, f"{side}_{name}"):
                raise ConversionError(
                    f"{source}: its model says nothing of {side}_{name}; it is no transformer"
                )
    return args


def _convert_side(
    model: dict[str, Tensor],
    args: argparse.Namespace,
    side: str,
    before: str,
    heads: str,
    source: Path | str,
) -> None:
    """Take out of each layer's queries and keys the rows that the heads still need; in place."""
    _check_attention(args, side, source)
    layers = _layers(model, side)
    if not layers:
        raise ConversionError(f"{source}: has no {side} layers with a self-attention")
    count = getattr(args, f"{side}_attention_heads")
    width = getattr(args, f"{side}_embed_dim")
    wanted = parse_heads(heads, layers=len(layers), heads=count, embed_dim=width, side=side)
    present: Sequence[Sequence[HeadSpec]] = (
        parse_heads(before, layers=len(layers), heads=count, side=side)
        if before
        else [[_LEARNED] * count] * len(layers)
    )
    for layer, old, new in zip(layers, present, wanted, strict=True):
        rows = _rows(layer, side, old, new, width // count, source)
        for projection in ("q_proj", "k_proj"):
            for part in ("weight", "bias"):
                name = f"{side}.layers.{layer}.self_attn.{projection}.{part}"
                if name in model:
                    tensor = model.pop(name)
                    if rows:
                        model[name] = tensor[rows].clone()
        _check_layer(model, args, side, layer, new, source)
    setattr(args, f"{side}_heads", heads)
    setattr(args, f"{side}_layers", len(layers))  # fewer where it was saved pruned


def _check_attention(args: argparse.Namespace, side: str, source: Path | str) -> None:
    """Check that nothing else stands in the self-attention's place."""
    replaced = [f"{side}_xformers_att_config"]
    replaced += ["cross_self_attention"] if side == "decoder" else []
    for name in replaced:
        if getattr(args, name, None):
            raise ConversionError(
                f"{source}: was trained with --{name.replace('_', '-')}, which replaces the "
                f"{side}'s self-attention; it has no heads to choose"
            )


def _layers(model: Mapping[str, Tensor], side: str) -> list[int]:
    found = set()
    for name in model:
        parts = name.split(".")
        if parts[:2] == [side, "layers"] and parts[3:5] == ["self_attn", "v_proj"]:
            found.add(int(parts[2]))
    return sorted(found)


def _check_layer(
    model: dict[str, Tensor],
    args: argparse.Namespace,
    side: str,
    layer: int,
    heads: Sequence[HeadSpec],
    source: Path | str,
) -> None:
    """Drop what belonged to the old heads alone; see that the new ones lack nothing."""
    from fairseq_fixed.models.options import causal_options, head_options

    width = getattr(args, f"{side}_embed_dim")
    attention: nn.Module
    if side == "encoder":
        longest = getattr(args, "max_source_positions", None) or 1024  # fairseq's own default
        attention = MixedHeadAttention(width, heads, **head_options(args), max_positions=longest)
    else:
        attention = CausalAttention(width, heads, **causal_options(args, [heads]))
    wanted = {name: tuple(tensor.shape) for name, tensor in attention.state_dict().items()}
    prefix = f"{side}.layers.{layer}.self_attn."
    for name in [name for name in model if name.startswith(prefix)]:
        if name.removeprefix(prefix) not in wanted:
            del model[name]
    for name, shape in wanted.items():
        found = model.get(prefix + name)
        if found is None or tuple(found.shape) != shape:
            raise ConversionError(
                f"{source}: {side} layer {layer} cannot be given "
                f"{'+'.join(map(str, heads))}: {name} "
                + (
                    "has to be trained"
                    if found is None
                    else f"is {tuple(found.shape)}, should be {shape}"
                )
            )


def _rows(
    layer: int,
    side: str,
    old: Sequence[HeadSpec],
    new: Sequence[HeadSpec],
    head_dim: int,
    source: Path | str,
) -> list[int]:
    """Return the rows of queries and keys that stay."""
    place: dict[int, int] = {}
    for index, spec in enumerate(old):
        if head_class(spec.kind).scored:
            place[index] = len(place) * head_dim
    rows: list[int] = []
    for index, spec in enumerate(new):
        if not head_class(spec.kind).scored:
            continue
        if index not in place:
            raise ConversionError(
                f"{source}: head {index} of {side} layer {layer} is {str(old[index])!r}, which has "
                f"no queries and keys; it cannot become {str(spec)!r}"
            )
        rows += range(place[index], place[index] + head_dim)
    return rows


def _set_options(
    args: argparse.Namespace, options: Mapping[str, object], source: Path | str
) -> None:
    import difflib

    from fairseq_fixed.models.options import OPTIONS, set_defaults

    known = {option.name: option for option in OPTIONS}
    for name, value in options.items():
        if name not in known or name in ("encoder_heads", "decoder_heads"):
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConversionError(f"{name} is no option of the model's heads{hint}")
        option = known[name]
        try:
            converted = _as(type(option.default), value)
            option.check(converted)
        except ValueError as error:
            raise ConversionError(f"{name}={value}: {error}") from error
        setattr(args, name, converted)
    set_defaults(args)
    if args.tisa_kernels:
        raise ConversionError(
            f"{source}: TISA's functions belong to the heads that they were trained with; "
            "tisa_kernels=0 leaves them out"
        )


def _as(kind: type, value: object) -> Any:
    if kind is bool and isinstance(value, str):
        if value.lower() not in ("true", "false"):
            raise ValueError("expected true or false")
        return value.lower() == "true"
    return kind(value)
