import pytest
from typer.testing import CliRunner

from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.profile import REST, ProfileSettings, profile_mix, shares_of
from fairseq_fixed.bench.settings import Place
from fairseq_fixed.cli import app

SMALL = {"length": 40, "tokens": 200, "width": 64, "layers": 2, "repeats": 2}


def test_operations_are_grouped_and_shares_add_up():
    shares = shares_of(
        [
            *(("aten::mm", 4.0), ("aten::addmm", 2.0), ("aten::bmm", 1.0)),
            *(("aten::_scaled_dot_product_flash_attention_for_cpu", 1.0), ("aten::copy_", 1.5)),
            ("aten::mul", 0.5),
        ]
    )
    assert [(s.group, s.share) for s in shares] == [
        ("single products", 0.6),
        ("copies and fills", 0.15),
        ("batches of products", 0.1),
        ("fused attention", 0.1),
        (REST, 0.05),
    ]
    assert shares[0].longest == ("aten::mm", "aten::addmm")
    assert sum(s.milliseconds for s in shares) == 10


def test_nothing_seen():
    with pytest.raises(BenchError, match="no operation"):
        shares_of([])


@pytest.mark.parametrize("backward", [False, True])
def test_fixed_heads_alone_never_reach_the_fused_attention(backward):
    learned, fixed = (
        {s.group: s for s in profile_mix(ProfileSettings(m, backward=backward, **SMALL), Place())}
        for m in ("8l", "8f")
    )
    assert "fused attention" in learned
    assert "fused attention" not in fixed
    for groups in (learned, fixed):
        assert groups["single products"].milliseconds > 0
        assert sum(s.share for s in groups.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"dropout": 1.0}, "dropout 1"), ({"layers": 0}, "layers 0"), ({"mix": "8f,8l"}, "one mix")],
)
def test_what_cannot_be_measured(options, message):
    with pytest.raises(BenchError, match=message):
        profile_mix(ProfileSettings(**{"mix": "8f", **SMALL, **options}), Place())


def test_the_verb_prints_a_line_a_group():
    words = ["bench", "profile", "7f+1l", "--length", "40", "--tokens", "200", "--width", "64"]
    done = CliRunner().invoke(app, [*words, "--layers", "1", "--repeats", "1"])
    assert done.exit_code == 0, done.output
    assert "single products" in done.output
    assert "fused attention" in done.output
    assert "%" in done.output
