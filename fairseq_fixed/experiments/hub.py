"""fairseq's own Python interface to a run's model.

    from fairseq_fixed.models import FixedTransformerModel

    model = FixedTransformerModel.from_pretrained("runs/bible_es_en")
    model.translate("Y habló Jonás al pez.")

What comes back is fairseq's `GeneratorHubInterface`, raw text in and out: `translate`, `encode`,
`generate`, `decode`, `models[0]`, `cuda()`. :class:`translate.Translator` is for many lines: it
takes the recipe's beam, batches by length and divides what is too long.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_fixed.experiments import trained

__all__ = ["from_run"]


def from_run(folder: Path | str, *, system: str | None = None, seed: int | None = None) -> Any:
    """Load a model of a run, with its subwords and the search settings of its recipe.

    Args:
        folder: of the run.
        system: its name in the table, `vanilla` among them; None: the first that is not the
            baseline.
        seed: None: the run's first.

    Returns:
        fairseq's `GeneratorHubInterface`; its `translate` searches with a beam of 5 unless told
        otherwise.

    Raises:
        ExperimentError: there is no such run, system or seed, or it is not trained yet.
    """
    from fairseq.hub_utils import GeneratorHubInterface, from_pretrained

    found = trained.find(Path(folder), system=system, seed=seed)
    search = found.experiment.recipe.translate
    loaded = from_pretrained(
        str(found.checkpoint.parent.absolute()),
        found.checkpoint.name,
        trained.data_path(found.data),
        bpe="sentencepiece",
        sentencepiece_model=str(found.subwords.absolute()),
        generation_args={
            "lenpen": search.length_penalty,
            "max_len_a": search.max_len_a,
            "max_len_b": search.max_len_b,
        },
    )
    hub = GeneratorHubInterface(loaded["args"], loaded["task"], loaded["models"])
    return hub.eval()
