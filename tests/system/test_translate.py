"""Translating with a finished run: the same lines as its test set got, whatever is around them."""

import json
import logging
import subprocess
import sys

import miniature
import pytest
import yaml

from fairseq_fixed.checkpoints import CheckpointError
from fairseq_fixed.experiments import paths
from fairseq_fixed.experiments.errors import ExperimentError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translate")
    miniature.write_recipe(folder)
    longer = ("train.max_update=150", "train.save_every=50")  # so that most translations end
    miniature.run("run", "mini.yaml", *longer, cwd=folder)
    return folder / "runs/mini"


@pytest.fixture(scope="module")
def translator(run):
    from fairseq_fixed.experiments.translate import Translator

    return Translator.from_run(run, cpu=True)


def lines(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def call(*arguments, cwd, text=None, expect=0):
    done = subprocess.run(
        [sys.executable, "-m", "fairseq_fixed.cli", "translate", *arguments],
        cwd=cwd,
        env=miniature.environment(),
        input=text,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == expect, done.stderr.decode()
    return done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


def assert_agree(source, translated, expected):
    """The same, but for translations that never end: fairseq-generate cuts them by the batch."""
    triples = list(zip(source, translated, expected, strict=True))
    ended = [t for t in triples if len(t[2].split()) <= len(t[0].split()) + 3]
    assert len(ended) > len(source) / 2
    assert [found for _, found, _ in ended] == [wanted for _, _, wanted in ended]


def test_the_test_set_comes_out_as_in_the_run(run, translator):
    source = lines(run / "data/raw/test.es")
    expected = lines(run / "systems/7f-1l/seed1" / paths.HYPOTHESES)
    translated = translator.translate(source)
    assert_agree(source, translated, expected)
    assert translator.translate(source[::-1]) == translated[::-1]
    assert [translator.translate([line])[0] for line in source[:9]] == translated[:9]


@pytest.mark.parametrize("system", [None, "vanilla"])
def test_fairseqs_own_interface_gives_the_same_in_three_lines(run, system):
    from fairseq_fixed.models import FixedTransformerModel

    model = FixedTransformerModel.from_pretrained(run, system=system)
    source = lines(run / "data/raw/test.es")
    folder = run / "systems" / (system or "7f-1l") / "seed1"
    translated = model.translate(source, beam=2)
    assert_agree(source, translated, lines(folder / paths.HYPOTHESES))
    assert model.translate(source[0], beam=2) == translated[0]
    (best, *_) = model.generate(model.encode(source[0]), beam=2)
    assert model.decode(best["tokens"]) == translated[0]
    with pytest.raises(ExperimentError, match="has no seed 9"):
        FixedTransformerModel.from_pretrained(run, seed=9)


def test_a_checkpoint_without_a_run_loads_as_any_of_fairseqs(run):
    from fairseq_fixed.models import FixedTransformerModel

    model = FixedTransformerModel.from_pretrained(
        str(run / "systems/7f-1l/seed1"),
        paths.AVERAGED,
        str(run / "data/bin"),
        bpe="sentencepiece",
        sentencepiece_model=str(run / "data/subwords/model.model"),
    )
    assert len(model.models) == 1
    assert isinstance(model.translate("uno dos", beam=2), str)


def test_another_system_and_empty_lines(run):
    from fairseq_fixed.experiments.translate import Translator

    baseline = Translator.from_run(run, system="vanilla", seed=1, batch_size=3, cpu=True)
    source = lines(run / "data/raw/test.es")
    expected = lines(run / "systems/vanilla/seed1" / paths.HYPOTHESES)
    translated = baseline.translate(
        [word for line in source for word in (line, "", "  ", "\u200b\x01")]
    )
    assert_agree(source, translated[::4], expected)
    assert {*translated[1::4], *translated[2::4], *translated[3::4]} == {""}
    assert len(translated) == 4 * len(source)
    assert baseline.translate([]) == []


def test_a_line_beyond_the_positions_is_divided_at_sentence_ends(translator, monkeypatch, caplog):
    monkeypatch.setattr(translator, "longest", 12)
    sentences = ["uno dos tres.", "casa perro uno!", "seis dos uno?"]
    with caplog.at_level(logging.WARNING):
        (whole,) = translator.translate([" ".join(sentences * 3)])
    assert "line 1 is longer than 12 subwords: translated in" in caplog.text
    assert "at ends of sentences" in caplog.text
    parts = translator._parts(" ".join(sentences * 3), 1)
    assert " ".join(parts).split() == translator._encode(" ".join(sentences * 3)).split()
    assert all(len(part.split()) + 1 <= 12 for part in parts)
    assert whole.startswith(translator.translate(sentences[:1])[0].split()[0])


def test_a_sentence_beyond_the_positions_is_cut_and_the_line_named(translator, monkeypatch, caplog):
    monkeypatch.setattr(translator, "longest", 7)
    text = "uno dos tres cuatro cinco seis casa perro " * 4
    with caplog.at_level(logging.WARNING):
        outputs = translator.translate(["uno dos", text, "casa"])
    assert len(outputs) == 3 and all(outputs)
    assert "line 2 is longer than 7 subwords" in caplog.text
    assert "inside a sentence" in caplog.text
    assert outputs[0] == translator.translate(["uno dos"])[0]
    parts = translator._parts(text, 2)
    assert " ".join(parts).split() == translator._encode(text).split()


def test_the_command_translates_a_file_and_a_stream(run, translator):
    expected = translator.translate(lines(run / "data/raw/test.es"))
    output, _ = call(".", "data/raw/test.es", "--cpu", cwd=run)
    assert output.split("\n")[:-1] == expected
    text = (run / "data/raw/test.es").read_bytes().replace(b"\n", b"\r\n", 3)
    output, _ = call(".", "--system", "7f+1l", "--batch-size", "4", "--cpu", cwd=run, text=text)
    assert output.split("\n")[:-1] == expected
    assert call(".", "-", cwd=run, text=b"")[0] == ""


def test_a_line_is_answered_before_the_next_one_comes(run, translator):
    process = subprocess.Popen(
        [sys.executable, "-m", "fairseq_fixed.cli", "translate", ".", "--cpu"],
        cwd=run,
        env=miniature.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        source = lines(run / "data/raw/test.es")[:3]
        for line, answer in zip(source, translator.translate(source), strict=True):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{answer}\n"
        process.stdin.close()
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_what_cannot_be_translated_is_said(run, tmp_path):
    from fairseq_fixed.experiments.translate import Translator

    _, error = call(".", cwd=run, text=b"uno\nd\xe9s\n", expect=1)
    assert "the input, line 2, byte 2: not valid UTF-8" in error
    with pytest.raises(ExperimentError, match=r"no system '7f\+1'; did you mean '7f\+1l'\?"):
        Translator.from_run(run, system="7f+1")
    with pytest.raises(ExperimentError, match=r"has no seed 2; it has \[1\]"):
        Translator.from_run(run, seed=2)
    with pytest.raises(ExperimentError, match="is not the folder of a run"):
        Translator.from_run(tmp_path)
    (tmp_path / paths.RECIPE).write_bytes((run / paths.RECIPE).read_bytes())
    with pytest.raises(ExperimentError, match=r"is not trained yet: .*averaged\.pt is missing"):
        Translator.from_run(tmp_path)


def test_sentences_are_divided_behind_their_ends():
    from fairseq_fixed.experiments.translate import _sentences

    assert _sentences('One. "Two!" Three 3.5 four? ') == ["One. ", '"Two!" ', "Three 3.5 four? "]
    assert _sentences("彼は。「行く。」私も") == ["彼は。", "「行く。」", "私も"]


def test_a_damaged_checkpoint_is_said(run, tmp_path):
    from fairseq_fixed.experiments.translate import Translator

    for path in (paths.RECIPE, "data/bin", "data/subwords"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).symlink_to(run / path)
    checkpoint = tmp_path / "systems/7f-1l/seed1" / paths.AVERAGED
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes((run / "systems/7f-1l/seed1" / paths.AVERAGED).read_bytes()[:5000])
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        Translator.from_run(tmp_path)


def test_projected_bands_of_a_run(run):
    """All heads learned is the run's own model, and so has its score; a narrow band is another."""
    heads = yaml.safe_load((run / paths.RECIPE).read_text())["model"]["heads"]
    done = subprocess.run(
        ["bash", str(miniature.ROOT / "scripts/projected_bands.sh"), str(run)],
        env={
            **miniature.environment(),
            "MIXES": f"{heads}l {heads}xband:1",
            "PROJECTIONS": "exact",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    header, own, band = (line.split("\t") for line in done.stdout.splitlines())
    assert header == ["heads", "projection", "BLEU", "chrF"]
    scores = json.loads((run / "systems/vanilla/seed1/score.json").read_text())
    assert own[:2] == [f"{heads}l", "none"] and band[:2] == [f"{heads}xband:1", "exact"]
    assert float(own[2]) == pytest.approx(scores["bleu"]["score"], abs=0.051)
    assert float(own[3]) == pytest.approx(scores["chrf"]["score"], abs=0.051)
    folders = [
        run / f"projected/seed1.{name}" for name in (f"{heads}l.none", f"{heads}xband-1.exact")
    ]
    first, second = (lines(folder / "hypotheses.txt") for folder in folders)
    assert len(first) == len(second) and first != second
