import pytest
import torch

from fairseq_fixed.layout import SequenceLayout
from tests.conftest import make_layout, make_mask


@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_count_inside_the_sentence(side):
    layout = make_layout([3, 5, 1], side)
    assert layout.length.tolist() == [3, 5, 1]
    assert layout.start.tolist() == ([2, 0, 4] if side == "left" else [0, 0, 0])
    assert layout.last.tolist() == ([4, 4, 4] if side == "left" else [2, 4, 0])
    for b in range(3):
        inside = layout.inside[:, b]
        assert layout.position[inside, b].tolist() == list(range(layout.length[b]))
        assert inside.tolist() == (~make_mask([3, 5, 1], 5, side)[b]).tolist()


def test_no_padding_needs_no_mask():
    tokens = torch.randint(4, 9, (2, 6))
    layout = SequenceLayout.from_tokens(tokens, pad=1)
    assert layout.padding_mask is None
    assert layout.hidden is None
    assert layout.key_mask is None
    assert layout.length.tolist() == [6, 6]
    assert layout.visible.all()


def test_padding_symbol_inside_a_sentence_keeps_its_position():
    layout = SequenceLayout.from_tokens(torch.tensor([[1, 5, 1, 6, 2]]), pad=1)
    assert layout.start.tolist() == [1]
    assert layout.length.tolist() == [4]
    assert layout.position[:, 0].tolist() == [-1, 0, 1, 2, 3]
    assert not layout.visible[0, :, 2].any()


def test_a_row_of_padding_has_length_zero():
    layout = SequenceLayout.from_tokens(torch.tensor([[1, 1], [5, 2]]), pad=1)
    assert layout.length.tolist() == [0, 2]
    assert not layout.inside[:, 0].any()
    assert layout.key_mask is not None
    assert layout.key_mask[0].all()  # a softmax over it must stay finite


def test_memo_computes_once():
    layout = make_layout([2, 3])
    calls = []
    for _ in range(3):
        layout.memo(("a", torch.float32), lambda: calls.append(1))
    layout.memo(("a", torch.float64), lambda: calls.append(2))
    assert calls == [1, 2]


def test_errors():
    with pytest.raises(ValueError, match="shape"):
        SequenceLayout(None)
    with pytest.raises(ValueError, match=r"\(batch, n\)"):
        SequenceLayout(torch.zeros(2, 3, 4, dtype=torch.bool))
