"""What a benchmark is asked to do, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from fairseq_fixed.bench.batches import SIDES
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.heads import HeadSpec, parse_mix

__all__ = ["DTYPES", "PASSES", "Place", "check_choice", "parse_mixes", "parse_numbers"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PASSES = ("forward", "forward+backward")


@dataclass(frozen=True)
class Place:
    """Where a benchmark runs and in what.

    Raises:
        BenchError: a device that is not there, or an unknown dtype or side.
    """

    device: str = "cpu"
    dtype: str = "float32"
    side: str = "left"

    def __post_init__(self) -> None:
        """Check."""
        check_choice("dtype", self.dtype, tuple(DTYPES))
        check_choice("side", self.side, SIDES)
        kind = self.device.partition(":")[0]
        check_choice("device", kind, ("cpu", "cuda"))
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise BenchError(f"device {self.device!r}: give cpu, cuda, or cuda:1")
        if kind == "cuda" and not torch.cuda.is_available():
            raise BenchError(
                f"device {self.device}: torch {torch.__version__} sees no CUDA device; "
                "use --device cpu, or install a build of torch with CUDA"
            )
        if kind == "cuda" and (torch.device(self.device).index or 0) >= torch.cuda.device_count():
            raise BenchError(
                f"device {self.device}: there are {torch.cuda.device_count()}, counted from 0"
            )

    @property
    def fused(self) -> bool:
        """Whether torch's attention has a kernel with dropout here: the CPU has none."""
        return self.device != "cpu"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return DTYPES[self.dtype]


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise BenchError where a value is not among the choices."""
    if value not in choices:
        raise BenchError(f"{name} {value!r}: it must be one of {', '.join(choices)}")


N = TypeVar("N", int, float)


def parse_numbers(name: str, text: str, kind: type[N]) -> list[N]:
    """Read numbers with commas between them, each kept once.

    Raises:
        BenchError: none, or one that is no number of this kind.
    """
    numbers = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            numbers.append(kind(part))
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise BenchError(f"{name} {text!r}: {part!r} is not {what}") from None
    if not numbers:
        raise BenchError(f"{name}: nothing given")
    return list(dict.fromkeys(numbers))


def parse_mixes(text: str, heads: int, width: int) -> dict[str, tuple[HeadSpec, ...]]:
    """Read mixes with commas between them.

    Raises:
        BenchError: a mix that has not as many heads as the layer, or a width that heads do not
            divide.
        HeadsError: a mix that cannot be read.
    """
    if heads < 1 or width < 1 or width % heads:
        raise BenchError(f"width {width} is not divisible by {heads} heads")
    mixes = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        specs = parse_mix(part)
        if len(specs) != heads:
            raise BenchError(
                f"mix {part!r} has {len(specs)} heads, but the layer has {heads}; "
                f"give --heads {len(specs)}, or another mix"
            )
        mixes[part] = specs
    if not mixes:
        raise BenchError("mixes: nothing given")
    return mixes
