import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from fairseq_fixed.heads import (
    KINDS,
    SETS,
    HeadsError,
    HeadSpec,
    format_heads,
    format_mix,
    keep_layers,
    parse_heads,
    parse_mix,
)
from tests.conftest import example_spec

PLAIN = [kind for kind in KINDS if not KINDS[kind].arguments]


def kinds(text: str) -> list[str]:
    return [spec.kind for spec in parse_mix(text)]


def test_sets_are_the_papers_patterns():
    # PAPERS.md section 1: seven patterns and one learned head; `last` is the eighth pattern
    assert kinds("7f+1l") == [*SETS["7f"], "learned"]
    assert kinds("8f") == [*SETS["7f"], "last"]
    assert kinds("3l") == ["learned"] * 3
    assert set(SETS["7f"]) == {"current", "previous", "next", "left", "right", "start", "end"}


def test_counts_and_words():
    assert kinds("2x7f+2l") == [*SETS["7f"], *SETS["7f"], "learned", "learned"]
    assert kinds("4xlearned+4xprevious") == ["learned"] * 4 + ["previous"] * 4
    assert parse_mix("7fw+1l")[0] == HeadSpec("current", words=True)
    assert parse_mix("previousw") == (HeadSpec("previous", words=True),)
    assert not parse_mix("7fw+1l")[-1].words


def test_a_pattern_switched_off_keeps_its_slot():
    assert kinds("7f-previous+1l") == ["current", "off", *SETS["7f"][2:], "learned"]
    assert kinds("8f-last-left") == [k if k not in ("last", "left") else "off" for k in SETS["8f"]]
    assert parse_mix("7fw-start")[0].words


def test_layers():
    specs = parse_heads("0-1@7f+1l/2@8l", layers=3, heads=8)
    assert [format_mix(layer) for layer in specs][1:] == [format_mix(specs[0]), "8xlearned"]
    assert len(specs) == 3


mixes = st.lists(st.sampled_from([example_spec(kind) for kind in KINDS]), min_size=8, max_size=8)


@given(st.lists(mixes, min_size=1, max_size=5))
def test_format_is_the_inverse_of_parse(layers):
    specs = tuple(tuple(layer) for layer in layers)
    text = format_heads(specs)
    assert parse_heads(text, layers=len(specs), heads=8) == specs


@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
    st.integers(0, 10**12),
)
def test_numbers_survive(offset, sigma, width):
    specs = (HeadSpec("gaussian", (offset, sigma)), HeadSpec("band", (width, 0)))
    assert parse_mix(format_mix(specs)) == specs


@given(st.lists(mixes, min_size=1, max_size=5))
def test_needs_no_quoting(layers):
    text = format_heads(tuple(tuple(layer) for layer in layers))
    # bash: no character that a shell would expand or split at; argparse: no leading dash
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz_0123456789:+-@/.")
    assert not text.startswith("-")
    override = OverridesParser.create().parse_override(f"model.encoder_heads={text}")
    assert override.value() == text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("7f+1lerned", ["1lerned", "unknown"]),
        ("7f+lerned", ["lerned", "Did you mean 'learned'"]),
        ("previus+7l", ["previus", "Did you mean 'previous'"]),
        ("7f", ["7 heads", "has 8"]),
        ("8f+1l", ["9 heads", "has 8"]),
        ("6f+2l", ["6f", "7f and 8f"]),
        ("7f-prevoius+1l", ["prevoius", "Did you mean 'previous'"]),
        ("7f-left-left+1l", ["left off twice"]),
        ("gaussian:1e300:1+7l", ["OFFSET", "out of range"]),
        ("7f-last+1l", ["'last'", "It has: current"]),
        ("7f-+1l", ["7f-"]),
        ("band+7l", ["takes 1 to 2", "0 given", "W (integer >= 0)", "K (integer >= 0, default 0)"]),
        ("band:-1+7l", ["W = -1", "out of range"]),
        ("band:1.5+7l", ["W is '1.5'"]),
        ("7f++1l", ["empty item"]),
        ("7f+", ["empty item"]),
        ("0x7f+8l", ["0x7f", "no head"]),
        ("0l+8f", ["0l", "no head"]),
        ("7f+learnedw", ["learned", "no word-based form"]),
        ("7f+learned:3", ["takes 0", "1 given"]),
        ("0-1@8l", ["nothing of layers 2"]),
        ("0-3@8l", ["0-3", "3 layers"]),
        ("2-0@8l/1@8l", ["2-0"]),
        ("0-2@8l/1@8f", ["layer 1", "twice"]),
        ("a@8l", ["'a'", "names no layers"]),
        ("0@8l/8f", ["'8f'", "names no layers"]),
        ("", ["expected a mix"]),
    ],
)
def test_errors_name_the_part(text, parts):
    with pytest.raises(HeadsError) as caught:
        parse_heads(text, layers=3, heads=8)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(("layers", "heads"), [(0, 8), (2, 0)])
def test_an_encoder_without_heads(layers, heads):
    with pytest.raises(HeadsError, match="has none"):
        parse_heads("8l", layers=layers, heads=heads, embed_dim=64)


def test_embedding_that_the_heads_do_not_divide():
    with pytest.raises(HeadsError, match=r"100 is not divisible by 8"):
        parse_heads("8l", layers=1, heads=8, embed_dim=100)


@pytest.mark.parametrize("kind", [k for k in KINDS if KINDS[k].arguments])
def test_wrong_arguments_name_the_kind_and_the_ranges(kind):
    required = sum(a.default is None for a in KINDS[kind].arguments)
    wrong = [":".join([kind, *["x"] * max(required, 1)]), kind + ":1" * 9]
    if required:
        wrong.append(kind)
    for argument_index, argument in enumerate(KINDS[kind].arguments):
        if argument.minimum is not None:
            spec = example_spec(kind)
            args = list(spec.args)
            args[argument_index] = argument.minimum - 1
            wrong.append(str(HeadSpec(kind, tuple(args))))
    for text in wrong:
        with pytest.raises(HeadsError) as caught:
            parse_mix(text)
        assert kind in str(caught.value)
        assert all(a.describe() in str(caught.value) for a in KINDS[kind].arguments)


def test_keep_layers_names_layers_as_built():
    text = "0-2@8f/3-5@8l"
    assert keep_layers(text, [1, 3, 5], layers=6, heads=8) == format_heads(
        (parse_mix("8f"), parse_mix("8l"), parse_mix("8l"))
    )
    assert keep_layers("8f", [0, 2], layers=6, heads=8) == format_mix(parse_mix("8f"))
    with pytest.raises(HeadsError, match="6"):
        keep_layers(text, [0, 6], layers=6, heads=8)


def test_a_decoders_heads_look_back():
    mix = "0@8l/1@4xprevious+4xband:3"
    assert parse_heads(mix, layers=2, heads=8, side="decoder") == parse_heads(
        mix, layers=2, heads=8
    )
    assert keep_layers(mix, [1], layers=2, heads=8, side="decoder") == "4xprevious+4xband:3:0"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("7f+1l", ["'next'", "7f+1l", "not written yet"]),
        ("8xright", ["'right'", "not written yet"]),
        ("8xlast", ["'last'", "write current"]),
        ("4xleft+4xleftw", ["'leftw'", "words of a target"]),
        ("7l+band:3:2", ["'band:3:2'", "whole sentence", "band:W"]),
        ("8xrare:2:3", ["'rare:2:3'", "rarest tokens"]),
        ("8xrandom", ["'random'", "no causal form"]),
        ("8xsyntactic:3", ["'syntactic:3'", "no causal form"]),
        ("4l", ["4 heads", "has 8", "--decoder-attention-heads"]),
        ("0-2@8l", ["the decoder has 2 layers"]),
    ],
)
def test_errors_of_a_decoders_heads(text, parts):
    with pytest.raises(HeadsError) as caught:
        parse_heads(text, layers=2, heads=8, side="decoder")
    for part in parts:
        assert part in str(caught.value)
