"""Whole encoders: embedding, layers, norms; ours beside fairseq's, torch's and LightConv's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_fixed.bench.batches import make_tokens
from fairseq_fixed.bench.check import check_tensors
from fairseq_fixed.bench.contest import Entrant, Listener, TimingOptions, Work, hold_contest
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.grid import Grid
from fairseq_fixed.bench.limits import matrices_note
from fairseq_fixed.bench.models import ModelSettings, make_task, parse_systems
from fairseq_fixed.bench.peers.base import PAD
from fairseq_fixed.bench.peers.encoders import TorchEncoder, build_lightconv
from fairseq_fixed.bench.settings import PASSES, Place, check_choice

__all__ = ["PEERS", "EncoderSettings", "run_encoder"]

PEERS = ("fairseq", "torch", "lightconv")


@dataclass(frozen=True)
class EncoderSettings:
    """What to measure: every combination is a case.

    Attributes:
        models: which of ours, and the sizes of all.
        grid: of batches.
        dropouts: of attention weights, in training; other dropouts are the options'.
        passes: of `settings.PASSES`; `forward` is evaluation, where no dropout works.
        peers: of `PEERS`.
        memory: whether to measure peak memory.
        limit: bytes that a contender's n×n matrices may need; None: most of what is free.

    Raises:
        BenchError: what cannot be measured.
    """

    models: ModelSettings = field(
        default_factory=lambda: ModelSettings(parse_systems("7f+1l,8f,8xband:8,8l"))
    )
    grid: Grid = field(default_factory=Grid)
    dropouts: Sequence[float] = (0.0, 0.1)
    passes: Sequence[str] = PASSES
    peers: Sequence[str] = PEERS
    memory: bool = True
    limit: int | None = None

    def __post_init__(self) -> None:
        """Check."""
        for name in self.passes:
            check_choice("pass", name, PASSES)
        for name in self.peers:
            check_choice("peer", name, PEERS)
        for dropout in self.dropouts:
            if not 0 <= dropout < 1:
                raise BenchError(f"attention dropout {dropout:g}: from 0 to below 1")

    @property
    def cases(self) -> int:
        """How many cases there are."""
        passes = sum(len(self.dropouts) if p != PASSES[0] else 1 for p in self.passes)
        return len(self.grid) * passes


class _Contender(NamedTuple):
    name: str
    ours: bool
    encoder: Any  # an nn.Module
    call: Callable[[Tensor], Tensor]  # tokens (batch, n) -> (batch, n, d)
    quadratic: bool


def run_encoder(
    settings: EncoderSettings, place: Place, options: TimingOptions, listener: Listener
) -> Iterator[dict[str, Any]]:
    """Measure case after case; yields each as :func:`contest.hold_contest` returns it."""
    # torch's own encoder uses them in evaluation
    warnings.filterwarnings("ignore", message=".*API of nested tensors.*")
    longest = max([1024, *settings.grid.lengths])
    built: dict[float, list[_Contender]] = {}
    for shape in settings.grid.shapes(options.seed):
        batches = [
            make_tokens(lengths, place.side, settings.models.vocabulary, options.seed + index).to(
                place.device
            )
            for index, lengths in enumerate(shape.lengths)
        ]
        for number, dropout in enumerate(settings.dropouts):
            if dropout not in built:
                built[dropout] = _contenders(settings, place, dropout, longest, options.seed)
            contenders = built[dropout]
            if number == 0:
                listener.doing("checking that equal functions are equal")
                _check(settings, place, contenders, batches)
            for name in settings.passes:
                if name == "forward" and number > 0:
                    continue  # evaluation has no dropout: it is measured
                case = {
                    **shape.case,
                    "pass": name,
                    "attention_dropout": 0.0 if name == "forward" else dropout,
                    "architecture": settings.models.architecture,
                    **vars(place),
                }
                yield _measure(settings, place, options, listener, contenders, case, batches)


def _contenders(
    settings: EncoderSettings, place: Place, dropout: float, longest: int, seed: int
) -> list[_Contender]:
    values: dict[str, Any] = {
        "attention_dropout": dropout,
        "max_source_positions": longest,
        # built with the model, and not used
        "decoder_layers": 1,
    }
    models = settings.models
    torch.manual_seed(seed)
    vanilla = models.build_vanilla(**values).encoder
    weights = vanilla.state_dict()
    plain = dropout > 0 and not place.fused  # torch's attention makes n×n matrices
    found: list[_Contender] = []

    def add(name: str, encoder: nn.Module, *, ours: bool = False, quadratic: bool = True) -> None:
        encoder.to(place.device, place.torch_dtype)
        call = encoder if isinstance(encoder, TorchEncoder) else _fairseq_call(encoder)
        found.append(_Contender(name, ours, encoder, call, quadratic))

    for system in models.systems:
        encoder = models.build(system, **values).encoder
        if models.is_vanilla(system):
            encoder.load_state_dict(weights)
        scored = any(spec.kind == "learned" for specs in models.specs(system) for spec in specs)
        add(system.name, encoder, ours=True, quadratic=scored and plain)
    if "torch" in settings.peers:
        # before fairseq's own, whose embedding it shares, is moved and cast
        add("torch", TorchEncoder(vanilla, models.arguments(**values)))
    if "fairseq" in settings.peers:
        add("fairseq", vanilla, quadratic=plain)
    if "lightconv" in settings.peers:
        args = models.arguments(**values)
        dictionary = make_task(models.vocabulary).source_dictionary
        embedding = models.build_vanilla(**values).encoder.embed_tokens
        add("lightconv", build_lightconv(args, dictionary, embedding))
    return found


def _fairseq_call(encoder: nn.Module) -> Callable[[Tensor], Tensor]:
    def call(tokens: Tensor) -> Tensor:
        # fairseq's collater counts lengths while it makes the batch
        return encoder(tokens, None)["encoder_out"][0].transpose(0, 1)

    return call


def _fitting(
    settings: EncoderSettings,
    place: Place,
    contenders: Sequence[_Contender],
    batches: Sequence[Tensor],
    kept: int,
) -> tuple[list[_Contender], dict[str, str]]:
    args = settings.models.arguments()
    note = matrices_note(
        [(batch.shape[0], batch.shape[1]) for batch in batches],
        heads=args.encoder_attention_heads,
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
    settings: EncoderSettings,
    place: Place,
    contenders: Sequence[_Contender],
    batches: Sequence[Tensor],
) -> None:
    """Hold equal functions together on the longest batch: fairseq's, torch's, ours all learned."""
    learned = {s.name for s in settings.models.systems if settings.models.is_vanilla(s)}
    batch = max(batches, key=lambda tokens: tokens.shape[1])
    fitting, _ = _fitting(settings, place, contenders, [batch], 0)
    same = [c for c in fitting if c.name in ("fairseq", "torch") or c.name in learned]
    outputs = {}
    for contender in same:
        contender.encoder.eval()
        with torch.no_grad():
            outputs[contender.name] = contender.call(batch)[batch.ne(PAD)]
    if not outputs:
        return
    reference = "fairseq" if "fairseq" in outputs else same[0].name
    for name, output in outputs.items():
        check_tensors(
            (name, output),
            (reference, outputs[reference]),
            function="an encoder with all heads learned",
            what="output",
            dtype=place.torch_dtype,
            shape=(batch.shape[0], batch.shape[1]),
        )


def _measure(
    settings: EncoderSettings,
    place: Place,
    options: TimingOptions,
    listener: Listener,
    contenders: Sequence[_Contender],
    case: dict[str, Any],
    batches: Sequence[Tensor],
) -> dict[str, Any]:
    backward = case["pass"] == "forward+backward"
    layers = settings.models.sizes().encoder_layers
    fitting, notes = _fitting(settings, place, contenders, batches, layers if backward else 0)
    for contender in fitting:
        contender.encoder.train(backward)
    works = {
        c.name: [_work(c, tokens, backward, place, options.seed) for tokens in batches]
        for c in fitting
    }
    entrants = [
        Entrant(c.name, c.ours, works[c.name], works[c.name] if settings.memory else None)
        for c in fitting
    ]
    return hold_contest(
        case,
        entrants,
        device=place.device,
        options=options,
        listener=listener,
        left_out=notes,
    )


def _work(contender: _Contender, tokens: Tensor, backward: bool, place: Place, seed: int) -> Work:
    if not backward:

        def forward() -> object:
            with torch.no_grad():
                return contender.call(tokens)

        return forward

    parameters = [p for p in contender.encoder.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(seed)
    d = int(contender.encoder.embed_tokens.weight.shape[1])
    gradient = torch.randn(*tokens.shape, d, generator=generator)
    gradient = gradient.to(place.device, place.torch_dtype)
    gradient = gradient.masked_fill(tokens.eq(PAD)[:, :, None], 0)

    def both() -> object:
        out = contender.call(tokens)
        return torch.autograd.grad(out, parameters, gradient, allow_unused=True)

    return both
