"""A contrastive test set put to the models of a run, or to a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments import trained
from fairseq_fixed.experiments.contrast import Judgement, judge, tally
from fairseq_fixed.experiments.contrast_pairs import read_items
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.subwords import encode_lines

__all__ = ["Contrast", "run_contrast"]

logger = logging.getLogger(__name__)


@dataclass
class Contrast:
    """What came out.

    Attributes:
        report: plain data: `file`, `score`, and `models` with their counts.
        names: of the models, in their order.
        judged: each model's scores, in the same order.
    """

    report: dict[str, Any]
    names: list[str] = field(default_factory=list)
    judged: list[list[Judgement]] = field(default_factory=list)


def run_contrast(
    where: Path,
    file: Path,
    *,
    system: str | None = None,
    seed: int | None = None,
    data: Path | None = None,
    subwords: Path | None = None,
    how: str = "mean",
    max_tokens: int = 4000,
    cpu: bool = False,
) -> Contrast:
    """Score a contrastive test set with all models of a run that are trained, or with one.

    Args:
        where: the run's folder, or a checkpoint of fairseq-train.
        file: the test set, of `contrast_pairs.read_items`.
        system: of a run, only this one.
        seed: of a run, only this one.
        data: for a checkpoint: the folder of its dictionaries.
        subwords: for a checkpoint: its sentencepiece model; None: the test set is in subwords.
        how: `mean` or `sum` of a translation's log-probabilities.
        max_tokens: subwords a batch.
        cpu: do without a GPU that is there.

    Raises:
        ExperimentError: the test set, the run or the checkpoint is not there or not usable.
        CheckpointError: a checkpoint is damaged, or holds what could run code.
    """
    items = read_items(file)
    contrast = Contrast({"file": file.name, "score": how, "models": []})

    def encode_with(model: Path | None) -> Any:
        def encode(lines: Iterable[str]) -> Iterable[str]:
            return lines if model is None else encode_lines(model, lines)

        return encode

    def add(name: dict[str, Any], label: str, *args: Any, longest: int | None) -> None:
        checkpoint, folder, pieces = args
        logger.info("%s scores %d sentences", label, len(items))
        judged = judge(
            trained.load(checkpoint, folder, cpu=cpu),
            items,
            how=how,
            encode=encode_with(pieces),
            max_tokens=max_tokens,
            longest=longest,
        )
        contrast.report["models"].append({**name, **tally(judged)})
        contrast.names.append(label)
        contrast.judged.append(judged)

    if where.is_file() and where.suffix == ".pt":
        if system is not None or seed is not None:
            raise ExperimentError("--system and --seed belong to a run's folder, not a checkpoint")
        if data is None or not any(data.glob("dict.*.txt")):
            raise ExperimentError(
                "a checkpoint needs --data, the folder of its dictionaries (fairseq-preprocess's "
                "--destdir)" + ("" if data is None else f": {data} is none")
            )
        if subwords is not None and not subwords.is_file():
            raise ExperimentError(f"there is no sentencepiece model {subwords}")
        add({"system": where.name, "seed": None}, where.name, where, data, subwords, longest=None)
        return contrast
    if data is not None or subwords is not None:
        raise ExperimentError("--data and --subwords belong to a checkpoint, not a run's folder")
    for one in trained.find_all(where, system=system, seed=seed):
        add(
            {"system": one.system.name, "seed": one.seed},
            f"{one.system.name}, seed {one.seed}",
            one.checkpoint,
            one.data,
            one.subwords,
            longest=one.experiment.recipe.model.max_positions,
        )
    return contrast
