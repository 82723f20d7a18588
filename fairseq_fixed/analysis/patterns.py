"""Pictures of what each head of a mix attends to, before anything is trained."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fairseq_fixed.attention.base import Head
from fairseq_fixed.attention.mixed import build_head
from fairseq_fixed.heads import HeadsError, HeadSpec, parse_heads, parse_mix
from fairseq_fixed.layout import SequenceLayout
from fairseq_fixed.vocabulary import SENTENCEPIECE_MARK, SUBWORD_NMT_MARK, Vocabulary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["Panel", "PatternsError", "draw_patterns", "make_layout", "make_panels"]

FORMATS = (".png", ".pdf", ".svg")
LONGEST = 200
EOS = "</s>"
_SPECIAL = ("<s>", "<pad>", EOS, "<unk>")
_HEAD_DIM = 4
_COLOURS = "Blues"
_INK, _FAINT = "#24292f", "#8c959f"


class PatternsError(ValueError):
    """A picture that cannot be drawn; the message says what to give."""


@dataclass(frozen=True)
class Panel:
    """One head, or several equal ones.

    Attributes:
        title: as in the grammar, `3 x syntactic:3` where heads are equal.
        weights: (n, n) float32, rows are queries; of a learned head, 1 wherever it may attend.
        learned: whether the weights are learned from queries and keys, and so unknown here.
        untrained: whether training changes the weights shown.
    """

    title: str
    weights: torch.Tensor
    learned: bool = False
    untrained: bool = False


def make_layout(
    tokens: Sequence[str] | None, length: int, dictionary: Path | None = None
) -> SequenceLayout:
    """Describe one sentence to the heads.

    Args:
        tokens: the sentence's tokens, `</s>` included; or None: `length` unnamed tokens.
        length: tokens of an unnamed sentence.
        dictionary: fairseq's `dict.LANG.txt`, for the counts by which tokens are rare.

    Raises:
        PatternsError: a dictionary that cannot be read.
    """
    if tokens is None:
        return SequenceLayout(None, shape=(1, length))
    symbols, counts = list(_SPECIAL), [1] * len(_SPECIAL)
    if dictionary is not None:
        for symbol, count in _read_dictionary(dictionary):
            symbols.append(symbol)
            counts.append(count)
        if not set(tokens) & set(symbols[len(_SPECIAL) :]):
            raise PatternsError(
                f"patterns: none of the sentence's tokens is in {dictionary}; write the sentence "
                "as subwords, with spaces between them"
            )
    # tokens that the dictionary lacks are as rare as <unk>, but show where words begin
    missing = sorted(set(tokens) - set(symbols))
    symbols += missing
    counts += [0] * len(missing)
    marked = any(
        token.startswith(SENTENCEPIECE_MARK) or token.endswith(SUBWORD_NMT_MARK)
        for token in (tokens if dictionary is None else symbols)
    )
    unknown = _SPECIAL.index("<unk>")
    vocabulary = Vocabulary(
        symbols,
        counts if dictionary is not None else None,
        special=(0, 1, 2),
        unk=unknown,
        boundaries="auto" if marked else "tokens",
        words=True,
        rarity=dictionary is not None,
    )
    places = {symbol: index for index, symbol in enumerate(symbols)}
    indices = torch.tensor([[places.get(token, unknown) for token in tokens]])
    return SequenceLayout.from_tokens(indices, _SPECIAL.index("<pad>"), vocabulary)


def _read_dictionary(path: Path) -> list[tuple[str, int]]:
    """Read symbols and counts as fairseq writes them: `symbol count`, a line each."""
    entries = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PatternsError(f"patterns: cannot read the dictionary {path}: {error}") from None
    for number, line in enumerate(lines, 1):
        symbol, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not symbol or not count.isdecimal():
            raise PatternsError(
                f"patterns: line {number} of {path} is {line!r}, not a symbol and its count; "
                "give fairseq's dict.LANG.txt"
            )
        entries.append((symbol, int(count)))
    return entries


def _weights(head: Head, spec: HeadSpec, layout: SequenceLayout) -> torch.Tensor:
    """Return (heads, n, n)."""
    if "words" in head.needs and layout.tokens is None:
        raise PatternsError(
            f"patterns: {spec} is word-based: give --sentence, tokens between spaces, with "
            f"{SENTENCEPIECE_MARK} before each word or {SUBWORD_NMT_MARK} inside it"
        )
    if "rarity" in head.needs and (layout.vocabulary is None or layout.vocabulary.rarity is None):
        raise PatternsError(
            f"patterns: {spec} looks for rare tokens: give --sentence, tokens between spaces, "
            "and --dict, a dict.LANG.txt of fairseq with their counts"
        )
    if not head.scored:
        return head.weights(layout)[0]
    shape = (layout.n, 1, head.num_heads * _HEAD_DIM)
    weights = head.weights(layout, torch.zeros(shape), torch.zeros(shape))[0]
    return (weights > 0).float()


@torch.no_grad()
def make_panels(mix: Sequence[HeadSpec], layout: SequenceLayout, **options: Any) -> list[Panel]:
    """Compute what each head of one layer attends to at evaluation; equal neighbours are joined.

    Args:
        mix: the layer's heads.
        layout: of one sentence.
        **options: of the heads, as `MixedHeadAttention` takes them: `edge`, `gaussian_rows`, …

    Raises:
        PatternsError: heads that need to know more of the sentence.
    """
    panels: list[Panel] = []
    options = {"max_positions": layout.n, **options}
    for spec, run in itertools.groupby(mix):
        head = build_head(spec, len(list(run)), _HEAD_DIM, options).eval()
        weights = _weights(head, spec, layout)
        untrained = not head.scored and any(True for _ in head.parameters())
        joined: list[list[torch.Tensor]] = []
        for matrix in weights:
            if joined and (head.scored or torch.equal(joined[-1][0], matrix)):
                joined[-1].append(matrix)
            else:
                joined.append([matrix])
        for equal in joined:
            title = f"{len(equal)} × {spec}" if len(equal) > 1 else str(spec)
            panels.append(Panel(title, equal[0], head.scored, untrained))
    return panels


def draw_patterns(
    mix: str,
    path: Path,
    *,
    length: int = 12,
    layers: int | None = None,
    sentence: str | None = None,
    dictionary: Path | None = None,
    **options: Any,
) -> Path:
    """Draw a heat map for each head of a mix, in one block for all layers whose heads are equal.

    Rows are queries, columns are keys. Learned heads are hatched wherever they may attend.

    Args:
        mix: heads in the grammar, such as `7f+1l` or `0-2@7f+1l/3-5@8l`.
        path: the picture to write: .png, .pdf or .svg.
        length: tokens of the sentence, where none is given.
        layers: of the encoder; None: as many as `mix` names.
        sentence: tokens between spaces; `</s>` is added.
        dictionary: fairseq's `dict.LANG.txt`, for heads that look for rare tokens.
        **options: of the heads, as `MixedHeadAttention` takes them.

    Returns:
        `path`.

    Raises:
        HeadsError: a mix that cannot be parsed.
        PatternsError: an unknown picture format, a sentence too long, or heads that need to know
            more of the sentence.
    """
    if path.suffix.lower() not in FORMATS:
        raise PatternsError(f"patterns: {path} is no {', '.join(FORMATS)} file")
    tokens = None
    if sentence is not None:
        tokens = [token for token in sentence.split() if token != EOS] + [EOS]
        length = len(tokens)
    if not 1 <= length <= LONGEST:
        raise PatternsError(
            f"patterns: a sentence of {length} tokens cannot be drawn; 1 to {LONGEST} can"
        )
    layout = make_layout(tokens, length, dictionary)
    by_layer = parse_heads(mix, layers=layers or _named_layers(mix), heads=_count_heads(mix))
    # the same seed for each block, so that random heads look alike wherever they stand
    blocks: list[tuple[str, list[Panel]]] = []
    numbered = itertools.groupby(enumerate(by_layer), key=lambda item: item[1])
    with torch.random.fork_rng(devices=[]):
        for specs, group in numbered:
            torch.manual_seed(0)
            numbers = [number for number, _ in group]
            where = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"{numbers[0]}"
            name = f"layer{'s' if len(numbers) > 1 else ''} {where}"
            blocks.append((name, make_panels(specs, layout, **options)))
    figure = _draw(blocks, tokens)
    path.parent.mkdir(parents=True, exist_ok=True)
    undated = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    figure.savefig(
        path, dpi=160, metadata=undated[path.suffix.lower()], bbox_inches="tight", pad_inches=0.15
    )
    return path


def _named_layers(mix: str) -> int:
    """Return one more than the highest layer that the mix names, or 1."""
    bounds = [part.rpartition("@")[0].rpartition("-")[2] for part in mix.split("/") if "@" in part]
    return max((int(b) + 1 for b in bounds if b.isdecimal()), default=1)


def _count_heads(mix: str) -> int:
    """Return the first layer's number of heads; other layers are held to it."""
    if not mix:
        raise HeadsError("heads: expected a mix such as '7f+1l', got ''")
    return len(parse_mix(mix.split("/")[0].rpartition("@")[2]))


def _draw(blocks: list[tuple[str, list[Panel]]], tokens: Sequence[str] | None) -> Figure:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    n = len(blocks[0][1][0].weights)
    columns = _count_columns([len(panels) for _, panels in blocks])
    rows = [-(-len(panels) // columns) for _, panels in blocks]
    size = min(max(0.19 * n, 1.7), 4.0)  # inches a panel
    named = 0.07 * max(len(token) for token in tokens) if tokens else 0.1
    figure = Figure(
        figsize=(
            columns * (size + 0.1) + named + 1.2,
            sum(rows) * (size + 0.35) + len(blocks) * (named + 0.5) + 0.3,
        ),
        layout="compressed",
        facecolor="white",
    )
    # square roots: a weight of 0.02 is still seen beside one of 1
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    scale = ScalarMappable(norm, _COLOURS)
    axes = figure.subplots(sum(rows), columns, squeeze=False)
    first = 0
    for (name, panels), count in zip(blocks, rows, strict=True):
        block = axes[first : first + count]
        _draw_block(block, name if len(blocks) > 1 else "", panels, norm, tokens)
        first += count
    bar = figure.colorbar(scale, ax=axes, fraction=0.05, aspect=30, pad=0.015)
    bar.set_ticks([0, 0.05, 0.2, 0.5, 1], labels=["0", "0.05", "0.2", "0.5", "1"])
    bar.set_label("attention weight", color=_INK, fontsize=9)
    bar.ax.tick_params(labelsize=8, colors=_INK)
    bar.outline.set_visible(False)
    shown = [panel for _, panels in blocks for panel in panels]
    if any((panel.weights.sum(-1) == 0).any() for panel in shown):
        figure.supxlabel("a hatched row attends to nothing", fontsize=9, color=_FAINT)
    return figure


def _count_columns(sizes: list[int]) -> int:
    """Return the number of columns, at most 5, that leaves the fewest empty places."""
    most = max(sizes)
    if most <= 4:
        return most
    return min((5, 4, 3), key=lambda columns: sum(-size % columns for size in sizes))


def _draw_block(
    axes: NDArray[Any],
    name: str,
    panels: list[Panel],
    norm: Normalize,
    tokens: Sequence[str] | None,
) -> None:
    """Draw one layer's panels on axes (rows, columns)."""
    columns = axes.shape[1]
    for index, axis in enumerate(axes.flat):
        if index >= len(panels):
            axis.set_axis_off()
            continue
        _draw_panel(axis, panels[index], norm)
        below = index + columns < len(panels)
        _label(axis, len(panels[index].weights), tokens, left=index % columns == 0, below=below)
    if name:
        heading = {"fontsize": 12, "weight": "bold", "color": _INK}
        axes[0, 0].text(0, 1.18, name, transform=axes[0, 0].transAxes, **heading)


def _draw_panel(axis: Axes, panel: Panel, norm: Normalize) -> None:
    from matplotlib.patches import Rectangle

    n = len(panel.weights)
    if panel.learned:
        for i, j in panel.weights.nonzero().tolist():
            cell = Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="#eaeef2", linewidth=0)
            axis.add_patch(cell)
        axis.imshow(torch.zeros(n, n), alpha=0.0)
    else:
        axis.imshow(panel.weights.numpy(), cmap=_COLOURS, norm=norm)
        for i in (panel.weights.sum(-1) == 0).nonzero().flatten().tolist():
            # a row that attends to nothing
            axis.add_patch(
                Rectangle(
                    (-0.5, i - 0.5),
                    n,
                    1,
                    facecolor="none",
                    edgecolor="#afb8c1",
                    hatch="/////",
                    linewidth=0,
                )
            )
    width = 0.8 if n <= 32 else 0.0
    axis.set_xticks([k - 0.5 for k in range(1, n)], minor=True)
    axis.set_yticks([k - 0.5 for k in range(1, n)], minor=True)
    axis.grid(which="minor", color="#d8dee4" if panel.learned else "#eef1f4", linewidth=width)
    axis.tick_params(which="both", length=0)
    for spine in axis.spines.values():
        spine.set_color(_FAINT)
    title = f"{panel.title}, at start" if panel.untrained else panel.title
    axis.set_title(title, fontsize=11, color=_INK, family="monospace", pad=4)
    if panel.learned:
        axis.text(
            0.5,
            0.5,
            "learned",
            transform=axis.transAxes,
            ha="center",
            va="center",
            fontsize=10,
            style="italic",
            color=_INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 2.5, "alpha": 0.85},
        )


def _label(axis: Axes, n: int, tokens: Sequence[str] | None, *, left: bool, below: bool) -> None:
    """Name tokens at the outer panels alone: rows at the left, columns at the foot."""
    step = 1 if n <= 32 else -(-n // 16)
    if tokens is None and n > 12:
        step = max(step, 2)
    places = list(range(0, n, step))
    names = [str(place) if tokens is None else tokens[place] for place in places]
    size = 8 if n <= 20 else 6
    axis.set_xticks(places)
    axis.set_yticks(places)
    axis.set_xticklabels([] if below else names, fontsize=size, color=_INK, rotation=90)
    axis.set_yticklabels(names if left else [], fontsize=size, color=_INK)
    if tokens is None and not below:
        axis.set_xticklabels(names, rotation=0)
    if left:
        axis.set_ylabel("query", fontsize=9, color=_FAINT)
    if not below:
        axis.set_xlabel("key", fontsize=9, color=_FAINT)
