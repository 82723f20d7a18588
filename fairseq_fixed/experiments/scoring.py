"""sacrebleu on detokenised lines and the raw reference, and paired tests of differences."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.comet_metric import CometScore
from fairseq_fixed.experiments.errors import ExperimentError

__all__ = ["compare", "make_metrics", "read_lines", "score"]


_SPACELESS = ("zh", "ja-mecab")


def read_lines(path: Path) -> list[str]:
    r"""Return a text's lines, split at `\n` alone (U+2028 and the like are part of a sentence).

    Raises:
        ExperimentError: there is no such file, or it is not UTF-8.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ExperimentError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ExperimentError(f"{path} is not UTF-8 (byte {error.start})") from error
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def make_metrics(names: Sequence[str], tokenize: str) -> dict[str, Any]:
    """Return sacrebleu's metrics by our names: `bleu`, `chrf`, `chrf++`, `ter`.

    Args:
        names: which; `comet` is for making scores of what is kept, not for scoring text.
        tokenize: BLEU's tokenizer. With that of a language without spaces between words, TER
            counts characters as words there, too.

    Raises:
        ExperimentError: an unknown name, or a tokenizer that sacrebleu cannot use here.
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    spaceless = tokenize in _SPACELESS
    makers: dict[str, Any] = {
        "bleu": lambda: BLEU(tokenize=tokenize),
        "chrf": CHRF,
        "chrf++": lambda: CHRF(word_order=2),
        "ter": lambda: TER(normalized=spaceless, asian_support=spaceless),
        "comet": CometScore,
    }
    metrics = {}
    for name in names:
        if name not in makers:
            raise ExperimentError(f"metric {name!r} is unknown; known: {', '.join(makers)}")
        try:
            metrics[name] = makers[name]()
        except (RuntimeError, ImportError, ValueError, KeyError, AssertionError) as error:
            raise ExperimentError(
                f"sacrebleu cannot tokenize with {tokenize!r}: {error}"
            ) from error
    return metrics


def _check(hypotheses: Sequence[str], reference: Sequence[str], name: str) -> None:
    if len(hypotheses) != len(reference):
        raise ExperimentError(f"{name} has {len(hypotheses)} lines, the reference {len(reference)}")
    if not reference:
        raise ExperimentError("the reference is empty: there is nothing to score")


def score(
    hypotheses: Sequence[str], reference: Sequence[str], metrics: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return by metric: `score`, sacrebleu's `signature`, and `detail` as sacrebleu prints it.

    Raises:
        ExperimentError: different numbers of lines, or none.
    """
    _check(hypotheses, reference, "the translation")
    scores = {}
    for name, metric in metrics.items():
        result = metric.corpus_score(list(hypotheses), [list(reference)])
        scores[name] = {
            "score": float(result.score),
            "signature": str(metric.get_signature()),
            "detail": str(result) if name != "comet" else f"COMET = {result.score:.2f}",
        }
    return scores


def compare(
    baseline: tuple[str, Sequence[str]],
    systems: Sequence[tuple[str, Sequence[str]]],
    reference: Sequence[str],
    metrics: Mapping[str, Any],
    *,
    bootstrap: int,
    trials: int,
) -> dict[str, Any]:
    """Test each system against the baseline, by paired bootstrap and approximate randomisation.

    Args:
        baseline: a name and its lines.
        systems: the same of the others.
        reference: the reference's lines.
        metrics: from `make_metrics`.
        bootstrap: resamples (Koehn 2004); the p-value is sacrebleu's.
        trials: trials of the randomisation (Riezler and Maxwell 2005); 0 leaves it out.

    Returns:
        `tests`: by test (`bootstrap`, `randomisation`): by metric: by name: `p` (None for the
        baseline), and for the bootstrap `mean` and `interval` (half of the 95 % interval);
        `signatures`: by test and metric.
    """
    from sacrebleu.significance import PairedTest

    for name, lines in (baseline, *systems):
        _check(lines, reference, name)
    named = [(name, list(lines)) for name, lines in (baseline, *systems)]
    kinds = [("bootstrap", "bs", bootstrap), ("randomisation", "ar", trials)]
    tests: dict[str, Any] = {}
    signatures: dict[str, Any] = {}
    for test, kind, samples in kinds:
        if samples <= 0:
            continue
        tests[test], signatures[test] = {}, {}
        for metric_name, metric in metrics.items():
            signs, columns = PairedTest(
                named, {metric_name: metric}, [list(reference)], kind, samples
            )()
            (column,) = (key for key in columns if key != "System")
            signatures[test][metric_name] = str(signs[column])
            base = columns[column][0].score
            tests[test][metric_name] = {
                name: _as_numbers(result, base)
                for (name, _), result in zip(named, columns[column], strict=True)
            }
    return {"tests": tests, "signatures": signatures}


def _as_numbers(result: Any, base: float) -> dict[str, float | None]:
    # sacrebleu counts resamples that differ by more than the systems do: none of them for equal
    # scores, which gives the smallest p there is where it should be 1.
    p = 1.0 if result.p_value is not None and result.score == base else result.p_value
    values = {"p": p, "mean": result.mean, "interval": result.ci}
    return {key: None if value is None else float(value) for key, value in values.items()}


def compare_seeds(
    folders: Mapping[str, Path], baseline: str, seeds: Sequence[int], name: str
) -> list[tuple[int, tuple[str, list[str]], list[tuple[str, list[str]]]]]:
    """Return by seed the lines of the baseline and of the others.

    Args:
        folders: by system: the folder that holds `seedN/NAME`.
        baseline: which of them is the baseline.
        seeds: the seeds.
        name: the name of the translations' file.
    """
    lines = {
        (system, seed): read_lines(folder / f"seed{seed}" / name)
        for (system, folder), seed in itertools.product(folders.items(), seeds)
    }
    others = [system for system in folders if system != baseline]
    return [
        (seed, (baseline, lines[baseline, seed]), [(s, lines[s, seed]) for s in others])
        for seed in seeds
    ]
