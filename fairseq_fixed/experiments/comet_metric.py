"""COMET beside sacrebleu's metrics: optional, where the package and a model are there.

A COMET model (Rei et al. 2020) gives each translation a number, read with its source and its
reference; a corpus has their mean. Shown times 100, as BLEU is. Kept in millionths, so that the
tests over seeds can use it as they use counts of n-grams.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from fairseq_fixed.experiments.errors import ExperimentError

__all__ = ["Comet", "CometScore", "why_unavailable"]

_SCALE = 1_000_000
_BATCH = 16


def why_unavailable() -> str | None:
    """Return why COMET cannot be used here, and what helps; None: it can."""
    try:
        import comet
    except ImportError as error:
        return (
            f"COMET needs the package unbabel-comet ({error}): pip install unbabel-comet, or leave "
            "score.comet out"
        )
    missing = [n for n in ("download_model", "load_from_checkpoint") if not hasattr(comet, n)]
    if missing:
        return (
            f"the module comet that is installed has no {' and no '.join(missing)}: it is not "
            "unbabel-comet, or another version of it"
        )
    return None


class CometScore:
    """Makes a corpus score of kept sums; what it can do needs neither package nor model."""

    def _compute_score_from_stats(self, sums: Sequence[int]) -> SimpleNamespace:
        total, sentences = sums
        return SimpleNamespace(score=100 * total / (_SCALE * sentences))


class Comet(CometScore):
    """A COMET model with the interface that we use of sacrebleu's metrics."""

    def __init__(self, model: str, source: Sequence[str]):
        """Load a model.

        Args:
            model: a checkpoint's path, or a name that the package knows, which it downloads.
            source: the raw sources.

        Raises:
            ExperimentError: the package is not there, or the model cannot be loaded.
        """
        if reason := why_unavailable():
            raise ExperimentError(reason)
        import comet

        self.name = model
        self.source = list(source)
        self._known: tuple[list[str], list[list[int]]] | None = None
        try:
            path = model if Path(model).is_file() else comet.download_model(model)
            self._model = comet.load_from_checkpoint(path)
        except Exception as error:  # of the package, of the network, of the file
            raise ExperimentError(
                f"the COMET model {model!r} cannot be loaded ({type(error).__name__}: {error}). "
                "score.comet names a checkpoint's path, or a model of the package"
            ) from error

    def get_signature(self) -> str:
        """Return the model and the package's version."""
        from fairseq_fixed.experiments.stamps import tool_versions

        name = Path(self.name).name if Path(self.name).is_file() else self.name
        return f"model:{name}|version:{tool_versions(['unbabel-comet'])['unbabel-comet']}"

    def corpus_score(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> SimpleNamespace:
        """Return the mean over the sentences, times 100, as `score`."""
        rows = self._extract_corpus_statistics(hypotheses, references)
        return self._compute_score_from_stats([sum(column) for column in zip(*rows, strict=True)])

    def _extract_corpus_statistics(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[list[int]]:
        """Return for each sentence its score in millionths, and a one."""
        lines = list(hypotheses)
        if self._known is None or self._known[0] != lines:
            import torch

            if len(self.source) != len(lines):
                raise ExperimentError(
                    f"COMET was given {len(self.source)} sources, but {len(lines)} translations"
                )
            data = [
                {"src": source, "mt": line, "ref": reference}
                for source, line, reference in zip(self.source, lines, references[0], strict=True)
            ]
            found = self._model.predict(
                data, batch_size=_BATCH, gpus=int(torch.cuda.is_available()), progress_bar=False
            )
            self._known = (lines, [[round(_SCALE * float(score)), 1] for score in found.scores])
        return self._known[1]
