"""Every kind of head trains through fairseq-train, saves, loads and translates.

On the embedded corpus where its modules can be had, on made-up sentences elsewhere. In one
process: starting a fairseq command costs more than the updates do.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
from pathlib import Path

import pytest

from fairseq_fixed.heads import KINDS, HeadSpec
from tests.conftest import every_spec
from tests.integration.conftest import ALL_SENTENCES, ROOT, TINY, TRAIN, run_command, sentences

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def subword_bin(tmp_path_factory) -> Path:
    """A corpus whose dictionary shows words: binarised sentencepiece pieces."""
    from fairseq_fixed.experiments.subwords import encode_file, train_subwords

    folder = tmp_path_factory.mktemp("bible")
    build = [sys.executable, "data/sword.py", "--out", folder / "raw", "--limit", "1k"]
    try:
        run_command(*build)
    except AssertionError:
        (folder / "raw").mkdir(exist_ok=True)
        for split, count, seed in (("train", 1000, 1), ("valid", 50, 2), ("test", 50, 3)):
            pairs = sentences(count, seed)
            for side, language in enumerate(("es", "en")):
                text = "".join(pair[side].replace(" ", "", 3) + "\n" for pair in pairs)
                (folder / "raw" / f"{split}.{language}").write_text(text)
    for split, most in (("valid", 40), ("test", 20)):  # enough to see that it works
        for language in ("es", "en"):
            path = folder / "raw" / f"{split}.{language}"
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:most]))
    train_files = [folder / "raw" / f"train.{language}" for language in ("es", "en")]
    size = 500 if train_files[0].stat().st_size > 50_000 else 60
    model = train_subwords(train_files, folder / "m", size)
    (folder / "pieces").mkdir()
    for split in ("train", "valid", "test"):
        for language in ("es", "en"):
            name = f"{split}.{language}"
            encode_file(model, folder / "raw" / name, folder / "pieces" / name)
    run_command(
        *("fairseq-preprocess", "-s", "es", "-t", "en", "--joined-dictionary"),
        *("--trainpref", folder / "pieces" / "train", "--validpref", folder / "pieces" / "valid"),
        *("--testpref", folder / "pieces" / "test", "--destdir", folder / "bin"),
    )
    return folder / "bin"


def in_process(monkeypatch, module: str, *args: object) -> None:
    """Run a fairseq command's entry point as its console script would."""
    # imported before fairseq sees --user-dir, the plugin's models are not found by fairseq itself
    importlib.import_module("fairseq_fixed.models")
    cli = importlib.import_module(f"fairseq_cli.{module}")
    monkeypatch.setattr(sys, "argv", [module, *map(str, args)])
    monkeypatch.chdir(ROOT)
    cli.cli_main()


@pytest.mark.parametrize("spec", every_spec(), ids=str)
def test_kind_trains_saves_loads_and_translates(
    spec: HeadSpec, subword_bin, tmp_path, monkeypatch, caplog, capsys
):
    caplog.set_level(logging.INFO)
    in_process(
        *(monkeypatch, "train", subword_bin, "--user-dir", "fairseq_fixed"),
        *("--arch", "fixed_transformer", "--encoder-heads", f"4x{spec}+4l"),
        *("--tisa-kernels", "3", "--save-dir", tmp_path, *TINY, *TRAIN),
        *("--max-update", "12", "--log-interval", "4", "--disable-validation"),
    )
    logged = [r.getMessage() for r in caplog.records if r.name == "train_inner"]
    losses = [float(json.loads(line)["loss"]) for line in logged]
    assert len(losses) == 3
    assert losses[-1] < losses[0]

    capsys.readouterr()
    in_process(
        *(monkeypatch, "generate", subword_bin, "--user-dir", "fairseq_fixed", "--cpu"),
        *("--path", tmp_path / "checkpoint_last.pt", "--beam", "2", "--max-len-b", "20"),
        *ALL_SENTENCES,
    )
    out = capsys.readouterr().out
    assert len(re.findall(r"^H-\d+\t", out, re.MULTILINE)) == 20


def test_the_table_is_walked_whole():
    assert {spec.kind for spec in every_spec()} == set(KINDS)
