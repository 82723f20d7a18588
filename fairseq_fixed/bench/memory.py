"""Peak extra memory of a piece of work: what it allocates beyond what was there before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

__all__ = ["HOW", "describe_method", "peak_extra_bytes", "quiet_profiler"]

HOW = {
    "cpu": "peak of torch's CPU allocator, as its profiler records it: exact for tensors, blind "
    "to what libraries allocate for themselves",
    "cuda": "torch.cuda.max_memory_allocated, beyond what was allocated before",
}


def describe_method(device: str) -> str:
    """Return how memory is measured on a device."""
    return HOW[torch.device(device).type]


def peak_extra_bytes(work: Callable[[], object], device: str) -> int:
    """Run `work` once to warm up and once to measure; return its peak extra memory in bytes.

    What `work` returns counts; what it frees of what was there before would count as negative.
    """
    work()
    return _cuda_peak(work) if torch.device(device).type == "cuda" else _cpu_peak(work)


def _cuda_peak(work: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _cpu_peak(work: Callable[[], object]) -> int:
    with (
        quiet_profiler(),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile,
    ):
        work()
    # allocations are positive, what is freed is negative; sorted() is stable
    events = profile.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    now = peak = 0
    for _, change in sorted(changes, key=lambda event: event[0]):
        now += change
        peak = max(peak, now)
    return peak


@contextlib.contextmanager
def quiet_profiler() -> Iterator[None]:
    """Keep the profiler's library from writing its own lines to the process's stderr."""
    with Path(os.devnull).open("wb") as nowhere:
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
