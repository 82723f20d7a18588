"""Profiles of an encoder's heads and positions, and projected matrices."""

import json
import logging
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fairseq_fixed.analysis import trained
from fairseq_fixed.analysis.positions import (
    measure_positions,
    position_embeddings,
    tisa_functions,
)
from fairseq_fixed.analysis.trained import REACH, profile_heads
from fairseq_fixed.cli import app
from fairseq_fixed.layout import SequenceLayout
from tests.conftest import said
from tests.unit.models.models_common import build, tokens

HEADS = "current+previous+next+left+right+start+end+learned"
SIZES = [
    *("--encoder-layers", "2", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "48"),
    *("--encoder-attention-heads", "8", "--decoder-layers", "1", "--decoder-embed-dim", "32"),
]


def encoder_of(*flags):
    torch.manual_seed(1)
    return build(*SIZES, *flags).eval().encoder


def some(lengths=(5, 12, 30)):
    torch.manual_seed(2)
    return [tokens([n])[0] for n in lengths]


def test_fixed_heads_are_recognised_and_learned_ones_are_none_of_them():
    profiles = profile_heads(encoder_of("--encoder-heads", HEADS), some())
    assert [(p.layer, p.head) for p in profiles] == [(i, h) for i in (0, 1) for h in range(8)]
    for profile in profiles:
        if profile.kind == "learned":
            assert profile.difference > 0.1
        else:
            assert profile.pattern == profile.kind
            assert profile.difference == pytest.approx(0, abs=1e-6)


def test_offsets_within_and_entropy_of_known_patterns():
    lengths = (5, 12, 30)
    profiles = {p.kind: p for p in profile_heads(encoder_of("--encoder-heads", HEADS), some())}
    rows = sum(lengths)
    current, previous = profiles["current"], profiles["previous"]
    assert current.offsets[REACH] == 1 and sum(current.offsets) == pytest.approx(1)
    assert current.within == (1.0,) * (REACH + 1)
    # the first token of each sentence attends to nothing
    expected = (rows - len(lengths)) / rows
    assert previous.offsets[REACH - 1] == pytest.approx(expected, abs=1e-4)
    assert previous.within[0] == 0 and previous.within[1] == pytest.approx(expected, abs=1e-4)
    assert current.entropy == previous.entropy == 0


def test_a_learned_head_without_preferences_is_uniform():
    encoder = encoder_of("--encoder-heads", "8l")
    for layer in encoder.layers:
        torch.nn.init.zeros_(layer.self_attn.q_proj.weight)
        torch.nn.init.zeros_(layer.self_attn.q_proj.bias)
    for profile in profile_heads(encoder, some((8, 8))):
        assert profile.entropy == pytest.approx(3)  # of eight tokens
        assert profile.within[0] == pytest.approx(1 / 8)
        assert profile.within[10] == pytest.approx(1, abs=1e-4)


def test_a_head_that_attends_to_nothing_is_near_to_nothing():
    # not even to `left`, which is empty in a sentence of two tokens
    *empty, _ = profile_heads(encoder_of("--encoder-heads", "7xoff+1l"), some((2, 9)))[:8]
    assert {(head.pattern, head.difference) for head in empty} == {("none", 1.0)}


def test_differences_by_their_definition():
    encoder = encoder_of("--encoder-heads", "7xoff+1l")
    (tokens_,) = some((7,))
    weights = []
    module = encoder.layers[0].self_attn
    hook = module.register_forward_pre_hook(
        lambda m, inputs: weights.append(m.weights(*inputs)[0, -1].double())
    )
    with torch.no_grad():
        encoder(tokens_[None], torch.tensor([7]))
    hook.remove()
    (h,) = weights
    shift = torch.diag(torch.ones(6, dtype=torch.float64), -1)  # previous: its first row is empty
    previous = 1 - torch.minimum(h, shift).sum() / 7
    (profile,) = [p for p in profile_heads(encoder, [tokens_]) if (p.layer, p.head) == (0, 7)]
    assert profile.difference <= previous + 1e-5
    found = trained._Sums(1, 1)
    found.add(0, h[None], SequenceLayout(torch.zeros(1, 7, dtype=torch.bool)))
    index = trained.PATTERNS.index("previous")
    assert found.differences[0, 0, index] / 7 == pytest.approx(previous)


def test_no_sentences():
    with pytest.raises(ValueError, match="no sentences"):
        profile_heads(encoder_of("--encoder-heads", "8l"), [])


def test_positions_of_sinusoids_and_of_independent_ones():
    gram, *heads = measure_positions(encoder_of("--encoder-heads", "7f+1l"), 40, 2)
    assert gram.what == "E Eᵀ"
    assert gram.r2 == pytest.approx(1, abs=1e-6)
    assert [h.what for h in heads] == ["layer 0 head 7"]  # the one that scores
    learned = encoder_of("--encoder-heads", "8l", "--encoder-learned-pos")
    gram, *heads = measure_positions(learned, 100)
    assert gram.r2 == pytest.approx(32 / 132, abs=0.1)  # d / (d + n)
    assert gram.r2_off_diagonal < 0.1
    assert len(heads) == 8


def test_position_embeddings_are_what_the_encoder_adds():
    encoder = encoder_of("--encoder-heads", "8l", "--encoder-learned-pos")
    found = position_embeddings(encoder, 6)
    src = some((6,))[0][None]
    embedded, _ = encoder.forward_embedding(src)
    without = encoder.embed_scale * encoder.embed_tokens(src)
    torch.testing.assert_close(embedded[0] - without[0], found.float(), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="the encoder has"):
        position_embeddings(encoder, 100_000)
    none = encoder_of("--encoder-heads", "8l", "--no-encoder-positional-embeddings")
    assert position_embeddings(none, 6) is None
    with pytest.raises(ValueError, match="no position embeddings"):
        measure_positions(none, 6)


def test_tisa_functions_are_what_is_added_to_the_scores():
    encoder = encoder_of("--encoder-heads", "7f+1l", "--tisa-kernels", "3")
    found = tisa_functions(encoder, 4)
    assert list(found) == ["layer 0 head 7", "layer 1 head 7"]
    tisa = encoder.layers[1].self_attn.runs[-1].tisa
    matrix = tisa.matrix(5)[0]
    values = found["layer 1 head 7"]
    for i in range(5):
        for j in range(5):
            assert matrix[i, j].item() == pytest.approx(values[j - i + 4], abs=1e-4)
    assert tisa_functions(encoder_of("--encoder-heads", "8l"), 4) == {}


def run(*words):
    return CliRunner().invoke(app, ["analyse", *map(str, words)])


def test_tisas_figure(tmp_path):
    from fairseq_fixed.analysis.figures import draw_functions

    functions = tisa_functions(encoder_of("--encoder-heads", "8l", "--tisa-kernels", "2"), 5)
    assert len(functions) == 16
    assert draw_functions(functions, tmp_path / "f.png").stat().st_size > 1000


def test_matrices(tmp_path):
    torch.manual_seed(0)
    heads = torch.randn(3, 6, 6, dtype=torch.float64).softmax(-1)
    np.save(tmp_path / "m.npy", heads.numpy())
    done = run(
        "matrices", tmp_path / "m.npy", "--w", 1, "--num-pos", 1, "--json", tmp_path / "m.js"
    )
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "m.js").read_text())
    outside = [sum(float(h[i, j]) for i in range(6) for j in range(6) if abs(i - j) > 1)
               for h in heads]  # fmt: skip
    assert [c["band"] for c in content] == pytest.approx(outside)
    assert all(c["band_sparse"] < c["band"] < c["distance"] for c in content)
    assert [c["head"] for c in content] == [0, 1, 2]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda p: np.save(p, np.full((2, 3), 0.5)), "not (heads, n, n)"),
        (lambda p: np.save(p, np.zeros((2, 0, 0))), "not (heads, n, n)"),
        (lambda p: np.save(p, np.full((2, 2), math.nan)), "finite and not negative"),
        (lambda p: np.save(p, -np.eye(2)), "finite and not negative"),
        (lambda p: np.save(p, np.array([["a"]])), "a .npy file of numbers"),
        (lambda p: p.write_text("no"), "a .npy file of numbers"),
        (lambda p: p.write_bytes(b""), "a .npy file of numbers"),
        (lambda p: np.savez(p.open("wb"), a=np.eye(2)), "a .npy file of numbers"),
    ],
)
def test_what_are_no_matrices(tmp_path, write, message):
    write(tmp_path / "x.npy")
    done = run("matrices", tmp_path / "x.npy")
    assert done.exit_code == 2
    assert message in said(done)


def test_an_unreadable_split_is_no_crash():
    task = SimpleNamespace(load_dataset=lambda split: (_ for _ in ()).throw(FileNotFoundError("x")))
    with pytest.raises(trained.CheckpointError, match="no binarised split"):
        trained.read_sentences(task, "valid", 1)


def test_fairseq_logs_as_before_once_a_command_has_ended(tmp_path):
    before = logging.getLogger("fairseq").level
    np.save(tmp_path / "m.npy", np.eye(4))
    assert run("matrices", tmp_path / "m.npy").exit_code == 0
    assert run("matrices", tmp_path / "none.npy").exit_code == 2
    assert logging.getLogger("fairseq").level == before != logging.WARNING
