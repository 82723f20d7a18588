"""A small corpus, binarised, and models trained on it with the ordinary fairseq commands."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# what a user would put on a command line to train in seconds on a CPU
TINY = [
    *("--encoder-embed-dim", "64", "--encoder-ffn-embed-dim", "64", "--encoder-layers", "2"),
    *("--encoder-attention-heads", "8", "--decoder-layers", "1", "--decoder-attention-heads", "4"),
    *("--decoder-ffn-embed-dim", "64", "--dropout", "0.1", "--max-source-positions", "200"),
]
# fairseq 0.12.3 drops the last batch where its size is no multiple of 8, in training, validation
# and translation alike, unless it is told that any size will do
ALL_SENTENCES = ["--required-batch-size-multiple", "1"]
TRAIN = [
    *("--optimizer", "adam", "--lr", "5e-3", "--lr-scheduler", "fixed"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
    *("--max-tokens", "1000", "--log-format", "json", "--log-interval", "10", "--cpu"),
    *("--no-epoch-checkpoints", "--num-workers", "0", "--share-all-embeddings"),
    *ALL_SENTENCES,
]


@dataclass
class Result:
    """A finished command."""

    code: int
    out: str


def run_command(
    name: str, *args: object, cwd: Path = ROOT, stdin: str | None = None, fails: bool = False
) -> Result:
    """Run a console script of this interpreter; stdout, then stderr behind it."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / name), *map(str, args)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=900,
    )
    out = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, out[-4000:]
    return Result(done.returncode, out)


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs: the target names each word's neighbour before it, so that order matters."""
    generator = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = [generator.choice("abcdefghij") for _ in range(generator.randint(1, 14))]
        target = [word.upper() for word in reversed(words)]
        pairs.append((" ".join(words), " ".join(target)))
    return pairs


def train(data: Path, save: Path, arch: str, *flags: object, **kwargs) -> Result:
    return run_command(
        "fairseq-train",
        *(data, "--user-dir", "fairseq_fixed", "--arch", arch, "--save-dir", save),
        *(*TINY, *TRAIN, *flags),
        **kwargs,
    )


def generate(data_bin, checkpoint, *flags):
    """Hypotheses and scores by sentence."""
    out = run_command(
        "fairseq-generate",
        *(data_bin, "--path", checkpoint, "--user-dir", "fairseq_fixed", "--beam", "4", "--cpu"),
        # references have 14 words at most; an untrained model would write on to 200
        *("--max-len-b", "30", *ALL_SENTENCES, *flags),
    ).out
    found = re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", out, re.MULTILINE)
    return {int(i): (float(score), text) for i, score, text in found}


def assert_same_hypotheses(one, other):
    assert one.keys() == other.keys()
    for i, (score, text) in one.items():
        # near ties may fall either way
        assert text == other[i][1] or abs(score - other[i][0]) < 1e-4
        assert abs(score - other[i][0]) < 1e-3


@pytest.fixture(scope="session")
def data_bin(tmp_path_factory) -> Path:
    """The binarised corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    for split, count, seed in (("train", 1500, 1), ("valid", 60, 2), ("test", 80, 3)):
        pairs = sentences(count, seed)
        for side, language in enumerate(("xx", "yy")):
            lines = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(lines)
    run_command(
        "fairseq-preprocess",
        *("-s", "xx", "-t", "yy", "--joined-dictionary", "--destdir", folder / "bin"),
        *("--trainpref", folder / "train", "--validpref", folder / "valid"),
        *("--testpref", folder / "test"),
    )
    return folder / "bin"


@pytest.fixture(scope="session")
def fixed(data_bin, tmp_path_factory) -> Path:
    """Checkpoints of a `7f+1l` model."""
    save = tmp_path_factory.mktemp("fixed")
    train(
        *(data_bin, save, "fixed_transformer", "--encoder-heads", "7f+1l", "--max-update", "60"),
    )
    return save


@pytest.fixture(scope="session")
def vanilla(data_bin, tmp_path_factory) -> Path:
    """Checkpoints of fairseq's own transformer of the same size."""
    save = tmp_path_factory.mktemp("vanilla")
    train(data_bin, save, "transformer", "--max-update", "30")
    return save
