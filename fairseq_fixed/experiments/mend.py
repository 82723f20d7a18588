"""Makes the checkpoints of an interrupted training fit to go on from.

fairseq writes a numbered checkpoint safely (under another name, then renamed) and then *copies* it
to `checkpoint_last.pt`, from which it resumes. A kill during the copy leaves half a file there.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

from fairseq_fixed.experiments.convergence import since_best
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.training_log import read_training_log

__all__ = ["checkpoints_to_average", "has_ended", "mend", "updates_of"]

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"
_NUMBERED = re.compile(r"checkpoint_\d+_(\d+)\.pt")


def updates_of(checkpoint: Path) -> int | None:
    """Return how many updates a checkpoint has seen, or None if it cannot be loaded."""
    from fairseq_fixed.checkpoints import load_checkpoint

    try:
        state = load_checkpoint(checkpoint)
        return int(state["optimizer_history"][-1]["num_updates"])
    except Exception as error:  # whatever a damaged file makes torch raise
        logger.debug("%s: %s", checkpoint, error)
        return None


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints that fairseq wrote at regular updates, the newest first."""
    found = [(_NUMBERED.fullmatch(path.name), path) for path in folder.glob("checkpoint_*.pt")]
    return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)


def mend(folder: Path) -> int:
    """Remove what is half written, and make `checkpoint_last.pt` the newest that loads.

    Args:
        folder: the training's `--save-dir`.

    Returns:
        The updates after which the training goes on; 0: from the start.
    """
    for draft in folder.glob("*.tmp"):
        logger.info("removing the half-written %s", draft.name)
        draft.unlink()
    last = folder / LAST
    updates = updates_of(last) if last.exists() else None
    if last.exists() and updates is None:
        logger.warning("%s is damaged, the training was killed while it was written", last.name)
        last.unlink()
    for count, path in numbered(folder):
        if updates is not None and count <= updates:
            break
        if updates_of(path) is None:
            logger.warning("%s is damaged and removed", path.name)
            path.unlink()
            continue
        logger.warning("going on from %s instead", path.name)
        draft = last.with_name(f"{LAST}.tmp")
        shutil.copyfile(path, draft)
        draft.replace(last)
        updates = count
        break
    best = folder / "checkpoint_best.pt"
    if best.exists() and updates_of(best) is None:
        logger.warning("%s is damaged and removed", best.name)
        best.unlink()
    if updates is None:
        logger.warning("no checkpoint can be loaded: the training starts again")
        return 0
    logger.info("the training goes on after update %d", updates)
    return updates


def has_ended(log: Path, updates: int, patience: int = 0) -> bool:
    """Return whether a training had ended before all its updates when it wrote its last checkpoint.

    By its time, or by `--patience`, of which fairseq keeps no account in checkpoints: resumed, it
    would count from none again.

    Args:
        log: of the training.
        updates: of its last checkpoint.
        patience: validations without a better loss; 0: any number.
    """
    known = read_training_log(log)
    if known.finished and known.ended in ("hours", "patience") and known.updates <= updates:
        return True
    valid = known.valid if patience else {}
    losses = [valid[u]["loss"] for u in sorted(valid) if u <= updates and "loss" in valid[u]]
    return bool(losses) and since_best(losses) >= patience


def checkpoints_to_average(folder: Path, count: int) -> list[Path]:
    """Return the newest `count` checkpoints, the newest first.

    `checkpoint_last.pt` counts where its updates have no numbered file: at an epoch's end fairseq
    writes none.

    Raises:
        ExperimentError: there is none.
    """
    files = numbered(folder)
    last = folder / LAST
    if last.exists():
        updates = updates_of(last)
        if updates is not None and (not files or updates > files[0][0]):
            files.insert(0, (updates, last))
    if not files:
        raise ExperimentError(f"there is no checkpoint in {folder}: the training has not saved any")
    return [path for _, path in files[:count]]
