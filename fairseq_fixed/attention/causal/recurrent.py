"""Fixed heads whose whole past fits into a few vectors: left, first, start, end.

Each is a linear recurrence. With z = [v; s], a token's value over R state rows, one small matrix
that depends on the position alone gives output and next state at once:

    [out; s'] = T(i) · z,        T(i) of (R + 1) x (R + 1)

So a kind is one function, its T. A step is one product for all heads of a layer, whatever their
kinds; whole sentences run in blocks, by products with matrices that T makes (`block_matrices`).
Coefficients are computed in float64. All are shares of running weighted means, between 0 and 1:
neither cubes nor their sums are ever kept, and nothing can overflow.
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


def block_matrices(transitions: Tensor, block: int) -> Tensor:
    """Return the product of the transitions of each block of tokens.

    Args:
        transitions: (blocks * block, heads, R + 1, R + 1), by position.
        block: tokens in a block, B.

    Returns:
        (blocks, heads, B + R, B + R): from a block's values and the state before it to its outputs
        and the state behind it.
    """
    heads, rows = transitions.shape[1], transitions.shape[2] - 1
    by_block = transitions.unflatten(0, (-1, block))
    identity = torch.eye(block + rows, dtype=transitions.dtype)
    state = identity[block:].expand(len(by_block), heads, -1, -1)
    outs = []
    for i in range(block):
        value = identity[i : i + 1].expand(len(by_block), heads, -1, -1)
        out, state = (by_block[:, i] @ torch.cat([value, state], 2)).split([1, rows], 2)
        outs.append(out)
    return torch.cat([*outs, state], 2)


class Recurrent(FixedHeads):
    """All heads of a layer that are linear recurrences of a few rows.

    Args:
        specs: one a head.
        head_dim: channels of a head.
        edge: what a row with nothing to attend to holds; see `FixedHead`.

    Raises:
        ValueError: an unknown `edge`.
    """

    def __init__(self, specs: Sequence[HeadSpec], head_dim: int, *, edge: str = "zero") -> None:
        super().__init__(specs, head_dim, edge=edge)
        self.edge = edge
        #: vectors a head that the past fits into, R
        self.size = self.transitions(1).shape[-1] - 1
        self._tables: dict[object, list[Tensor]] = {}

    def transitions(self, positions: int) -> Tensor:
        """Return T(0), T(1), …, (positions, heads, R + 1, R + 1) float64."""
        i = torch.arange(positions, dtype=torch.float64)
        each = {spec: TRANSITIONS[spec.kind](i, self.edge) for spec in dict.fromkeys(self.specs)}
        # what needs fewer rows than others leaves the last ones empty
        rows = max(t.shape[-1] for t in each.values())
        padded = {
            spec: F.pad(t, (0, rows - t.shape[-1], 0, rows - t.shape[-1]))
            for spec, t in each.items()
        }
        return torch.stack([padded[spec] for spec in self.specs], dim=1)

    def _table(self, name: str, size: int, like: Tensor) -> list[Tensor]:
        """Return at least `size` transitions, or block matrices, of a tensor's dtype and device.

        Transitions begin with zeros, for tokens before a sentence.
        """
        key = (name, like.dtype, like.device)
        table = self._tables.get(key, [])
        if len(table) < size:
            size = max(64 if name == "transitions" else 4, 1 << (size - 1).bit_length())
            with lasting():
                if name == "transitions":
                    made = F.pad(self.transitions(size - 1), (0, 0, 0, 0, 0, 0, 1, 0))
                else:
                    made = block_matrices(self.transitions(size * BLOCK), BLOCK)
                table = list(made.to(like.device, like.dtype).unbind(0))
            self._tables[key] = table
        return table

    def attend(
        self,
        values: Tensor,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Run the recurrences block by block: O(n)."""
        n, batch, heads, channels = values.shape
        x = layout.align(values.to(compute_dtype(values)).flatten(2))
        # (n, batch, heads * head_dim) -> (heads, n, batch * head_dim)
        x = x.view(n, batch, heads, channels).permute(2, 0, 1, 3).reshape(heads, n, -1)
        blocks = -(-n // BLOCK)
        matrices = self._table("blocks", blocks, x)
        if blocks == 1:
            out = torch.bmm(matrices[0][:, :n, :n], x)
        else:
            out = self._run_blocks(F.pad(x, (0, 0, 0, blocks * BLOCK - n)), matrices)[:, :n]
        out = out.view(heads, n, batch, channels).permute(1, 2, 0, 3)
        if layout.padding_mask is not None:
            out = layout.restore(out.flatten(2)).view_as(values)
        return out.to(values.dtype)

    def _run_blocks(self, x: Tensor, matrices: list[Tensor]) -> Tensor:
        outs = []
        state = x.new_zeros(self.num_heads, self.size, x.shape[-1])
        for chunk, matrix in zip(x.split(BLOCK, dim=1), matrices, strict=False):
            out, state = torch.bmm(matrix, torch.cat([chunk, state], 1)).split(
                [BLOCK, self.size], dim=1
            )
            outs.append(out)
        return torch.cat(outs, 1)

    def step(
        self, inputs: Tensor, step: Step, state: Tensor | None, dropout: float = 0.0
    ) -> tuple[Tensor, Tensor | None]:
        """Apply T once; the state is (heads, R, batch, head_dim), float32 at least."""
        # (batch, heads, 1, head_dim) -> (heads, 1, batch, head_dim)
        x = inputs.to(compute_dtype(inputs)).permute(1, 2, 0, 3)
        if state is None:
            state = x.new_zeros(self.num_heads, self.size, *x.shape[2:])
        z = torch.cat([x, state], dim=1)
        table = self._table("transitions", step.index + 2, z)
        if step.position is None:
            out = torch.bmm(table[step.index + 1], z.flatten(2)).view_as(z)
        else:
            each = torch.stack(table[: step.index + 2])[step.position + 1]
            out = torch.einsum("bhrs,hsbd->hrbd", each, z)
        return out[:, 0].transpose(0, 1).to(inputs.dtype), out[:, 1:]

    def reorder(self, state: Tensor, order: Tensor, tokens: int) -> Tensor:
        """Pick sentences: one copy for all heads."""
        return state.index_select(2, order)
