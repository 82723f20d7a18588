"""Joint subwords with sentencepiece: trained on both languages, one model, raw text in and out.

Pieces go to fairseq as ordinary words; its dictionary has `<s> <pad> </s> <unk>` of its own, so the
model is trained without piece for padding, and a piece that reads like one of the four (text that
literally holds `</s>` in characters the model does not know) is encoded as `<unk>`.
"""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import sentencepiece

from fairseq_fixed.experiments.corpus import TextError, atomic_writer, write_lines
from fairseq_fixed.experiments.parallel_text import read_lines

__all__ = [
    "decode_lines",
    "decode_with",
    "encode_file",
    "encode_lines",
    "encode_with",
    "load_model",
    "train_subwords",
]

logger = logging.getLogger(__name__)

StrPath = str | os.PathLike[str]
_FAIRSEQ_SPECIALS = frozenset(("<s>", "<pad>", "</s>", "<unk>"))
# sentencepiece leaves out longer lines (bytes), saying so on stderr, which is kept quiet.
_MAX_SENTENCE_BYTES = 16_384


def train_subwords(
    files: Sequence[StrPath],
    out_prefix: StrPath,
    size: int,
    *,
    type: Literal["bpe", "unigram"] = "bpe",
    character_coverage: float = 1.0,
    max_sentences: int = 2_000_000,
    seed: int = 1,
) -> Path:
    """Train one model on all files together; the same files and settings give the same bytes.

    Args:
        files: text of both languages (train only), plain or gzip.
        out_prefix: `PREFIX.model` and `PREFIX.vocab` (piece, tab, score) are written, atomically.
        size: pieces, `<unk>`, `<s>` and `</s>` among them (the key `subwords.size`).
        type: of the model.
        character_coverage: share of the characters that get a piece; lower it (0.9995) for
            scripts of thousands of characters.
        max_sentences: a larger corpus is sampled down to so many lines.
        seed: of that sample.

    Returns:
        The model's path.

    Raises:
        TextError: no text, a size that the text cannot fill or that its characters do not fit, or
            files that cannot be read or written.
    """
    prefix = Path(out_prefix)
    if type not in ("bpe", "unigram"):
        raise TextError(f"subwords.type is {type!r}: it must be bpe or unigram")
    if not 0 < character_coverage <= 1:
        raise TextError(f"character_coverage is {character_coverage}: it must be in (0, 1]")
    if not files:
        raise TextError("no files to train subwords on: give train's source and target file")
    text = _Text(files)
    sentencepiece.set_random_generator_seed(seed)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text),
            model_writer=model,
            vocab_size=size,
            model_type=type,
            character_coverage=character_coverage,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            num_threads=1,  # sums in one order: the same model everywhere
            input_sentence_size=max_sentences,
            shuffle_input_sentence=True,
            max_sentence_length=_MAX_SENTENCE_BYTES,
            minloglevel=3,
        )
    except (RuntimeError, OSError, ValueError) as error:
        if text.error is not None:  # raised while reading; sentencepiece hides it in its own
            raise text.error from None
        raise TextError(_advice(str(error), files, size)) from error
    if text.skipped:
        logger.warning(
            "%d lines longer than %d bytes were left out of subword training",
            text.skipped,
            _MAX_SENTENCE_BYTES,
        )
    proto = model.getvalue()
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    path = prefix.with_name(prefix.name + ".model")
    write_lines(
        prefix.with_name(prefix.name + ".vocab"),
        (
            f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}"
            for i in range(processor.get_piece_size())
        ),
    )
    with atomic_writer(path) as handle:
        handle.write(proto)
    logger.info("%s: %d pieces", path, processor.get_piece_size())
    return path


class _Text:
    """The non-empty lines of several files; remembers what sentencepiece would hide."""

    def __init__(self, files: Sequence[StrPath]):
        self.files = files
        self.error: Exception | None = None
        self.skipped = 0

    def __iter__(self) -> Iterator[str]:
        try:
            for file in self.files:
                for line in read_lines(file):
                    if len(line.encode("utf-8")) > _MAX_SENTENCE_BYTES:
                        self.skipped += 1
                    elif line:
                        yield line
        except Exception as error:
            self.error = error
            raise


def _advice(message: str, files: Sequence[StrPath], size: int) -> str:
    names = ", ".join(str(file) for file in files)
    if match := re.search(r"set it to a value <= (\d+)", message):
        return (
            f"subwords.size is {size:,}, but {names} hold text for {int(match[1]):,} pieces at "
            f"most. Set subwords.size to {int(match[1])} or less, or give more text"
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"subwords.size is {size:,}, but {names} have so many different characters that "
            f"{int(match[1]):,} pieces are needed for them alone. Set subwords.size to more than "
            f"{int(match[1])}, or lower the character coverage (0.9995)"
        )
    if "sentences_.empty()" in message:
        return f"{names} hold no text to train subwords on. Check the files"
    return f"sentencepiece failed on {names} with subwords.size {size:,}: {message}"


def load_model(model: StrPath) -> Any:
    """The `SentencePieceProcessor` of a model file.

    Raises:
        TextError: the file is missing or no sentencepiece model.
    """
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=Path(model).read_bytes())
    except OSError as error:
        raise TextError(
            f"the subword model {model} cannot be read: {error.strerror or error}"
        ) from error
    except RuntimeError as error:
        raise TextError(
            f"{model} is not a sentencepiece model: name the .model file that the recipe's "
            "preparation wrote, or prepare again"
        ) from error


def encode_lines(model: StrPath, lines: Iterable[str]) -> Iterator[str]:
    """Sentences as pieces joined by spaces; an empty sentence stays an empty line."""
    yield from encode_with(load_model(model), lines)


def encode_with(processor: Any, lines: Iterable[str]) -> Iterator[str]:
    """As :func:`encode_lines`, with what :func:`load_model` has loaded."""
    for line in lines:
        # fairseq splits at whatever Python calls white space, some of which the model would keep.
        pieces = processor.encode(" ".join(line.split()), out_type=str)
        yield " ".join("<unk>" if piece in _FAIRSEQ_SPECIALS else piece for piece in pieces)


def encode_file(model: StrPath, input_path: StrPath, output_path: StrPath) -> int:
    """Encode a file line by line; the output, as many lines, appears when it is complete.

    Returns:
        The number of lines.

    Raises:
        TextError: a file cannot be read or written.
    """
    count = 0

    def counted() -> Iterator[str]:
        nonlocal count
        for line in encode_lines(model, read_lines(input_path)):
            count += 1
            yield line

    write_lines(output_path, counted())
    return count


def decode_lines(model: StrPath, lines: Iterable[str]) -> list[str]:
    """Sentences of pieces, as fairseq writes them, back to text; `<unk>` becomes `⁇`."""
    return decode_with(load_model(model), lines)


def decode_with(processor: Any, lines: Iterable[str]) -> list[str]:
    """As :func:`decode_lines`, with what :func:`load_model` has loaded."""
    decoded = []
    for line in lines:
        text = processor.decode(line.split())
        # A piece that the model lacks comes back as it is, with its space mark.
        decoded.append(" ".join(text.replace("\u2581", " ").split()))
    return decoded
