"""Fixed heads whose whole past fits into a few vectors: left, first, start, end.

Each is a linear recurrence. With z = [v; s], a token's value over R vectors of state, one small
matrix that depends on the position alone gives output and next state at once:

    [out; s'] = T(i) · z,        T(i) of (R + 1) x (R + 1)

So a kind is one function, its T. A step adds up what T does not leave out, mostly one weighted mean
of two vectors; whole sentences run in blocks, by products with matrices that T makes
(`block_matrices`). Coefficients are computed in float64. All are shares of running weighted means,
between 0 and 1: neither cubes nor their sums are ever kept, and nothing can overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_fixed.attention.base import compute_dtype
from fairseq_fixed.attention.causal.base import FixedHeads, lasting
from fairseq_fixed.attention.causal.layout import CausalLayout, Step
from fairseq_fixed.heads import HeadSpec

__all__ = ["BLOCK", "Recurrent", "block_matrices"]

#: Tokens that share one product when whole sentences run.
BLOCK = 32

Transition = Callable[[Tensor, str], Tensor]


def _first(i: Tensor, edge: str) -> Tensor:
    """State: the first token."""
    t = i.new_zeros(len(i), 2, 2)
    t[0, :, 0] = 1
    t[1:, :, 1] = 1
    return t


def _share(i: Tensor) -> Tensor:
    """Return what key i weighs in Σ_{j ≤ i} (j+1)³, the squared triangular number of i + 1."""
    return 4 * (i + 1) / (i + 2) ** 2


def _end(i: Tensor, edge: str) -> Tensor:
    """State: the mean so far, weighted by (j+1)³."""
    t = i.new_zeros(len(i), 2, 2)
    t[:, :, 0] = _share(i)[:, None]
    t[:, :, 1] = 1 - _share(i)[:, None]
    return t


def _left(i: Tensor, edge: str) -> Tensor:
    """State: the mean up to two tokens away, weighted by (j+1)³, and the token before."""
    t = i.new_zeros(len(i), 3, 3)
    t[2:, 0, 1] = 1
    t[1:, 1, 1] = 1 - _share(i[1:] - 1)
    t[1:, 1, 2] = _share(i[1:] - 1)
    t[:, 2, 0] = 1
    if edge == "self":
        t[:2, 0, 0] = 1
    elif edge == "clamp":
        t[0, 0, 0] = 1
        t[1:2, 0, 2] = 1
    return t


def _start(i: Tensor, edge: str) -> Tensor:
    """State: the means weighted by (i+1-j)^k, k = 0 … 3; the head's is the last.

    One token more moves every key one further away: (m+1)^k = Σ_l binom(k, l) m^l.
    """
    m = i + 1
    sums = [m, m * (m + 1) / 2, m * (m + 1) * (2 * m + 1) / 6, (m * (m + 1) / 2) ** 2]
    before = [torch.cat([s.new_zeros(1), s[:-1]]) for s in sums]
    t = i.new_zeros(len(i), 5, 5)
    for k in range(4):
        t[:, k + 1, 0] = 1 / sums[k]
        for power in range(k + 1):
            t[:, k + 1, power + 1] = math.comb(k, power) * before[power] / sums[k]
    t[:, 0] = t[:, 4]
    return t


TRANSITIONS: dict[str, Transition] = {
    "first": _first,
    "end": _end,
    "left": _left,
    "start": _start,
}


#: A row of T: the vectors of z that it adds up, with their weights.
Terms = tuple[tuple[int, float], ...]


def block_matrices(transitions: Tensor, block: int) -> Tensor:
    """Return the product of the transitions of each block of tokens.

    Args:
        transitions: (blocks * block, R + 1, R + 1), by position.
        block: tokens in a block, B.

    Returns:
        (blocks, B + R, B + R): from a block's values and the state before it to its outputs and
        the state behind it.
    """
    rows = transitions.shape[1] - 1
    by_block = transitions.unflatten(0, (-1, block))
    identity = torch.eye(block + rows, dtype=transitions.dtype).expand(len(by_block), -1, -1)
    state = identity[:, block:]
    outs = []
    for i in range(block):
        z = torch.cat([identity[:, i : i + 1], state], 1)
        out, state = (by_block[:, i] @ z).split([1, rows], 1)
        outs.append(out)
    return torch.cat([*outs, state], 1)


class Recurrent(FixedHeads):
    """Heads of one kind that are a linear recurrence.

    Args:
        specs: one a head, all alike.
        head_dim: channels of a head.
        edge: what a row with nothing to attend to holds; see `FixedHead`.

    Raises:
        ValueError: an unknown `edge`.
    """

    def __init__(self, specs: Sequence[HeadSpec], head_dim: int, *, edge: str = "zero") -> None:
        super().__init__(specs, head_dim, edge=edge)
        self.kind, self.edge = specs[0].kind, edge
        #: vectors that the past fits into, R
        self.size = self.transitions(1).shape[-1] - 1
        self._blocks: dict[object, list[Tensor]] = {}
        self._terms: list[tuple[Terms, ...]] = []

    @classmethod
    def family(cls, spec: HeadSpec) -> object:
        """Heads of one kind share their T."""
        return spec.kind

    def transitions(self, positions: int) -> Tensor:
        """Return T(0), T(1), …, (positions, R + 1, R + 1) float64."""
        return TRANSITIONS[self.kind](torch.arange(positions, dtype=torch.float64), self.edge)

    def attend(
        self,
        values: Tensor,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Run the recurrence block by block: O(n)."""
        n = len(values)
        x = layout.align(values.to(compute_dtype(values)).flatten(2)).reshape(n, -1)
        blocks = -(-n // BLOCK)
        matrices = self._block_matrices(blocks, x)
        if blocks == 1:
            out = matrices[0][:n, :n] @ x
        else:
            outs = []
            state = x.new_zeros(self.size, x.shape[1])
            padded = F.pad(x, (0, 0, 0, blocks * BLOCK - n))
            for chunk, matrix in zip(padded.split(BLOCK), matrices, strict=False):
                out, state = (matrix @ torch.cat([chunk, state])).split([BLOCK, self.size])
                outs.append(out)
            out = torch.cat(outs)[:n]
        out = layout.restore(out.view(n, layout.batch, -1))
        return out.view(values.shape).to(values.dtype)

    def _block_matrices(self, blocks: int, like: Tensor) -> list[Tensor]:
        """Return the first blocks' matrices, or more, of a tensor's dtype and device."""
        key = (like.dtype, like.device)
        matrices = self._blocks.get(key, [])
        if len(matrices) < blocks:
            with lasting():
                count = max(4, 1 << (blocks - 1).bit_length())
                made = block_matrices(self.transitions(count * BLOCK), BLOCK)
                matrices = list(made.to(like.device, like.dtype).unbind(0))
            self._blocks[key] = matrices
        return matrices

    def step(
        self, inputs: Tensor, step: Step, state: tuple[Tensor, ...] | None, dropout: float = 0.0
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Apply T; the state is R tensors (batch, heads, head_dim), float32 at least."""
        x = inputs.to(compute_dtype(inputs)).squeeze(2)
        z = (x, *(state or [torch.zeros_like(x)] * self.size))
        if step.position is None:
            rows = self._rows_of(step.index)
            done = {terms: _add_up(terms, z) for terms in dict.fromkeys(rows)}  # equal rows once
            out, *kept = (done[terms] for terms in rows)
        else:
            t = F.pad(self.transitions(step.index + 1), (0, 0, 0, 0, 1, 0)).to(x.device, x.dtype)
            each = t[step.position + 1]  # nothing comes of what lies before a sentence
            out, *kept = torch.einsum("brs,sbhd->rbhd", each, torch.stack(z)).unbind(0)
        return out.to(inputs.dtype), tuple(kept)

    def _rows_of(self, index: int) -> tuple[Terms, ...]:
        """Return the rows of T at a position."""
        if index >= len(self._terms):
            count = max(64, 1 << index.bit_length())
            self._terms = [
                tuple(tuple((s, w) for s, w in enumerate(row) if w) for row in matrix)
                for matrix in self.transitions(count).tolist()
            ]
        return self._terms[index]

    def reorder(self, state: tuple[Tensor, ...], order: Tensor, tokens: int) -> tuple[Tensor, ...]:
        """Pick sentences."""
        return tuple(part.index_select(0, order) for part in state)


def _add_up(terms: Terms, z: Sequence[Tensor]) -> Tensor:
    """Return the weighted sum of vectors; of one alone, itself."""
    if not terms:
        return torch.zeros_like(z[0])
    (first, weight), *rest = terms
    if not rest:
        return z[first] if weight == 1 else z[first] * weight
    if len(rest) == 1 and abs(weight + rest[0][1] - 1) < 1e-12:
        return torch.lerp(z[first], z[rest[0][0]], rest[0][1])
    total = z[first] * weight
    for other, weight in rest:
        total = total.add(z[other], alpha=weight)
    return total
