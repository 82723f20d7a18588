import struct

import pytest

from fairseq_fixed.experiments import curves


def size(path):
    """Width and height of a PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return struct.unpack(">II", data[16:24])


def run(slug, seed, bleu=False, points=5, wall=True):
    curve = [
        {"update": 10 * i, "loss": 9 - i, "nll_loss": 8 - i}
        | ({"wall": 60.0 * i} if wall else {})
        | ({"bleu": 3.0 * i} if bleu else {})
        for i in range(points)
    ]
    return {"system": slug.upper(), "slug": slug, "seed": seed, "curve": curve}


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn on each axes: (labels, lines) by place."""
    from matplotlib import pyplot

    seen = []
    monkeypatch.setattr(
        curves, "save_figure", lambda figure, path: seen.append((figure, pyplot.close(figure)))
    )
    return seen


def test_all_seeds_in_one_figure_by_updates_and_by_time(drawn, tmp_path):
    results = [run("a", 1), run("a", 2), run("b", 1)]
    curves.draw_curves(results, tmp_path / "x.png", baseline="a")
    (figure, _), *_ = drawn
    by_updates, by_time = figure.axes
    lines = [line for line in by_updates.lines if len(line.get_xdata()) == 5]
    assert len(lines) == 3
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    assert list(lines[0].get_xdata()) == [0, 10, 20, 30, 40]
    assert list(lines[0].get_ydata()) == [8, 7, 6, 5, 4]
    assert list(by_time.lines[0].get_xdata()) == [0, 1, 2, 3, 4]  # minutes
    assert [text.get_text() for text in by_updates.get_legend().get_texts()] == ["A", "B"]
    levels = [line for line in by_updates.lines if line.get_linestyle() == ":"]
    assert [line.get_ydata()[0] for line in levels] == [4, 4]  # the baseline's best, of each seed


def test_the_first_fall_does_not_hide_the_rest(drawn, tmp_path):
    curve = [{"update": i, "loss": 100 / (i + 1)} for i in range(24)]
    one = {"system": "a", "slug": "a", "seed": 1, "curve": curve}
    curves.draw_curves([one], tmp_path / "x.png")
    low, high = drawn[0][0].axes[0].get_ylim()
    assert low < 100 / 24 and 25 < high < 100 / 3  # from the fourth validation of 24 on
    curves.draw_curves([run("a", 1)], tmp_path / "x.png")  # five validations: all of them
    assert drawn[1][0].axes[0].get_ylim()[1] > 8


def test_scores_have_a_row_of_their_own(drawn, tmp_path):
    curves.draw_curves([run("a", 1), run("b", 1, bleu=True)], tmp_path / "x.png")
    (figure, _), *_ = drawn
    assert len(figure.axes) == 4
    assert [line for line in figure.axes[2].lines if len(line.get_xdata()) == 5]
    assert figure.axes[2].get_ylabel() == "validation BLEU"


def test_without_times_or_validations(tmp_path):
    results = [run("a", 1, wall=False), run("b", 1, points=0)]
    curves.draw_curves(results, tmp_path / "new/x.png", title="t", baseline="b")
    low = size(tmp_path / "new/x.png")
    curves.draw_curves([*results, run("c", 1, bleu=True)], tmp_path / "y.png")
    assert size(tmp_path / "y.png")[1] > 1.5 * low[1]
    assert not list(tmp_path.rglob("*.tmp"))
