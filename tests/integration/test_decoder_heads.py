"""`--decoder-heads` through the ordinary fairseq commands: trained, resumed, decoded, scored."""

from __future__ import annotations

import pytest

from fairseq_fixed.checkpoints import load_checkpoint
from tests.integration.conftest import (
    assert_same_hypotheses,
    generate,
    run_command,
    sentences,
    train,
)

pytestmark = pytest.mark.slow

MIX = "current+2xprevious+left+start+band:2+2l"  # states of every form: sums, few values, a cache
FLAGS = (
    *("--encoder-heads", "7f+1l", "--decoder-heads", MIX, "--decoder-attention-heads", "8"),
    *("--seed", "3"),
)


@pytest.fixture(scope="module")
def trained(data_bin, tmp_path_factory):
    """A checkpoint, in two goes."""
    save = tmp_path_factory.mktemp("decoder")
    for updates in (30, 300):
        train(data_bin, save, "fixed_transformer", *FLAGS, "--max-update", updates)
    return save / "checkpoint_last.pt"


def test_both_mixes_are_saved_and_go_on(trained):
    state = load_checkpoint(trained)
    assert state["cfg"]["model"].encoder_heads == "7f+1l"
    assert state["cfg"]["model"].decoder_heads == MIX
    assert state["optimizer_history"][-1]["num_updates"] == 300
    # one band and two learned heads of eight dimensions ask; the others have no queries
    assert state["model"]["decoder.layers.0.self_attn.q_proj.weight"].shape == (24, 64)


def test_a_beams_scores_are_those_of_its_sentences_read_at_once(data_bin, trained, tmp_path):
    found = generate(data_bin, trained, "--batch-size", 40)
    assert len(found) == 80
    assert len({text for _, text in found.values()}) > 40  # it says different things
    assert_same_hypotheses(found, generate(data_bin, trained, "--batch-size", 1))

    # The hypotheses as references, which fairseq scores without writing them token by token.
    source = [pair[0] for pair in sentences(80, 3)]  # the corpus's test set, in order
    written = {i: (score, text) for i, (score, text) in found.items() if text}
    for side, texts in (
        ("xx", [source[i] for i in written]),
        ("yy", [text for _, text in written.values()]),
    ):
        (tmp_path / f"test.{side}").write_text("".join(text + "\n" for text in texts))
    dictionary = data_bin / "dict.xx.txt"
    run_command(
        *("fairseq-preprocess", "-s", "xx", "-t", "yy", "--joined-dictionary"),
        *("--srcdict", dictionary, "--testpref", tmp_path / "test", "--destdir", tmp_path / "bin"),
    )
    read = generate(tmp_path / "bin", trained, "--score-reference", "--batch-size", 40)
    assert len(read) == len(written) > 40
    for place, (score, text) in enumerate(written.values()):
        assert read[place][1] == text
        assert read[place][0] == pytest.approx(score, abs=1e-3)


def test_a_kind_that_looks_ahead_stops_before_training(data_bin, tmp_path):
    flags = ("--decoder-heads", "4xnext+4l", "--decoder-attention-heads", "8")
    out = train(data_bin, tmp_path, "fixed_transformer", *flags, fails=True).out
    assert "next" in out.splitlines()[-1]
