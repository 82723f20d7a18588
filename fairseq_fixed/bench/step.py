"""A whole training step: forward, label-smoothed loss, backward, Adam."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.optim.adam import FairseqAdam
from torch import Tensor, nn

from fairseq_fixed.bench.batches import Batch, make_tokens
from fairseq_fixed.bench.contest import Entrant, Listener, TimingOptions, Work, hold_contest
from fairseq_fixed.bench.counting import step_macs
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.grid import describe_lengths
from fairseq_fixed.bench.length_mix import LengthMix, Pair
from fairseq_fixed.bench.models import (
    VANILLA,
    ModelSettings,
    build_all,
    check_models,
    make_task,
    parse_systems,
)
from fairseq_fixed.bench.peers.fairseq_attention import FairseqAttention
from fairseq_fixed.bench.peers.weights import Projections
from fairseq_fixed.bench.settings import Place
from fairseq_fixed.bench.statistics import spread
from fairseq_fixed.heads import HeadSpec

__all__ = ["ATTENTION", "StepSettings", "add_savings", "make_sample", "run_step"]

ATTENTION = "fairseq's encoder self-attention alone"


@dataclass(frozen=True)
class StepSettings:
    """What to measure.

    Attributes:
        mix: of lengths.
        models: which of ours, and the sizes of all.
        tokens: positions a batch, source or target, as `--max-tokens`.
        batches: how many, drawn from all.
        dropouts: of attention weights; other dropouts are the options'.

    Raises:
        BenchError: what cannot be measured.
    """

    mix: LengthMix
    models: ModelSettings = field(
        default_factory=lambda: ModelSettings(parse_systems("7f+1l,8f,8xband:8"))
    )
    tokens: Sequence[int] = (2048,)
    batches: int = 4
    dropouts: Sequence[float] = (0.0, 0.1)

    def __post_init__(self) -> None:
        """Check."""
        if self.batches < 1:
            raise BenchError(f"{self.batches} batches: there must be at least one")
        for dropout in self.dropouts:
            if not 0 <= dropout < 1:
                raise BenchError(f"attention dropout {dropout:g}: from 0 to below 1")

    @property
    def cases(self) -> int:
        """How many cases there are."""
        return len(self.tokens) * len(self.dropouts)


def run_step(
    settings: StepSettings, place: Place, options: TimingOptions, listener: Listener
) -> Iterator[dict[str, Any]]:
    """Measure case after case.

    Beside the models' steps, the vanilla encoder's self-attention sublayers run alone, forward and
    backward, on inputs of the same batches: that time is what a mix can save of.

    Yields:
        What :func:`contest.hold_contest` returns, with `savings`: see :func:`add_savings`.
    """
    for tokens in settings.tokens:
        drawn = settings.mix.sample(tokens, settings.batches, options.seed)
        sources = [[source for source, _ in batch] for batch in drawn]
        samples = [
            make_sample(batch, place, settings.models.vocabulary, options.seed + index)
            for index, batch in enumerate(drawn)
        ]
        for dropout in settings.dropouts:
            case = {
                "length": "real",
                "tokens": tokens,
                **describe_lengths(sources),
                "target_positions": sum(s["target"].numel() for s in samples),
                "pass": "step",
                "attention_dropout": dropout,
                "architecture": settings.models.architecture,
                "vocabulary": settings.models.vocabulary,
                **vars(place),
            }
            listener.doing("building models")
            entrants = [
                *_entrants(settings, place, samples, dropout, options.seed),
                _attention(settings, place, samples, dropout),
            ]
            shapes = [_shape(sample) for sample in samples]
            yield hold_contest(
                case,
                entrants,
                device=place.device,
                options=options,
                listener=listener,
                complete=functools.partial(add_savings, models=settings.models, shapes=shapes),
            )


def make_sample(batch: Sequence[Pair], place: Place, vocabulary: int, seed: int) -> dict[str, Any]:
    """Return a batch as fairseq's collater makes it: sources padded on `place.side`."""
    source = make_tokens([s for s, _ in batch], place.side, vocabulary, seed)
    target = make_tokens([t for _, t in batch], "right", vocabulary, seed + 1)
    # the target moved on by one, </s> first
    previous = target.roll(1, dims=1)
    previous[:, 0] = 2
    lengths = torch.tensor([t for _, t in batch])
    previous[torch.arange(target.shape[1])[None, :] >= lengths[:, None]] = 1
    return {
        "net_input": {
            "src_tokens": source.to(place.device),
            "src_lengths": torch.tensor([s for s, _ in batch]).to(place.device),
            "prev_output_tokens": previous.to(place.device),
        },
        "target": target.to(place.device),
        "ntokens": int(lengths.sum()),
        "nsentences": len(batch),
    }


def _shape(sample: Mapping[str, Any]) -> tuple[int, int, int]:
    batch, n = sample["net_input"]["src_tokens"].shape
    return batch, n, sample["target"].shape[1]


def _entrants(
    settings: StepSettings,
    place: Place,
    samples: Sequence[dict[str, Any]],
    dropout: float,
    seed: int,
) -> Iterator[Entrant]:
    models = settings.models
    built = build_all(models, seed, attention_dropout=dropout)
    for model in built.values():
        model.to(place.device)
    check_models(models, built, samples[0]["net_input"])
    for name, model in built.items():
        step = _Step(model.train(), make_task(models.vocabulary), place)
        yield Entrant(
            name,
            name != VANILLA,
            [step.on(sample) for sample in samples],
            extra={"parameters": sum(p.numel() for p in model.parameters())},
        )


class _Step:
    """A model's training step as fairseq's trainer takes it, by fairseq's criterion and Adam.

    Other dtypes than float32 run through autocast, as with fairseq's `--amp`.
    """

    def __init__(self, model: Any, task: Any, place: Place):
        self.model = model
        self.place = place
        self.criterion = LabelSmoothedCrossEntropyCriterion(
            task, sentence_avg=False, label_smoothing=0.1
        )
        config = SimpleNamespace(
            lr=[1e-6],  # so small that training changes nothing of note
            adam_betas="(0.9, 0.98)",
            adam_eps=1e-8,
            weight_decay=1e-4,
            use_old_adam=False,
            tpu=False,
            fp16_adam_stats=False,
        )
        self.optimizer = FairseqAdam(config, [p for p in model.parameters() if p.requires_grad])

    def on(self, sample: dict[str, Any]) -> Work:
        """Return the step on a batch."""

        def step() -> object:
            with self._autocast():
                loss, size, _ = self.criterion(self.model, sample)
            self.optimizer.backward(loss)
            self.optimizer.multiply_grads(1.0 / size)
            self.optimizer.clip_grad_norm(0.0)  # computes the norm, as the trainer does
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss.detach()

        return step

    def _autocast(self) -> Any:
        if self.place.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(torch.device(self.place.device).type, self.place.torch_dtype)


def _attention(
    settings: StepSettings, place: Place, samples: Sequence[dict[str, Any]], dropout: float
) -> Entrant:
    """Return the vanilla encoder's self-attention sublayers alone, forward and backward."""
    from fairseq_fixed.bench.attention import attention_work

    args = settings.models.arguments()
    layers = nn.ModuleList(
        FairseqAttention(
            Projections.draw(args.encoder_embed_dim, i),
            args.encoder_embed_dim,
            args.encoder_attention_heads,
            dropout,
        )
        for i in range(args.encoder_layers)
    )
    layers.to(place.device).train()

    def work(sample: Mapping[str, Any]) -> Work:
        tokens: Tensor = sample["net_input"]["src_tokens"]
        batch = Batch(tokens, len(layers), args.encoder_embed_dim, torch.float32, 1)
        run = attention_work(layers, batch, backward=True)
        if place.dtype == "float32":
            return run

        def cast() -> object:
            with torch.autocast(torch.device(place.device).type, place.torch_dtype):
                return run()

        return cast

    return Entrant(ATTENTION, False, [work(sample) for sample in samples], compared=False)


def add_savings(
    case: dict[str, Any], models: ModelSettings, shapes: Sequence[tuple[int, int, int]]
) -> None:
    """Add to a case what each system saves of a vanilla step, and what it could save at most.

    `savings`, by system:

    - `counted_share`: of the vanilla step's multiply-adds, the encoder self-attention's
      (`counting.step_macs`); `counted`: the share that the mix saves
    - `measured_share`: of the vanilla step's time, that of the self-attention sublayers run alone
    - `countable`: `measured_share` times the share of self-attention's multiply-adds that the mix
      spares: what it could save of the step's time if it spared as much time as multiply-adds
    - `measured`: what it does save; and `reached`, measured over countable: each the median of
      rounds' figures with its spread. A mix can save more than is counted: softmax, attention
      dropout, masks and the optimizer's work on parameters that fixed heads lack are not.

    Args:
        case: of :func:`contest.hold_contest`; changed in place.
        models: that were measured.
        shapes: (sentences, source positions, target positions) of each batch.
    """
    seconds = {row["contender"]: row["samples_ms"] for row in case["rows"]}
    sizes = models.sizes()
    heads = models.arguments().encoder_attention_heads
    learned = [[HeadSpec("learned")] * heads] * sizes.encoder_layers
    attention, whole = (macs.total(True) for macs in step_macs(sizes, learned, shapes))
    shares = [a / s for a, s in zip(seconds[ATTENTION], seconds[VANILLA], strict=True)]
    savings = {}
    for system in models.systems:
        if system.name not in seconds:
            continue
        mixed = models.specs(system)
        spared = 1 - step_macs(sizes, mixed, shapes)[0].total(True) / attention
        measured = [
            1 - mine / vanilla
            for mine, vanilla in zip(seconds[system.name], seconds[VANILLA], strict=True)
        ]
        entry: dict[str, Any] = {
            "counted_share": round(attention / whole, 4),
            "counted": round(attention / whole * spared, 4),
            "measured_share": spread(shares).as_dict(),
            "countable": spread([share * spared for share in shares]).as_dict(),
            "measured": spread(measured).as_dict(),
        }
        if spared > 0:
            entry["reached"] = spread(
                [m / (share * spared) for m, share in zip(measured, shares, strict=True)]
            ).as_dict()
        savings[system.name] = entry
    case["savings"] = savings
