import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_fixed.experiments.differences import mark, mark_markdown, plain_markdown

REFERENCE = "The cat sat on the mat, and slept."


def differing(text, reference=REFERENCE, **options):
    return [piece for piece, differs in mark(text, reference, **options) if differs]


def test_what_is_not_in_the_reference_is_marked():
    assert differing(REFERENCE) == []
    assert differing("The dog sat on the mat, and slept.") == ["dog"]
    assert differing("The big dog sat on the mat and slept.") == ["big dog"]
    assert differing("the CAT sat on the mat, and slept.") == []
    assert differing("The cat sat on the mat and slept!") == ["!"]
    assert differing("") == [] and mark("", "") == []
    assert differing("all new", "") == ["all new"]


def test_a_word_in_another_place_is_marked():
    assert "cat" in " ".join(differing("On the mat sat the cat, and slept."))


def test_characters_for_languages_without_spaces():
    assert differing("彼は犬が好きだ", "彼は猫が好きだ", characters=True) == ["犬"]
    assert differing("彼は犬が好きだ", "彼は猫が好きだ") == ["彼は犬が好きだ"]


def test_markdown_shows_the_text_as_it_is():
    text = "a_b * <unk> [x](y) #1 `z` \\ | &amp; ~~w~~"
    assert plain_markdown(text) == (
        r"a\_b \* &lt;unk&gt; \[x\](y) \#1 \`z\` \\ | &amp;amp; \~\~w\~\~"
    )
    assert mark_markdown("The <unk>, on", "The cat, on") == "The <b>&lt;unk&gt;</b>, on"


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40), st.booleans())
def test_the_pieces_are_the_text(text, reference, characters):
    pieces = mark(text, reference, characters=characters)
    assert "".join(piece for piece, _ in pieces) == text
    assert all(piece for piece, _ in pieces)
    assert all(a[1] != b[1] for a, b in itertools.pairwise(pieces))


@settings(deadline=None)
@given(st.text(max_size=40), st.booleans())
def test_equal_texts_do_not_differ(text, characters):
    assert differing(text, text, characters=characters) == []


def test_marks_on_letters_belong_to_their_words():
    assert differing("वह पढ़ती है", "वह पढ़ता है") == ["पढ़ती"]
    assert differing("caf\u00e9!", "cafe\u0301!") == []


def test_long_texts_are_compared_in_part():
    again = "the " * 100_000  # whole, it would take minutes
    assert len(differing(again + "end", again)) == 0
    assert "".join(piece for piece, _ in mark(again, REFERENCE)) == again
