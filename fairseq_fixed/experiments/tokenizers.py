"""Which of sacrebleu's tokenizers scores a language, and whether it works here."""

from __future__ import annotations

from fairseq_fixed.experiments.names import main_language
from fairseq_fixed.experiments.validation import nearest

__all__ = ["ERRORS", "SPACELESS", "usual_tokenizer", "why_unusable"]

# of a tokenizer that is unknown, lacks a package, or cannot download its model
ERRORS = (RuntimeError, ImportError, ValueError, KeyError, AssertionError, OSError)
SPACELESS = ("zh", "ja-mecab", "char")  # for languages without spaces between words

_USUAL = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}  # others: 13a
_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}  # of sacrebleu, which these need


def usual_tokenizer(language: str) -> str:
    """Return sacrebleu's tokenizer for a language's code, with a region (`zh_CN`) or without."""
    return _USUAL.get(main_language(language), "13a")


def why_unusable(name: str, *, tools: bool = True) -> str | None:
    """Return why BLEU cannot use a tokenizer, and what helps; None: it can.

    Args:
        name: sacrebleu's name of it.
        tools: whether what it needs must be there (some download a model).
    """
    if name == "13a":
        return None
    from sacrebleu.metrics import BLEU

    if name not in BLEU.TOKENIZERS:
        return f"this sacrebleu has no tokenizer {name!r}; {nearest(name, BLEU.TOKENIZERS)}"
    if not tools:
        return None
    try:
        BLEU(tokenize=name)
    except ERRORS as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        advice = "Choose another, or leave score.tokenize out"
        if name in _EXTRAS:
            advice = f"pip install 'sacrebleu[{_EXTRAS[name]}]', or set score.tokenize=char"
        return f"sacrebleu's {name} does not work here ({reason}). {advice}"
    return None
