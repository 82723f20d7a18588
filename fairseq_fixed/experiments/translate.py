"""Translating with what a run has trained: raw text in, detokenised text out.

    from fairseq_fixed.experiments.translate import Translator

    translator = Translator.from_run("runs/bible_es_en")
    translator.translate(["En el principio crió Dios los cielos y la tierra."])

The averaged checkpoint, the subword model, beam and length penalty are those of the run: its test
set comes out as in `hypotheses.txt`, but for translations that do not end, which fairseq-generate
cuts off by the longest sentence of a batch, and this by their own. What a line becomes does not
depend on the lines around it.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

import torch

from fairseq_fixed.experiments import trained
from fairseq_fixed.experiments.corpus import TextError
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.names import is_spaceless
from fairseq_fixed.experiments.recipe import Experiment
from fairseq_fixed.experiments.subwords import decode_with, encode_with, load_model

__all__ = ["Translator", "by_arrival", "read_stream"]

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_REPORTS = 5.0
_BATCHES_AT_ONCE = 32  # looked through together for sentences of one length
# Where a text may be divided: behind a sentence's end, closing quotes and brackets included.
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'»”’)\]]*\s+|(?<=[。！？])[」』）]*\s*")


class Translator:
    """One trained model of a run."""

    def __init__(
        self,
        *,
        model: Any,
        task: Any,
        generator: Any,
        subwords: Any,
        device: torch.device,
        longest: int,
        batch_size: int,
        max_tokens: int,
    ):
        """Take over what :meth:`from_run` has loaded; `longest` is in subwords with `</s>`."""
        self.model = model
        self.task = task
        self.generator = generator
        self.subwords = subwords
        self.device = device
        self.longest = longest
        self.batch_size = batch_size
        self.max_tokens = max_tokens

    @classmethod
    def from_run(
        cls,
        folder: Path | str,
        *,
        system: str | None = None,
        seed: int | None = None,
        beam: int | None = None,
        batch_size: int = 64,
        cpu: bool = False,
    ) -> Translator:
        """Load a model from a run's folder.

        Args:
            folder: of the run.
            system: its name in the table; None: the first that is not the baseline.
            seed: None: the run's first.
            beam: None: the recipe's.
            batch_size: sentences translated at once, at most; the recipe's `translate.max_tokens`
                bounds them, too.
            cpu: do without a GPU that is there.

        Raises:
            ExperimentError: there is no such run, system or seed, or it is not trained yet.
            CheckpointError: the checkpoint is damaged, or holds what could run code.
        """
        if (beam is not None and beam < 1) or batch_size < 1:
            raise ExperimentError("beam and batch size must be at least 1")
        found = trained.find(Path(folder), system=system, seed=seed)
        loaded = trained.load(found.checkpoint, found.data, cpu=cpu)
        model, task = loaded.model, loaded.task
        recipe = found.experiment.recipe
        longest = min(recipe.model.max_positions, task.max_positions()[0], model.max_positions()[0])
        return cls(
            model=model,
            task=task,
            generator=task.build_generator([model], _search(found.experiment, beam)),
            subwords=load_model(found.subwords),
            device=loaded.device,
            longest=longest,
            batch_size=batch_size,
            max_tokens=recipe.translate.max_tokens,
        )

    def translate(self, lines: Sequence[str]) -> list[str]:
        """Return one translation a line; of an empty line, an empty one.

        A line longer than the model's positions is translated sentence by sentence, or in pieces
        where that does not do, which is said through `logging` with the line's number.
        """
        return list(self.stream([list(lines)]))

    def stream(self, windows: Iterable[Sequence[str]]) -> Iterator[str]:
        """Yield the translations of lines that come in windows, in their order.

        Args:
            windows: lists of lines, as :func:`by_arrival` makes them. Each is translated as a
                whole before the next is taken.
        """
        start = last = time.monotonic()
        done = 0
        for window in windows:
            size = self.batch_size * _BATCHES_AT_ONCE
            for first in range(0, len(window), size):
                part = window[first : first + size]
                yield from self._window(part, done)
                done += len(part)
                now = time.monotonic()
                if now - last > _SECONDS_BETWEEN_REPORTS:
                    last = now
                    logger.info("%d lines translated, %.1f a second", done, done / (now - start))

    def _window(self, lines: Sequence[str], before: int) -> list[str]:
        pieces: list[str] = []  # what is translated: a line, or a part of a long one
        owners: list[int] = []
        for i, line in enumerate(lines):
            # What has no subwords is empty to the model, too: a line of control characters.
            parts = [part for part in self._parts(line, before + i + 1) if part]
            pieces += parts
            owners += [i] * len(parts)
        dictionary = self.task.target_dictionary
        encode = self.task.source_dictionary.encode_line
        sources = [
            encode(piece, add_if_not_exist=False, append_eos=True).long() for piece in pieces
        ]
        outputs = [""] * len(pieces)
        data = self.task.build_dataset_for_inference(sources, [len(s) for s in sources])
        for batch in self._batches(sources):
            sample = trained.move(data.collater([data[i] for i in batch]), self.device)
            found = self.task.inference_step(self.generator, [self.model], sample)
            for i, hypotheses in zip(sample["id"].tolist(), found, strict=True):
                outputs[i] = dictionary.string(hypotheses[0]["tokens"].cpu())
        translated: list[list[str]] = [[] for _ in lines]
        for owner, text in zip(owners, decode_with(self.subwords, outputs), strict=True):
            translated[owner].append(text)
        space = "" if is_spaceless(self.task.cfg.target_lang) else " "
        return [space.join(filter(None, parts)) for parts in translated]

    def _batches(self, sources: Sequence[torch.Tensor]) -> Iterator[list[int]]:
        """Yield the indices of sentences of one length, the longest first.

        fairseq's limit of a translation's length counts the longest source of the batch: in mixed
        batches a translation that does not end would depend on what is beside it.
        """
        by_length: dict[int, list[int]] = {}
        for i, source in enumerate(sources):
            by_length.setdefault(len(source), []).append(i)
        for length, indices in sorted(by_length.items(), reverse=True):
            size = max(1, min(self.batch_size, self.max_tokens // length))
            for first in range(0, len(indices), size):
                yield indices[first : first + size]

    def _parts(self, line: str, number: int) -> list[str]:
        """A line as subwords, in as many parts as the model's positions ask for."""
        whole = self._encode(line)
        if _length(whole) <= self.longest:
            return [whole]
        parts: list[str] = []
        current = ""
        cut = False
        for sentence in _sentences(line):
            if _length(self._encode(current + sentence)) <= self.longest:
                current += sentence
                continue
            if current:
                parts.append(self._encode(current))
            current = sentence
            pieces = self._encode(sentence).split(" ")
            if len(pieces) + 1 > self.longest:
                room = self.longest - 1
                parts += [" ".join(pieces[i : i + room]) for i in range(0, len(pieces), room)]
                current, cut = "", True
        if current:
            parts.append(self._encode(current))
        logger.warning(
            "line %d is longer than %d subwords: translated in %d parts, divided %s",
            number,
            self.longest,
            len(parts),
            "inside a sentence, which harms it" if cut else "at ends of sentences",
        )
        return parts

    def _encode(self, text: str) -> str:
        return next(encode_with(self.subwords, [text]))


def _length(pieces: str) -> int:
    return len(pieces.split(" ")) + 1


def _sentences(line: str) -> list[str]:
    """Divide behind ends of sentences; put together again it is the same line."""
    ends = [match.end() for match in _SENTENCE_END.finditer(line)]
    parts = [line[a:b] for a, b in zip([0, *ends], [*ends, len(line)], strict=True)]
    return [part for part in parts if part.strip()]


def _search(experiment: Experiment, beam: int | None) -> Any:
    """Return the settings of fairseq's search, as the run's translate stage has them."""
    from fairseq.dataclass.configs import GenerationConfig

    settings = experiment.recipe.translate
    search = GenerationConfig(
        beam=beam or settings.beam,
        lenpen=settings.length_penalty,
        max_len_a=settings.max_len_a,
        max_len_b=settings.max_len_b,
    )
    known = {field.name for field in fields(GenerationConfig)}
    for flag, value in settings.flags.items():
        name = flag.lstrip("-").replace("-", "_")
        if name in known:
            setattr(search, name, value)
        else:
            logger.warning("translate.flags.%s is no setting of the search: left out", flag)
    return search


def by_arrival(lines: Iterable[str], most: int = 2048) -> Iterator[list[str]]:
    """Yield lists of the lines that are there, at least one, so that no line waits for the next.

    A thread reads ahead by at most `most` lines.

    Raises:
        Exception: what reading raises, after the lines before it.
    """
    waiting: queue.Queue[tuple[str | None, BaseException | None]] = queue.Queue(most)

    def fill() -> None:
        try:
            for line in lines:
                waiting.put((line, None))
        except BaseException as error:
            waiting.put((None, error))
        else:
            waiting.put((None, None))

    threading.Thread(target=fill, daemon=True).start()
    while True:
        window: list[str] = []
        line, error = waiting.get()
        while line is not None:
            window.append(line)
            if len(window) >= most or waiting.empty():
                break
            line, error = waiting.get()
        if window:
            yield window
        if error is not None:
            raise error
        if line is None:
            return


def read_stream(stream: IO[bytes], name: str = "the input") -> Iterator[str]:
    r"""Yield the lines of a binary stream as they come, split at `\n` only.

    Raises:
        TextError: a line is not UTF-8.
    """
    for number, data in enumerate(iter(stream.readline, b""), 1):
        try:
            line = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TextError(
                f"{name}, line {number}, byte {error.start + 1}: not valid UTF-8. If it is in "
                "another encoding, convert it, as in: iconv -f LATIN1 -t UTF-8"
            ) from error
        yield " ".join(line.removeprefix("\ufeff").split())
