r"""Submits the points of a sweep to SLURM, one job of a job array each, through submitit.

    fairseq-fixed run bible_es_en -m data.limit=5k,10k,20k \
        --slurm timeout_min=240 --slurm slurm_partition=gpu --slurm gpus_per_node=1

The settings are those of submitit's `AutoExecutor.update_parameters`. A job runs one point as
`fairseq-fixed run … out=FOLDER` would; killed at its time limit and submitted again, it goes on.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from fairseq_fixed.experiments import commands
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.multirun import point_command
from fairseq_fixed.experiments.sweep import Sweep

__all__ = ["Job", "job_commands", "parse_settings", "submit"]

_LOGS = "slurm"  # in the sweep's folder: what submitit and the jobs write


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return `timeout_min=240` and the like as keys and values, numbers as numbers.

    Raises:
        ExperimentError: a word is no setting.
    """
    import yaml

    settings: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not (key and sign and value):
            raise ExperimentError(f"--slurm {word!r}: expected KEY=VALUE, as in timeout_min=240")
        settings[key] = yaml.safe_load(value)
    return settings


def job_commands(sweep: Sweep) -> dict[str, list[str]]:
    """Return by point the command of its job."""
    start = [sys.executable, "-m", "fairseq_fixed.cli"]
    return {point.name: [*start, *point_command(sweep, point), "--plain"] for point in sweep.points}


class Job:
    """What a job does; SLURM's time limit makes submitit submit it again."""

    def __init__(self, command: Sequence[str]):
        self.command = list(command)

    def __call__(self) -> None:
        """Run the command, its output in the job's log."""
        subprocess.run(self.command, check=True)

    def checkpoint(self) -> Any:
        """Return what goes on where this ends: the same command."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def submit(sweep: Sweep, words: Sequence[str]) -> dict[str, str]:
    """Submit every point.

    Args:
        sweep: the points.
        words: settings of the jobs, `KEY=VALUE`.

    Returns:
        By point the job's number.

    Raises:
        ExperimentError: submitit is not installed, there is no SLURM here, or it refuses.
    """
    try:
        import submitit
        from submitit.core.utils import FailedJobError
    except ImportError:
        raise ExperimentError(
            "--slurm needs submitit: pip install 'fairseq-fixed-attention[slurm]'"
        ) from None
    settings = parse_settings(words)
    # where the package is not installed, jobs find that of the clone
    path = shlex.quote(commands.environment(1)["PYTHONPATH"])
    setup = [f"export PYTHONPATH={path}"]
    if more := settings.pop("slurm_setup", None):  # a list, or one line
        setup += more if isinstance(more, list) else [str(more)]
    try:
        executor = submitit.AutoExecutor(folder=sweep.folder / _LOGS / "%j", cluster="slurm")
        executor.update_parameters(**{"name": sweep.name, **settings, "slurm_setup": setup})
        with executor.batch():  # one job array
            jobs = {
                name: executor.submit(Job(command)) for name, command in job_commands(sweep).items()
            }
    except (RuntimeError, NameError, ValueError, OSError, FailedJobError) as error:
        raise ExperimentError(f"SLURM takes no jobs from here: {error}") from error
    return {name: str(job.job_id) for name, job in jobs.items()}
