"""sacrebleu on detokenised lines and the raw reference, and paired tests of differences."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments import tokenizers
from fairseq_fixed.experiments.comet_metric import CometScore
from fairseq_fixed.experiments.counts import count
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.randomisation import paired_randomisation

__all__ = ["SEED", "compare", "make_metrics", "read_lines", "score"]


SEED = 12345  # of the tests' random numbers, as sacrebleu has it: a test made again is the same


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

    spaceless = tokenize in tokenizers.SPACELESS
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
        except tokenizers.ERRORS as error:
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
        bootstrap: resamples (Koehn 2004); 0 leaves it out. The p-value is sacrebleu's, which looks
            at one side: half of a two-sided one, or less.
        trials: trials of the randomisation (Riezler and Maxwell 2005); 0 leaves it out. Two-sided.

    Returns:
        `tests`: by test (`bootstrap`, `randomisation`): by metric: by name: `p` (None for the
        baseline), and for the bootstrap `mean` and `interval` (half of the 95 % interval);
        `signatures`: by test and metric.
    """
    named = [(name, list(lines)) for name, lines in (baseline, *systems)]
    for name, lines in named:
        _check(lines, reference, name)
    found = []
    if bootstrap > 0:
        found.append(("bootstrap", *_bootstrap(named, reference, metrics, bootstrap)))
    if trials > 0:
        found.append(("randomisation", *_randomise(named, reference, metrics, trials)))
    return {
        "tests": {test: values for test, values, _ in found},
        "signatures": {test: signatures for test, _, signatures in found},
    }


def _bootstrap(
    named: Sequence[tuple[str, Sequence[str]]],
    reference: Sequence[str],
    metrics: Mapping[str, Any],
    resamples: int,
) -> tuple[dict[str, Any], dict[str, str]]:
    from sacrebleu.significance import PairedTest

    tests: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    for metric_name, metric in metrics.items():
        test = PairedTest(named, {metric_name: metric}, [list(reference)], "bs", resamples)
        signs, columns = test()
        (column,) = (key for key in columns if key != "System")
        signatures[metric_name] = str(signs[column])
        base = columns[column][0].score
        tests[metric_name] = {
            name: _as_numbers(result, base)
            for (name, _), result in zip(named, columns[column], strict=True)
        }
    return tests, signatures


def _as_numbers(result: Any, base: float) -> dict[str, float | None]:
    # sacrebleu counts resamples that differ by more than the systems do: none of them for equal
    # scores, which gives the smallest p there is where it should be 1.
    p = 1.0 if result.p_value is not None and result.score == base else result.p_value
    values = {"p": p, "mean": result.mean, "interval": result.ci}
    return {key: None if value is None else float(value) for key, value in values.items()}


def _randomise(
    named: Sequence[tuple[str, Sequence[str]]],
    reference: Sequence[str],
    metrics: Mapping[str, Any],
    trials: int,
) -> tuple[dict[str, Any], dict[str, str]]:
    (base_name, base_lines), *systems = named
    base = count(base_lines, reference, metrics)
    tests: dict[str, Any] = {metric: {base_name: {"p": None}} for metric in metrics}
    for name, lines in systems:
        counts = count(lines, reference, metrics)
        for metric_name, metric in metrics.items():
            p = paired_randomisation(
                metric, base[metric_name], counts[metric_name], trials=trials, seed=SEED
            )
            tests[metric_name][name] = {"p": p}
    signatures = {}
    for metric_name, metric in metrics.items():
        signature = metric.get_signature()
        signature.update("seed", str(SEED))
        signature.update("ar", trials)
        signatures[metric_name] = str(signature)
    return tests, signatures


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
