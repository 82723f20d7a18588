"""How much memory a contender may need before it is left out rather than killed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

__all__ = ["format_bytes", "free_bytes", "matrices_note"]

#: share of what is free that n×n matrices may take
SHARE = 0.7


def free_bytes(device: str) -> int:
    """Return how many bytes n×n matrices may take on a device: most of what is free now."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(torch.device(device))
        return int(SHARE * free)
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(SHARE * 1024 * int(line.split()[1]))
    except OSError:
        pass
    return int(SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def matrices_note(
    shapes: Sequence[tuple[int, int]],
    *,
    heads: int,
    layers: int,
    itemsize: int,
    device: str,
    limit: int | None,
) -> str | None:
    """Return why n×n matrices have no room, or None where they have.

    The estimate: three a layer at work, two and a half a layer kept for the backward pass.

    Args:
        shapes: (sentences, positions) of each batch.
        heads: a matrix each.
        layers: whose matrices are kept; 0 without a backward pass.
        itemsize: bytes a number.
        device: where they lie.
        limit: bytes that they may take; None: most of what is free.
    """
    largest = max(batch * n * n for batch, n in shapes)
    needed = int((3 + 2.5 * layers) * largest * heads * itemsize)
    most = free_bytes(device) if limit is None else limit
    if needed <= most:
        return None
    return f"its n×n matrices need about {format_bytes(needed)}; {format_bytes(most)} may be used"


def format_bytes(count: float) -> str:
    """Return `512 B`, `3.4 MiB` or `12 GiB`."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB"):
        if abs(count) < 1000:
            break
        count, unit = count / 1024, larger
    return f"{count:,.0f} {unit}" if abs(count) >= 100 else f"{count:.3g} {unit}"
