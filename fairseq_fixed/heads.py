"""The head grammar: `"7f+1l"` becomes one :class:`HeadSpec` for every head of every layer.

::

    heads  = part *( "/" part )          # parts name layers:  0-2@7f+1l/3-5@8l
    part   = [ layer [ "-" layer ] "@" ] mix
    mix    = item *( "+" item )
    item   = [ count "x" ] ( set | kind )
    set    = ( "7f" | "8f" ) [ "w" ] *( "-" name )   # the patterns of arXiv 2002.10260;
                                         # 7f-previous switches one off and keeps its slot
           | count "l"                   # count learned heads
    kind   = name [ "w" ] *( ":" number ) # band:3:2, gaussian:-1:1

Nothing here needs quoting in bash, argparse or a Hydra override. A new kind of head is one line in
:data:`KINDS` and one class in `attention/`. This module needs nothing but the standard library.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

__all__ = [
    "KINDS",
    "SETS",
    "Argument",
    "HeadSpec",
    "HeadsError",
    "KindInfo",
    "format_heads",
    "format_mix",
    "keep_layers",
    "parse_heads",
    "parse_mix",
]


class HeadsError(ValueError):
    """A head mix that cannot be built; the message names the offending part."""


@dataclass(frozen=True)
class Argument:
    """A number behind a kind's name: its name, type, closed range and default (None: required)."""

    name: str
    type: type = int
    minimum: float | None = None
    maximum: float | None = None
    default: float | None = None

    def describe(self) -> str:
        """Return name, type and range for an error or a help text: `W (integer >= 0)`."""
        kind = "integer" if self.type is int else "number"
        low = "" if self.minimum is None else f" >= {self.minimum:g}"
        high = "" if self.maximum is None else f"{' and' if low else ''} <= {self.maximum:g}"
        default = "" if self.default is None else f", default {self.default:g}"
        return f"{self.name} ({kind}{low}{high}{default})"


@dataclass(frozen=True)
class KindInfo:
    """What the grammar knows of a kind: its class, its arguments, what it is.

    Attributes:
        implementation: `module:Class` below `fairseq_fixed.attention`.
        arguments: the numbers that may stand behind the name.
        words: whether a `w` behind the name makes it word-based.
        summary: one line for help texts and tables.
        causal: `module:Class` below `fairseq_fixed.attention.causal`, what a decoder has of this
            kind; empty: a decoder cannot have it.
        not_causal: why not, for the error.
    """

    implementation: str
    arguments: tuple[Argument, ...] = ()
    words: bool = False
    summary: str = ""
    causal: str = ""
    not_causal: str = "it has no causal form"


KINDS: dict[str, KindInfo] = {
    "learned": KindInfo(
        "learned:Learned", summary="softmax(QKᵀ/√k), learned", causal="scored:Scored"
    ),
    "current": KindInfo(
        "positional:Current", words=True, summary="the token itself", causal="simple:Current"
    ),
    "previous": KindInfo(
        "positional:Previous", words=True, summary="the token before", causal="simple:Previous"
    ),
    "next": KindInfo(
        "positional:Next",
        words=True,
        summary="the token after",
        not_causal="the token after is not written yet",
    ),
    "left": KindInfo(
        "context:Left",
        words=True,
        summary="larger left context, cubic weights",
        causal="recurrent:Recurrent",
    ),
    "right": KindInfo(
        "context:Right",
        words=True,
        summary="larger right context, cubic weights",
        not_causal="the context to the right is not written yet",
    ),
    "start": KindInfo(
        "context:Start",
        words=True,
        summary="the sentence's start, cubic weights",
        causal="recurrent:Recurrent",
    ),
    "end": KindInfo(
        "context:End",
        words=True,
        summary="the sentence's end, cubic weights",
        causal="recurrent:Recurrent",
    ),
    "last": KindInfo(
        "positional:Last",
        words=True,
        summary="the sentence's last token",
        not_causal="the last token written is always the token itself: write current",
    ),
    "first": KindInfo(
        "positional:First",
        words=True,
        summary="the sentence's first token",
        causal="recurrent:Recurrent",
    ),
    "band": KindInfo(
        "band:Band",
        (Argument("W", int, 0), Argument("K", int, 0, default=0)),
        summary="learned, |i-j| ≤ W, and K further keys a sentence",
        causal="scored:Scored",
    ),
    "syntactic": KindInfo(
        "syntactic:Syntactic",
        (Argument("W", int, 0),),
        summary="the mean of |i-j| ≤ W, entries dropped at random in training",
    ),
    "rare": KindInfo(
        "rare:Rare",
        (Argument("K", int, 1), Argument("W", int, 0)),
        summary="the nearest of the K rarest tokens where |i-t| ≤ W, else the token itself",
        not_causal="the rarest tokens of a sentence are not known while it is written",
    ),
    "gaussian": KindInfo(
        "gaussian:Gaussian",
        (Argument("OFFSET", float, -1e6, 1e6), Argument("SIGMA", float, 1e-3, 1e6)),
        summary="hard-coded Gaussian around i + OFFSET",
        causal="gaussian:Gaussian",
    ),
    "random": KindInfo("synthesizer:Random", summary="a trained matrix that ignores the input"),
    "random_frozen": KindInfo("synthesizer:RandomFrozen", summary="a random matrix, not trained"),
    "alibi": KindInfo(
        "alibi:Alibi",
        summary="learned, minus a fixed slope times the distance",
        causal="scored:Scored",
    ),
    "off": KindInfo(
        "off:Off", summary="nothing: an empty slot, for ablations", causal="simple:Off"
    ),
}

# In the order of the paper's table.
SETS: dict[str, tuple[str, ...]] = {
    "7f": ("current", "previous", "next", "left", "right", "end", "start"),
    "8f": ("current", "previous", "next", "left", "right", "end", "start", "last"),
}


@dataclass(frozen=True)
class HeadSpec:
    """One head: its kind, its arguments (defaults filled in), word-based or not."""

    kind: str
    args: tuple[float, ...] = ()
    words: bool = False

    def __str__(self) -> str:
        name = self.kind + ("w" if self.words else "")
        return ":".join([name, *map(_format_number, self.args)])

    @property
    def info(self) -> KindInfo:
        """The grammar's entry of this kind."""
        return KINDS[self.kind]


def _format_number(value: float) -> str:
    """Write a number so that it reads back equal, without a plus, which joins heads."""
    if isinstance(value, int):
        return str(value)
    short = f"{value:g}"
    return (short if float(short) == value else repr(value)).replace("e+", "e")


_COUNT = re.compile(r"(\d+)x(.*)", re.DOTALL)
_SET = re.compile(r"(\d+)(f)(w?)((?:-[^-]*)*)|(\d+)(l)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def _number(text: str, argument: Argument, item: str, info: KindInfo) -> float:
    usage = ", ".join(a.describe() for a in info.arguments)
    try:
        value = argument.type(text)
    except ValueError:
        raise HeadsError(
            f"heads: {item!r}: {argument.name} is {text!r}; arguments are {usage}"
        ) from None
    below = argument.minimum is not None and not value >= argument.minimum
    above = argument.maximum is not None and not value <= argument.maximum
    if below or above or value != value or abs(value) == float("inf"):
        raise HeadsError(
            f"heads: {item!r}: {argument.name} = {text} is out of range; arguments are {usage}"
        )
    return value


def _parse_kind(item: str) -> HeadSpec:
    name, *numbers = item.split(":")
    words = False
    if name not in KINDS and name.endswith("w") and name[:-1] in KINDS:
        name, words = name[:-1], True
    if name not in KINDS:
        known = [*KINDS, *SETS]
        raise HeadsError(
            f"heads: unknown kind {name!r} in {item!r}.{_nearest(name, known)} "
            f"Kinds: {', '.join(KINDS)}; sets: {', '.join(SETS)}, Nl"
        )
    info = KINDS[name]
    if words and not info.words:
        word_based = ", ".join(k for k, i in KINDS.items() if i.words)
        raise HeadsError(
            f"heads: {item!r}: {name} has no word-based form; these have: {word_based}"
        )
    required = sum(a.default is None for a in info.arguments)
    if not required <= len(numbers) <= len(info.arguments):
        usage = ", ".join(a.describe() for a in info.arguments) or "none"
        raise HeadsError(
            f"heads: {item!r}: {name} takes {required}"
            + (f" to {len(info.arguments)}" if len(info.arguments) != required else "")
            + f" arguments, {len(numbers)} given; arguments are {usage}"
        )
    args = [_number(t, a, item, info) for t, a in zip(numbers, info.arguments, strict=False)]
    args += [a.type(a.default) for a in info.arguments[len(args) :] if a.default is not None]
    return HeadSpec(name, tuple(args), words)


def _parse_set(item: str) -> list[HeadSpec] | None:
    match = _SET.fullmatch(item)
    if match is None:
        return None
    if match[6]:
        return [HeadSpec("learned")] * int(match[5])
    name = match[1] + match[2]
    if name not in SETS:
        raise HeadsError(f"heads: {item!r}: there are the fixed sets {' and '.join(SETS)}")
    specs = [HeadSpec(kind, words=bool(match[3])) for kind in SETS[name]]
    for kind in match[4].split("-")[1:]:
        if kind not in SETS[name]:
            raise HeadsError(
                f"heads: {item!r}: {name} has no pattern {kind!r}.{_nearest(kind, [*SETS[name]])} "
                f"It has: {', '.join(SETS[name])}"
            )
        if specs[SETS[name].index(kind)].kind == "off":
            raise HeadsError(f"heads: {item!r} switches {kind} off twice")
        specs[SETS[name].index(kind)] = HeadSpec("off")
    return specs


def parse_mix(text: str) -> tuple[HeadSpec, ...]:
    """Parse one layer's mix, such as `7f+1l` or `4xlearned+4xprevious`.

    Raises:
        HeadsError: unknown kind, wrong arguments, an empty item or a count of zero.
    """
    specs: list[HeadSpec] = []
    for item in text.split("+"):
        if not item:
            raise HeadsError(f"heads: empty item in {text!r}; items are joined by a single '+'")
        counted = _COUNT.fullmatch(item)
        count, rest = (int(counted[1]), counted[2]) if counted else (1, item)
        if not rest:
            raise HeadsError(f"heads: {item!r} in {text!r} is a count without a kind")
        members = _parse_set(rest) or []
        if not members and not _SET.fullmatch(rest):
            members = [_parse_kind(rest)]
        if count == 0 or not members:
            raise HeadsError(f"heads: {item!r} in {text!r} counts no head")
        specs += members * count
    return tuple(specs)


def parse_heads(
    text: str, *, layers: int, heads: int, embed_dim: int | None = None, side: str = "encoder"
) -> tuple[tuple[HeadSpec, ...], ...]:
    """Parse the heads of a whole encoder or decoder.

    Args:
        text: a mix for all layers (`7f+1l`) or mixes by layer (`0-2@7f+1l/3-5@8l`).
        layers: number of layers, as built (before `--encoder-layers-to-keep`).
        heads: number of heads that every layer must have (`--encoder-attention-heads`).
        embed_dim: where given, checked to be divisible by `heads`.
        side: `encoder`, or `decoder`, whose heads must be causal.

    Returns:
        A tuple of `layers` tuples of `heads` specs.

    Raises:
        HeadsError: what is wrong, in which part, and both numbers where a count is wrong.
    """
    if not isinstance(text, str) or not text:
        raise HeadsError(f"heads: expected a mix such as '7f+1l', got {text!r}")
    if heads < 1 or layers < 1:
        raise HeadsError(f"heads: {side} of {layers} layers with {heads} heads has none")
    if embed_dim is not None and embed_dim % heads:
        raise HeadsError(
            f"heads: the embedding dimension {embed_dim} is not divisible by {heads} heads"
        )
    by_layer: dict[int, tuple[HeadSpec, ...]] = {}
    parts = text.split("/")
    for part in parts:
        where, at, mix = part.rpartition("@")
        first, last = 0, layers - 1
        if at:
            bounds = _RANGE.fullmatch(where)
            if bounds is None:
                raise HeadsError(f"heads: {where!r} in {part!r} names no layers; write 3@ or 0-2@")
            first, last = int(bounds[1]), int(bounds[2] or bounds[1])
            if first > last or last >= layers:
                raise HeadsError(
                    f"heads: layers {where} in {part!r} are not in 0-{layers - 1} "
                    f"(the {side} has {layers} layers)"
                )
        elif len(parts) > 1:
            raise HeadsError(f"heads: {part!r} in {text!r} names no layers; write 0-2@{part}")
        specs = parse_mix(mix)
        if len(specs) != heads:
            raise HeadsError(
                f"heads: {mix!r} has {len(specs)} heads, but the layer has {heads} "
                f"(--{side}-attention-heads)"
            )
        if side == "decoder":
            _check_causal(specs, mix)
        for layer in range(first, last + 1):
            if layer in by_layer:
                raise HeadsError(f"heads: layer {layer} is named twice in {text!r}")
            by_layer[layer] = specs
    missing = [str(layer) for layer in range(layers) if layer not in by_layer]
    if missing:
        raise HeadsError(f"heads: {text!r} says nothing of layers {', '.join(missing)}")
    return tuple(by_layer[layer] for layer in range(layers))


def _check_causal(specs: tuple[HeadSpec, ...], mix: str) -> None:
    """Raise HeadsError at the first head that would need tokens which are not written yet."""
    for spec in specs:
        why = "" if spec.info.causal else spec.info.not_causal
        if spec.words:
            why = "the words of a target are not known while it is written"
        elif spec.kind == "band" and spec.args[1]:
            why = "its further keys are chosen from the whole sentence; write band:W"
        if why:
            causal = ", ".join(kind for kind, info in KINDS.items() if info.causal)
            raise HeadsError(
                f"heads: a decoder cannot have {str(spec)!r} of {mix!r}: {why}. "
                f"Kinds that a decoder can have: {causal}"
            )


def format_mix(specs: tuple[HeadSpec, ...]) -> str:
    """Write one layer's heads in the grammar, equal neighbours counted: `3xcurrent+5xlearned`."""
    items: list[tuple[HeadSpec, int]] = []
    for spec in specs:
        if items and items[-1][0] == spec:
            items[-1] = (spec, items[-1][1] + 1)
        else:
            items.append((spec, 1))
    return "+".join(f"{count}x{spec}" if count > 1 else str(spec) for spec, count in items)


def format_heads(specs: tuple[tuple[HeadSpec, ...], ...]) -> str:
    """Write an encoder's heads in the grammar; the inverse of :func:`parse_heads`."""
    mixes = [format_mix(layer) for layer in specs]
    if len(set(mixes)) == 1:
        return mixes[0]
    parts, first = [], 0
    for layer in range(1, len(mixes) + 1):
        if layer == len(mixes) or mixes[layer] != mixes[first]:
            last = layer - 1
            parts.append((f"{first}" if first == last else f"{first}-{last}") + "@" + mixes[first])
            first = layer
    return "/".join(parts)


def keep_layers(
    text: str, kept: list[int], *, layers: int, heads: int, side: str = "encoder"
) -> str:
    """Return the heads of an encoder or decoder pruned to the layers `kept`, in the grammar.

    Ranges name layers as built; pruning (`--encoder-layers-to-keep`) renumbers what is left.

    Raises:
        HeadsError: `text` does not fit what was built, or a kept layer is not in it.
    """
    specs = parse_heads(text, layers=layers, heads=heads, side=side)
    outside = [str(layer) for layer in kept if not 0 <= layer < layers]
    if outside:
        raise HeadsError(f"heads: layers to keep {', '.join(outside)} are not in 0-{layers - 1}")
    return format_heads(tuple(specs[layer] for layer in sorted(kept)))
