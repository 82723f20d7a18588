"""A recipe as a bash script: the record in a run's folder, and the driver that fits any machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_fixed.experiments import commands, paths, resources
from fairseq_fixed.experiments.plan import Plan
from fairseq_fixed.experiments.recipe import Experiment, dump

__all__ = ["render_driver", "render_record"]

# Words of a driver that find the package; `r` is its module of that.
_ASK = "python -c 'from fairseq_fixed.experiments import resources as r; print(r.{}())'"


def render_record(experiment: Experiment, plan: Plan, threads: int) -> str:
    """Return `commands.sh`: what a run did on this machine, to be run again in its folder.

    Args:
        experiment: the recipe.
        plan: its stages.
        threads: CPU threads of each command.
    """
    env = commands.environment(threads)
    lines = [
        "#!/usr/bin/env bash",
        f"# {experiment.name}, made by fairseq-fixed run",
        "# Every command of the run, in an order that works, in the folder that this file lies in.",
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
        f"PLUGIN={shlex.quote(str(resources.plugin_folder()))}",
        f"DATA={shlex.quote(_data_folder())}",
        *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
        *_devices(plan),
        *_commands(experiment, plan, dump(experiment)),
    ]
    return "\n".join(lines) + "\n"


def render_driver(experiment: Experiment, plan: Plan, words: Sequence[str] = ()) -> str:
    """Return the script that `--dry-run` prints: nothing in it is of this machine.

    Args:
        experiment: the recipe.
        plan: its stages.
        words: the recipe and the overrides, as the user named them; none: the recipe's name.
    """
    words = words or [experiment.name]
    command = shlex.join(["fairseq-fixed", "run", *words, "--dry-run"])
    threads = experiment.recipe.threads
    lines = [
        "#!/usr/bin/env bash",
        f"# {experiment.name}: {experiment.recipe.description or experiment.recipe.pair}",
        "#",
        "# Its commands one after the other, without this project's runner around them. Made by:",
        f"#   {command}",
        "# Run it:",
        "#   bash THIS_FILE [FOLDER]",
        "# Started again, trainings go on from their last checkpoint.",
        "set -euo pipefail",
        "",
        "# The python that has fairseq: the clone's around this file, or the one on the PATH.",
        'CLONE=$(cd "$(dirname "${BASH_SOURCE[0]:-.}")/../.." && pwd)',
        'if [ -d "$CLONE/fairseq_fixed" ]; then',
        '  export PYTHONPATH="$CLONE${PYTHONPATH:+:$PYTHONPATH}"',
        "fi",
        'if [ -x "$CLONE/.venv/bin/python" ]; then export PATH="$CLONE/.venv/bin:$PATH"; fi',
        f"PLUGIN=$({_ASK.format('plugin_folder')})",
        f"DATA=$({_ASK.format('data_folder')})",
        "",
        f"# CPU threads of a command: {threads}, as the recipe says, or THREADS."
        if threads
        else "# CPU threads of a command: all, or THREADS.",
        f"THREADS=${{THREADS:-{threads or '$(nproc)'}}}",
        *(f'export {name}="$THREADS"' for name in commands.THREAD_VARIABLES),
        "export PYTHONUNBUFFERED=1",
        "# keep freed memory: see fairseq_fixed/experiments/commands.py",
        *(f"export {name}={value}" for name, value in commands.ALLOCATOR.items()),
        "",
        *_devices(plan),
        "",
        f"FOLDER=${{1:-runs/{experiment.name}-by-hand}}",
        'mkdir -p "$FOLDER"',
        'cd "$FOLDER"',
        *_commands(experiment, plan, dump(experiment, defaults=False)),
    ]
    return "\n".join(lines) + "\n"


def _data_folder() -> str:
    try:
        return str(resources.data_folder())
    except FileNotFoundError:
        return "data-folder-not-found"


def _devices(plan: Plan) -> list[str]:
    """Return the lines that say which GPUs there are to work with."""
    count = commands.batches(plan)
    if count is not None:
        found = "python -c 'import torch; print(max(1, torch.cuda.device_count()))'"
        return [
            f"# The GPUs of a training: all, or DEVICES. They share the {count} batches of an "
            "update.",
            f"DEVICES=${{DEVICES:-$({found})}}",
            f"if [ $(({count} % DEVICES)) != 0 ]; then",
            f'  echo "$DEVICES GPUs cannot share {count} batches: set DEVICES" >&2; exit 1',
            "fi",
        ]
    several = max(s.processes for s in plan if s.processes != "all")
    chosen = ",".join(map(str, range(several)))
    number = "one GPU" if several == 1 else f"{several} GPUs"
    return [
        f"# {number}: fairseq would take all that it sees, and a larger batch with them",
        f"export CUDA_VISIBLE_DEVICES=${{CUDA_VISIBLE_DEVICES:-{chosen}}}",
    ]


def _commands(experiment: Experiment, plan: Plan, recipe: str) -> list[str]:
    lines = commands.render_stages(plan, {paths.RECIPE: recipe})
    return [*lines, "", "# The same scores by sacrebleu's own command", *_sacrebleu(experiment)]


def _sacrebleu(experiment: Experiment) -> list[str]:
    """Return sacrebleu's commands for all systems, one for every way of counting chrF."""
    score = experiment.recipe.score
    reference = f"{paths.RAW}/test.{experiment.recipe.target}"
    hypotheses = [
        f"{paths.seed_folder(system.slug, seed)}/{paths.HYPOTHESES}"
        for seed in experiment.recipe.seeds
        for system in experiment.systems
    ]
    plain: list[str] = [metric for metric in score.metrics if metric != "chrf++"]
    kinds: list[tuple[list[str], list[str]]] = [(plain, [])] if plain else []
    if "chrf++" in score.metrics:
        kinds.append((["chrf"], ["--chrf-word-order", "2"]))
    lines = []
    for metrics, options in kinds:
        words = ["sacrebleu", reference, "-tok", experiment.tokenizer, "-m", *metrics, *options]
        text = " \\\n  ".join([shlex.join(words), f"-i {shlex.join(hypotheses)}"])
        lines.append(text)
    return lines
