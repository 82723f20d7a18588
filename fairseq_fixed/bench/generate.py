"""Translating: fairseq's beam search with models side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.utils import move_to_cuda

from fairseq_fixed.bench.contest import Entrant, Listener, TimingOptions, Work, hold_contest
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.grid import describe_lengths
from fairseq_fixed.bench.length_mix import LengthMix
from fairseq_fixed.bench.models import (
    VANILLA,
    ModelSettings,
    build_all,
    check_models,
    make_task,
    parse_systems,
)
from fairseq_fixed.bench.settings import Place
from fairseq_fixed.bench.step import make_sample
from fairseq_fixed.checkpoints import load_checkpoint
from fairseq_fixed.models import FixedTransformerModel

__all__ = ["CheckpointSettings", "GenerateSettings", "run_checkpoints", "run_generate"]


@dataclass(frozen=True)
class GenerateSettings:
    """What to measure with random weights.

    Attributes:
        mix: of lengths.
        models: which of ours, and the sizes of all.
        tokens: positions a batch of sources.
        batches: how many, drawn from all.
        target_lengths: tokens of every translation, `</s>` not counted; 0: the mean of the
            batch's targets. All models write as many: random weights end where they like.
        beam: width of the beam.
        memory: whether to measure peak memory.

    Raises:
        BenchError: what cannot be measured.
    """

    mix: LengthMix
    models: ModelSettings = field(default_factory=lambda: ModelSettings(parse_systems("7f+1l,8f")))
    tokens: Sequence[int] = (1024,)
    batches: int = 2
    target_lengths: Sequence[int] = (0,)
    beam: int = 5
    memory: bool = True

    def __post_init__(self) -> None:
        """Check."""
        if self.batches < 1:
            raise BenchError(f"{self.batches} batches: there must be at least one")
        _check_beam(self.beam)
        for length in self.target_lengths:
            if length < 0:
                raise BenchError(f"target length {length}: at least one token")

    @property
    def cases(self) -> int:
        """How many cases there are."""
        return len(self.tokens) * len(self.target_lengths)


def _check_beam(beam: int) -> None:
    if beam < 1:
        raise BenchError(f"beam {beam}: at least one")


def run_generate(
    settings: GenerateSettings, place: Place, options: TimingOptions, listener: Listener
) -> Iterator[dict[str, Any]]:
    """Measure case after case; rows have `sentences_per_second` beside their times."""
    models = settings.models
    task = make_task(models.vocabulary)
    longest = max([1024, *(length + 2 for length in settings.target_lengths)])
    listener.doing("building models")
    built = build_all(models, options.seed, max_target_positions=longest)
    for tokens in settings.tokens:
        drawn = settings.mix.sample(tokens, settings.batches, options.seed)
        samples = [
            make_sample(batch, place, models.vocabulary, options.seed + index)
            for index, batch in enumerate(drawn)
        ]
        if tokens == settings.tokens[0]:
            for model in built.values():
                model.to(place.device)
            check_models(models, built, samples[0]["net_input"])
            for model in built.values():
                _prepare(model, place, settings.beam)
        for length in settings.target_lengths:
            means = [
                length or max(1, round(sum(t for _, t in batch) / len(batch)) - 1)
                for batch in drawn
            ]
            case = {
                "length": "real",
                "tokens": tokens,
                **describe_lengths([[source for source, _ in batch] for batch in drawn]),
                "pass": "generate",
                "target_length": length or "mean",
                "written": sum(len(b) * m for b, m in zip(drawn, means, strict=True)),
                "beam": settings.beam,
                "architecture": models.architecture,
                "vocabulary": models.vocabulary,
                **vars(place),
            }
            entrants = []
            for name, model in built.items():
                generators = [
                    SequenceGenerator(
                        [model],
                        task.target_dictionary,
                        beam_size=settings.beam,
                        max_len_a=0,
                        max_len_b=mean,
                        min_len=mean,
                    )
                    for mean in means
                ]
                works = [
                    _work(generator, sample)
                    for generator, sample in zip(generators, samples, strict=True)
                ]
                listener.doing(f"{name}: checking lengths")
                _check_lengths(name, works, means)
                entrants.append(
                    Entrant(name, name != VANILLA, works, works if settings.memory else None)
                )
            yield hold_contest(
                case,
                entrants,
                device=place.device,
                options=options,
                listener=listener,
                complete=_add_rates,
            )


def _prepare(model: Any, place: Place, beam: int) -> None:
    """Make a model ready as fairseq-generate does."""
    model.to(place.torch_dtype).eval()
    generation = SimpleNamespace(
        beam=beam, no_beamable_mm=False, print_alignment=None, retain_dropout=False
    )
    model.prepare_for_inference_(SimpleNamespace(generation=generation))


def _work(generator: Any, sample: Mapping[str, Any]) -> Work:
    return lambda: generator.generate([], sample)


def _best(work: Work) -> list[Any]:
    """Translate; return each sentence's best translation, `</s>` included."""
    found: Any = work()
    return [hypotheses[0]["tokens"] for hypotheses in found]


def _check_lengths(name: str, works: Sequence[Work], lengths: Sequence[int]) -> None:
    for work, length in zip(works, lengths, strict=True):
        written = {len(best) - 1 for best in _best(work)}
        if written != {length}:
            raise BenchError(
                f"{name}: asked for translations of {length} tokens, it wrote {sorted(written)}"
            )


def _add_rates(case: dict[str, Any]) -> None:
    for row in case["rows"]:
        rate = 1000 * case["sentences"] / row["ms"]["median"]
        row["sentences_per_second"] = float(f"{rate:.5g}")


@dataclass(frozen=True)
class CheckpointSettings:
    """What to measure with trained models.

    Attributes:
        checkpoints: files of fairseq; at least one.
        data: binarised data; None: where each was trained.
        split: whose sentences.
        tokens: positions a batch.
        batches: how many, evenly from all.
        beam: width of the beam.
        max_len_a: a translation has at most `max_len_a` times its source's tokens
        max_len_b: and so many more.
        memory: whether to measure peak memory.
    """

    checkpoints: Sequence[Path]
    data: Path | None = None
    split: str = "test"
    tokens: Sequence[int] = (1024,)
    batches: int = 2
    beam: int = 5
    max_len_a: float = 1.2
    max_len_b: int = 10
    memory: bool = True

    def __post_init__(self) -> None:
        """Check."""
        if self.batches < 1:
            raise BenchError(f"{self.batches} batches: there must be at least one")
        _check_beam(self.beam)

    @property
    def cases(self) -> int:
        """How many cases there are."""
        return len(self.tokens)


def run_checkpoints(
    settings: CheckpointSettings, place: Place, options: TimingOptions, listener: Listener
) -> Iterator[dict[str, Any]]:
    """Measure trained models on real sentences; each writes what it writes.

    Yields:
        Cases whose rows have `written`, the tokens of the best translations, and
        `sentences_per_second`.

    Raises:
        BenchError: models that do not translate the same sentences.
        CheckpointError: a checkpoint that cannot be read.
    """
    listener.doing("loading checkpoints")
    loaded = [_load(path, settings.data) for path in settings.checkpoints]
    names = [_name(number, model) for number, (model, _) in enumerate(loaded)]
    for model, _ in loaded:
        model.to(place.device)
        _prepare(model, place, settings.beam)
    for tokens in settings.tokens:
        all_samples = [
            _real_samples(task, model, settings, tokens, place) for model, task in loaded
        ]
        _same_sentences(names, all_samples)
        entrants = []
        for name, (model, task), samples in zip(names, loaded, all_samples, strict=True):
            generator = SequenceGenerator(
                [model],
                task.target_dictionary,
                beam_size=settings.beam,
                max_len_a=settings.max_len_a,
                max_len_b=settings.max_len_b,
            )
            works = [_work(generator, sample) for sample in samples]
            listener.doing(f"{name}: translating")
            written = sum(len(best) for work in works for best in _best(work))
            entrants.append(
                Entrant(
                    name,
                    isinstance(model, FixedTransformerModel),
                    works,
                    works if settings.memory else None,
                    {
                        "written": written,
                        "parameters": sum(p.numel() for p in model.parameters()),
                    },
                )
            )
        lengths = [s["net_input"]["src_lengths"].tolist() for s in all_samples[0]]
        case = {
            "length": "real",
            "tokens": tokens,
            **describe_lengths(lengths),
            "pass": "generate",
            "beam": settings.beam,
            "split": settings.split,
            **vars(place),
        }
        yield hold_contest(
            case,
            entrants,
            device=place.device,
            options=options,
            listener=listener,
            complete=_add_rates,
        )


def _load(path: Path, data: Path | None) -> tuple[Any, Any]:
    from fairseq import checkpoint_utils

    load_checkpoint(path)  # says what is wrong with one that is damaged or foreign
    overrides = {} if data is None else {"data": str(data.absolute())}
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(path)], arg_overrides=overrides
        )
    except FileNotFoundError as error:
        raise BenchError(
            f"{path}: the dictionaries it was trained with are not at {error.filename}: say with "
            "--data where its binarised data is"
        ) from error
    return models[0], task


def _name(number: int, model: Any) -> str:
    """Return a name that tells models apart, without a path: `B: 7f+1l`."""
    letter = chr(ord("A") + number) if number < 26 else str(number)
    heads = [getattr(model.cfg, name, None) for name in ("encoder_heads", "decoder_heads")]
    what = " / ".join(heads_ for heads_ in heads if heads_) or "fairseq"
    if not isinstance(model, FixedTransformerModel):
        what = VANILLA
    return f"{letter}: {what}"


def _real_samples(
    task: Any, model: Any, settings: CheckpointSettings, tokens: int, place: Place
) -> list[dict[str, Any]]:
    try:
        task.load_dataset(settings.split)
    except FileNotFoundError as error:
        raise BenchError(f"no split {settings.split!r} of binarised data: {error}") from error
    iterator = task.get_batch_iterator(
        dataset=task.dataset(settings.split),
        max_tokens=tokens,
        max_positions=model.max_positions(),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=1,
        disable_iterator_cache=True,
    ).next_epoch_itr(shuffle=False)
    samples = [sample for sample in iterator if sample]
    step = max(1, len(samples) // settings.batches)
    chosen = samples[step // 2 :: step][: settings.batches]
    if torch.device(place.device).type == "cuda":
        return [move_to_cuda(sample, torch.device(place.device)) for sample in chosen]
    return chosen


def _same_sentences(names: Sequence[str], samples: Sequence[Sequence[dict[str, Any]]]) -> None:
    for name, other in zip(names[1:], samples[1:], strict=True):
        for mine, first in zip(other, samples[0], strict=True):
            same = torch.equal(mine["id"], first["id"]) and torch.equal(
                mine["net_input"]["src_tokens"], first["net_input"]["src_tokens"]
            )
            if not same:
                raise BenchError(
                    f"{names[0]} and {name} do not read the same sentences: they were trained on "
                    "other data or another vocabulary"
                )
