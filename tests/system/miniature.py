"""A miniature recipe for system tests: made-up text, one layer, a few updates."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SOURCE = ("uno", "dos", "tres", "cuatro", "cinco", "seis", "casa", "perro")
TARGET = ("one", "two", "three", "four", "five", "six", "house", "dog")

RECIPE = """\
pair: es-en
data: {kind: custom, train: [all.tsv], held_out: 29}
subwords: {size: 50}
model: {layers: 1, dim: 32, ffn: 64, heads: 8, dropout: 0.1}
train:
  {max_update: 40, lr: 0.01, warmup_updates: 20, save_every: 5, average: 3, log_every: 5,
   max_tokens: 1024}
translate: {beam: 2, max_tokens: 2000}
score: {bootstrap: 50, trials: 100}
systems: [vanilla, 7f+1l]
threads: 1
samples: 2
"""


def write_recipe(folder: Path) -> Path:
    """Write a parallel text that can be translated word by word, and a recipe for it."""
    words = random.Random(0)
    pairs: dict[str, str] = {}
    while len(pairs) < 500:
        chosen = [words.randrange(len(SOURCE)) for _ in range(words.randint(2, 9))]
        pairs[" ".join(SOURCE[i] for i in chosen)] = " ".join(TARGET[i] for i in chosen)
    text = "".join(f"{source}\t{target}\n" for source, target in pairs.items())
    (folder / "all.tsv").write_text(text, encoding="utf-8")
    recipe = folder / "mini.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    return recipe


def environment() -> dict[str, str]:
    """Return an environment in which the clone's package is found without installation."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def path() -> str:
    """Return a PATH on which this interpreter's commands come first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def start(*arguments: str, cwd: Path) -> subprocess.Popen:
    """Start `fairseq-fixed` in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "fairseq_fixed.cli", *arguments],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*arguments: str, cwd: Path, expect: int = 0) -> str:
    """Run `fairseq-fixed` in a folder, check its exit status and return what it printed."""
    process = start(*arguments, cwd=cwd)
    output, _ = process.communicate(timeout=2400)
    assert process.returncode == expect, output
    return output
