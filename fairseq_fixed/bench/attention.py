"""The self-attention sublayer alone: every contender on the same batches with the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from fairseq_fixed.bench.batches import Batch, fixed_lengths, make_tokens
from fairseq_fixed.bench.check import check_equal
from fairseq_fixed.bench.contest import Entrant, Listener, TimingOptions, Work, hold_contest
from fairseq_fixed.bench.errors import BenchError, UnavailableError
from fairseq_fixed.bench.length_mix import LengthMix
from fairseq_fixed.bench.limits import format_bytes, free_bytes
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

__all__ = ["PEERS", "AttentionSettings", "run_attention"]

PEERS = ("fairseq", "sdpa", "torch", "lightconv", "dense", "local-attention")

#: peers with all heads learned
_LEARNED = ("fairseq", "sdpa", "torch")


@dataclass(frozen=True)
class AttentionSettings:
    """What to measure: every combination is a case.

    Attributes:
        mixes: with commas between them.
        lengths: of sentences.
        mix: of lengths, for batches like a corpus's; None: no such case.
        batches: how many of those.
        tokens: positions a batch; max(1, tokens // length) sentences.
        width: channels d.
        heads: of every mix.
        layers: sublayers run on one batch, one after the other, each with weights and an input of
            its own: masks and layouts are made once for all of them, as in an encoder.
        dropouts: of attention weights.
        paddings: shares of the positions, for `lengths`; a mix has the padding that it has.
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
    lengths: Sequence[int] = (25, 256, 1024)
    mix: LengthMix | None = None
    batches: int = 8
    tokens: Sequence[int] = (4096,)
    width: int = 512
    heads: int = 8
    layers: int = 6
    dropouts: Sequence[float] = (0.0, 0.1)
    paddings: Sequence[float] = (0.1,)
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
        for name, number in (("layers", self.layers), ("batches", self.batches)):
            if number < 1:
                raise BenchError(f"{number} {name}: there must be at least one")
        for length in self.lengths:
            for tokens in self.tokens:
                for padding in self.paddings:
                    fixed_lengths(length, tokens, padding)
        object.__setattr__(self, "specs", parse_mixes(self.mixes, self.heads, self.width))

    @property
    def cases(self) -> int:
        """How many cases there are."""
        shapes = len(self.tokens) * (
            (self.mix is not None) + len(self.lengths) * len(self.paddings)
        )
        return shapes * len(self.dropouts) * len(self.passes)


class _Contender(NamedTuple):
    name: str
    ours: bool
    layers: nn.ModuleList
    quadratic: bool  # whether it makes n×n matrices


class _Data(NamedTuple):
    case: dict[str, Any]  # what the result says of the batches
    batches: list[Batch]


def run_attention(
    settings: AttentionSettings, place: Place, options: TimingOptions, listener: Listener
) -> Iterator[dict[str, Any]]:
    """Measure case after case; yields each as :func:`contest.hold_contest` returns it."""
    built: dict[float, tuple[list[_Contender], dict[str, str]]] = {}
    for data in _data(settings, place, options.seed):
        for number, dropout in enumerate(settings.dropouts):
            if dropout not in built:
                built[dropout] = _contenders(settings, place, dropout)
            contenders, left_out = built[dropout]
            if number == 0:
                listener.doing("checking that equal functions are equal")
                _check(settings, place, contenders, data)
            for name in settings.passes:
                yield _measure(
                    settings, place, options, listener, contenders, left_out, dropout, name, data
                )


def _data(settings: AttentionSettings, place: Place, seed: int) -> Iterator[_Data]:
    for tokens in settings.tokens:
        if settings.mix is not None:
            lengths = [
                [pair[0] for pair in batch]
                for batch in settings.mix.sample(tokens, settings.batches, seed)
            ]
            yield _make(settings, place, {"length": "real", "tokens": tokens}, lengths, seed)
        for length in settings.lengths:
            for padding in settings.paddings:
                case = {"length": length, "tokens": tokens}
                lengths = [fixed_lengths(length, tokens, padding)]
                yield _make(settings, place, case, lengths, seed)


def _make(
    settings: AttentionSettings,
    place: Place,
    case: dict[str, Any],
    lengths: list[list[int]],
    seed: int,
) -> _Data:
    batches = [
        Batch(
            make_tokens(sentences, place.side, VOCABULARY, seed + index).to(place.device),
            settings.layers,
            settings.width,
            place.torch_dtype,
            seed + index,
        )
        for index, sentences in enumerate(lengths)
    ]
    positions = sum(batch.tokens.numel() for batch in batches)
    real = sum(map(sum, lengths))
    return _Data(
        {
            **case,
            "batches": len(batches),
            "sentences": sum(map(len, lengths)),
            "positions": positions,
            "longest": max(map(max, lengths)),
            "padding": round(1 - real / positions, 4),
        },
        batches,
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

    for text, specs in settings.specs.items():
        learned = dropout > 0 and any(spec.kind == "learned" for spec in specs)
        add(
            text,
            lambda i, specs=specs: Mixed(specs, weights[i], d, dropout),
            ours=True,
            quadratic=learned,
        )
    # torch's attention makes n×n matrices on the CPU where there is dropout, and in evaluation
    # its module does so where there is none
    if "fairseq" in settings.peers:
        add(
            "fairseq",
            lambda i: FairseqAttention(weights[i], d, heads, dropout),
            quadratic=dropout > 0,
        )
    if "sdpa" in settings.peers:
        add("sdpa", lambda i: SdpaAttention(weights[i], d, heads, dropout), quadratic=dropout > 0)
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


def _matrices_bytes(batches: Sequence[Batch], heads: int, layers: int) -> int:
    """Return an estimate of what n×n matrices take: three at work, 2½ kept for a backward."""
    largest = max(b.tokens.shape[0] * b.tokens.shape[1] ** 2 for b in batches)
    return int((3 + 2.5 * layers) * largest * heads * batches[0].dtype.itemsize)


def _fitting(
    settings: AttentionSettings,
    place: Place,
    contenders: Sequence[_Contender],
    batches: Sequence[Batch],
    kept: int,
) -> tuple[list[_Contender], dict[str, str]]:
    """Split contenders into those whose matrices have room and notes on the others."""
    needed = _matrices_bytes(batches, settings.heads, kept)
    limit = free_bytes(place.device) if settings.limit is None else settings.limit
    if needed <= limit:
        return list(contenders), {}
    note = f"its n×n matrices need about {format_bytes(needed)}; {format_bytes(limit)} may be used"
    return (
        [c for c in contenders if not c.quadratic],
        {c.name: note for c in contenders if c.quadratic},
    )


def _check(
    settings: AttentionSettings, place: Place, contenders: Sequence[_Contender], data: _Data
) -> None:
    """Hold equal functions together on the case's longest batch."""
    batch = max(data.batches, key=lambda b: b.tokens.shape[1])
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
    dropout: float,
    name: str,
    data: _Data,
) -> dict[str, Any]:
    backward = name == "forward+backward"
    fitting, notes = _fitting(
        settings, place, contenders, data.batches, settings.layers if backward else 0
    )
    for contender in fitting:
        contender.layers.train(backward or dropout > 0)
    case = {
        **data.case,
        "pass": name,
        "attention_dropout": dropout,
        "width": settings.width,
        "heads": settings.heads,
        "layers": settings.layers,
        "dtype": place.dtype,
        "device": place.device,
        "side": place.side,
    }
    entrants = [
        Entrant(
            contender.name,
            contender.ours,
            [_work(contender, batch, settings.layers, backward) for batch in data.batches],
            [_work(contender, batch, 1, backward) for batch in data.batches]
            if settings.memory
            else None,
        )
        for contender in fitting
    ]
    return hold_contest(
        case,
        entrants,
        device=place.device,
        options=options,
        listener=listener,
        left_out={**left_out, **notes},
    )


def _work(contender: _Contender, batch: Batch, layers: int, backward: bool) -> Work:
    """Return what is timed: a batch's preparation, then its layers, each on its own input.

    Gradients go to the inputs and all parameters; they are returned, as an optimizer that starts
    from `None` would have them, and not added to others.
    """
    used: list[Sublayer] = list(contender.layers)[:layers]  # type: ignore[assignment]
    first = used[0]
    inputs = batch.inputs(first.batch_first)[:layers]
    tokens = batch.tokens
    if not backward:

        def forward() -> object:
            with torch.no_grad():
                prepared = first.prepare(tokens)
                for layer, x in zip(used, inputs, strict=True):
                    out = layer(x, prepared)
            return out

        return forward

    gradient = batch.gradient(first.batch_first)
    parameters = [p for layer in used for p in layer.parameters() if p.requires_grad]

    def both() -> object:
        prepared = first.prepare(tokens)
        outs = [layer(x, prepared) for layer, x in zip(used, inputs, strict=True)]
        return torch.autograd.grad(outs, [*inputs, *parameters], [gradient] * layers)

    return both
