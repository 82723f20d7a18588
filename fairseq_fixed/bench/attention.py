"""The self-attention sublayer alone: every contender on the same batches with the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from fairseq_fixed.bench.batches import Batch, make_tokens
from fairseq_fixed.bench.check import check_equal
from fairseq_fixed.bench.contest import Entrant, Listener, TimingOptions, Work, hold_contest
from fairseq_fixed.bench.counting import counted_limit
from fairseq_fixed.bench.errors import BenchError, UnavailableError
from fairseq_fixed.bench.grid import Grid
from fairseq_fixed.bench.limits import matrices_note
from fairseq_fixed.bench.peers.base import Sublayer
from fairseq_fixed.bench.peers.dense import Dense
from fairseq_fixed.bench.peers.fairseq_attention import FairseqAttention
from fairseq_fixed.bench.peers.lightconv import LightConv
from fairseq_fixed.bench.peers.local import Local
from fairseq_fixed.bench.peers.mixed import VOCABULARY, Mixed
from fairseq_fixed.bench.peers.sdpa import SdpaAttention
from fairseq_fixed.bench.peers.torch_attention import TorchAttention
from fairseq_fixed.bench.peers.weights import Projections
from fairseq_fixed.bench.settings import PASSES, Place, check_choice, parse_mixes
from fairseq_fixed.heads import HeadSpec, parse_mix

__all__ = ["PEERS", "AttentionSettings", "attention_work", "run_attention"]

PEERS = ("fairseq", "sdpa", "torch", "lightconv", "dense", "local-attention")

#: peers with all heads learned
_LEARNED = ("fairseq", "sdpa", "torch")


@dataclass(frozen=True)
class AttentionSettings:
    """What to measure: every combination is a case.

    Attributes:
        mixes: with commas between them.
        grid: of batches.
        width: channels d.
        heads: of every mix.
        layers: sublayers run on one batch, one after the other, each with weights and an input of
            its own: masks and layouts are made once for all of them, as in an encoder.
        dropouts: of attention weights.
        passes: of `PASSES`. Without gradients, `forward` is evaluation where the dropout is 0,
            and training where it is not: dropout does nothing in evaluation.
        peers: of `PEERS`.
        memory: whether to measure peak memory, of one sublayer.
        limit: bytes that a contender's n×n matrices may need; None: most of what is free.

    Raises:
        BenchError: what cannot be measured.
        HeadsError: a mix that cannot be read.
    """

    mixes: str = "7f+1l,8f,8xband:8,8l"
    grid: Grid = field(default_factory=Grid)
    width: int = 512
    heads: int = 8
    layers: int = 6
    dropouts: Sequence[float] = (0.0, 0.1)
    passes: Sequence[str] = PASSES
    peers: Sequence[str] = PEERS
    memory: bool = True
    limit: int | None = None
    specs: dict[str, tuple[HeadSpec, ...]] = field(init=False)

    def __post_init__(self) -> None:
        """Check."""
        for name in self.passes:
            check_choice("pass", name, PASSES)
        for name in self.peers:
            check_choice("peer", name, PEERS)
        for dropout in self.dropouts:
            if not 0 <= dropout < 1:
                raise BenchError(f"attention dropout {dropout:g}: from 0 to below 1")
        if self.layers < 1:
            raise BenchError(f"{self.layers} layers: there must be at least one")
        object.__setattr__(self, "specs", parse_mixes(self.mixes, self.heads, self.width))

    @property
    def cases(self) -> int:
        """How many cases there are."""
        return len(self.grid) * len(self.dropouts) * len(self.passes)


class _Contender(NamedTuple):
    name: str
    ours: bool
    layers: nn.ModuleList
    quadratic: bool  # whether it makes n×n matrices


def run_attention(
    settings: AttentionSettings, place: Place, options: TimingOptions, listener: Listener
) -> Iterator[dict[str, Any]]:
    """Measure case after case; yields each as :func:`contest.hold_contest` returns it."""
    built: dict[float, tuple[list[_Contender], dict[str, str]]] = {}
    for shape in settings.grid.shapes(options.seed):
        batches = [
            Batch(
                make_tokens(lengths, place.side, VOCABULARY, options.seed + index).to(place.device),
                settings.layers,
                settings.width,
                place.torch_dtype,
                options.seed + index,
            )
            for index, lengths in enumerate(shape.lengths)
        ]
        for number, dropout in enumerate(settings.dropouts):
            if dropout not in built:
                built[dropout] = _contenders(settings, place, dropout)
            contenders, left_out = built[dropout]
            if number == 0:
                listener.doing("checking that equal functions are equal")
                _check(settings, place, contenders, batches)
            for name in settings.passes:
                case = {**shape.case, "pass": name, "attention_dropout": dropout}
                yield _measure(
                    settings, place, options, listener, contenders, left_out, case, batches
                )


def _contenders(
    settings: AttentionSettings, place: Place, dropout: float
) -> tuple[list[_Contender], dict[str, str]]:
    d, heads = settings.width, settings.heads
    weights = [Projections.draw(d, seed) for seed in range(settings.layers)]
    found: list[_Contender] = []
    left_out: dict[str, str] = {}

    def add(name: str, make: Any, *, ours: bool = False, quadratic: bool = False) -> None:
        try:
            layers = nn.ModuleList(make(layer) for layer in range(settings.layers))
        except UnavailableError as error:
            left_out[name] = str(error)
            return
        found.append(_Contender(name, ours, layers.to(place.device, place.torch_dtype), quadratic))

    # torch's attention makes n×n matrices on the CPU where there is dropout, and in evaluation
    # its module does so where there is none
    plain = dropout > 0 and not place.fused
    for text, specs in settings.specs.items():
        learned = plain and any(spec.kind == "learned" for spec in specs)
        add(
            text,
            lambda i, specs=specs: Mixed(specs, weights[i], d, dropout),
            ours=True,
            quadratic=learned,
        )
    if "fairseq" in settings.peers:
        add(
            "fairseq",
            lambda i: FairseqAttention(weights[i], d, heads, dropout),
            quadratic=plain,
        )
    if "sdpa" in settings.peers:
        add("sdpa", lambda i: SdpaAttention(weights[i], d, heads, dropout), quadratic=plain)
    if "torch" in settings.peers:
        add("torch", lambda i: TorchAttention(weights[i], d, heads, dropout), quadratic=True)
    if "lightconv" in settings.peers:
        add("lightconv", lambda i: LightConv(d, heads, dropout, i), quadratic=True)
    for text, specs in settings.specs.items():
        all_learned = all(spec.kind == "learned" for spec in specs)
        if "dense" in settings.peers and not all_learned:
            add(
                f"dense {text}",
                lambda i, specs=specs: Dense(specs, weights[i], d, dropout),
                quadratic=True,
            )
        if "local-attention" in settings.peers and any(spec.kind == "band" for spec in specs):
            add(
                f"local-attention {text}",
                lambda i, specs=specs: Local(specs, weights[i], d, dropout),
            )
    return found, left_out


def _fitting(
    settings: AttentionSettings,
    place: Place,
    contenders: Sequence[_Contender],
    batches: Sequence[Batch],
    kept: int,
) -> tuple[list[_Contender], dict[str, str]]:
    """Split contenders into those whose matrices have room and notes on the others."""
    note = matrices_note(
        [batch.shape for batch in batches],
        heads=settings.heads,
        layers=kept,
        itemsize=place.torch_dtype.itemsize,
        device=place.device,
        limit=settings.limit,
    )
    if note is None:
        return list(contenders), {}
    return (
        [c for c in contenders if not c.quadratic],
        {c.name: note for c in contenders if c.quadratic},
    )


def _check(
    settings: AttentionSettings,
    place: Place,
    contenders: Sequence[_Contender],
    batches: Sequence[Batch],
) -> None:
    """Hold equal functions together on the longest batch."""
    batch = max(batches, key=lambda b: b.shape[1])
    fitting, _ = _fitting(settings, place, contenders, [batch], 1)
    layers: dict[str, Sublayer] = {c.name: c.layers[0] for c in fitting}  # type: ignore[misc]
    ours = [name for name in settings.specs if name in layers]
    learned = [n for n in ours if all(s.kind == "learned" for s in settings.specs[n])]
    if not learned:
        # is checked though it is not timed
        name = f"{settings.heads}l"
        mixed = Mixed(parse_mix(name), Projections.draw(settings.width, 0), settings.width, 0.0)
        layers[name] = mixed.to(place.device, place.torch_dtype)
        learned = [name]
    peers = [name for name in _LEARNED if name in layers]
    if peers:
        others = dict.fromkeys([*peers[1:], *learned], "attention with all heads learned")
        check_equal(peers[0], others, layers, batch)
    for name in ours:
        same = [f"dense {name}", f"local-attention {name}"]
        check_equal(name, {n: f"the heads {name}" for n in same if n in layers}, layers, batch)


def _measure(
    settings: AttentionSettings,
    place: Place,
    options: TimingOptions,
    listener: Listener,
    contenders: Sequence[_Contender],
    left_out: dict[str, str],
    case: dict[str, Any],
    batches: Sequence[Batch],
) -> dict[str, Any]:
    backward = case["pass"] == "forward+backward"
    kept = settings.layers if backward else 0
    fitting, notes = _fitting(settings, place, contenders, batches, kept)
    for contender in fitting:
        contender.layers.train(backward or case["attention_dropout"] > 0)
    case = {
        **case,
        "width": settings.width,
        "heads": settings.heads,
        "layers": settings.layers,
        **vars(place),
    }
    shapes = [batch.shape for batch in batches]
    entrants = []
    for contender in fitting:
        specs = settings.specs.get(contender.name)
        limit = specs and counted_limit(specs, shapes, settings.width, backward)
        entrants.append(
            Entrant(
                contender.name,
                contender.ours,
                [attention_work(contender.layers, batch, backward=backward) for batch in batches],
                [
                    attention_work(contender.layers[:1], batch, backward=backward)
                    for batch in batches
                ]
                if settings.memory
                else None,
                {"counted_limit": round(limit, 3)} if limit else {},
            )
        )
    return hold_contest(
        case,
        entrants,
        device=place.device,
        options=options,
        listener=listener,
        left_out={**left_out, **notes},
    )


def attention_work(layers: nn.ModuleList, batch: Batch, *, backward: bool) -> Work:
    """Return what is timed: a batch's preparation, then its layers, each on its own input.

    Gradients go to the inputs and all parameters; they are returned, as an optimizer that starts
    from `None` would have them, and not added to others.

    Args:
        layers: of class `Sublayer`; the first prepares for all.
        batch: with an input for each of them, or more.
        backward: whether gradients are wanted.
    """
    used: list[Sublayer] = list(layers)  # type: ignore[arg-type]
    first = used[0]
    inputs = batch.inputs(first.batch_first)[: len(used)]
    tokens = batch.tokens
    if not backward:

        def forward() -> object:
            with torch.no_grad():
                prepared = first.prepare(tokens)
                for layer, x in zip(used, inputs, strict=True):
                    out = layer(x, prepared)
            return out

        return forward

    gradients = [batch.gradient(first.batch_first)] * len(used)
    parameters = [p for layer in used for p in layer.parameters() if p.requires_grad]

    def both() -> object:
        prepared = first.prepare(tokens)
        outs = [layer(x, prepared) for layer, x in zip(used, inputs, strict=True)]
        return torch.autograd.grad(outs, [*inputs, *parameters], gradients)

    return both
