"""Products of a weighted triangle with values: all prefix sums of a sentence at once, in O(n).

T[i, j] = rows[i] · columns[j] for j ≤ i. Blocks of rows run as products with dense blocks of T,
at the speed of BLAS; what earlier blocks add has rank one, and is carried from block to block.
The weights are multiplied in float64 before they are rounded, and no difference of sums is ever
taken, so that nothing cancels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BLOCK", "WeightedTriangle"]

#: Rows of a block.
BLOCK = 64


class WeightedTriangle:
    """T[i, j] = rows[i] · columns[j] for j ≤ i, kept as its diagonal blocks: O(n) memory.

    Args:
        rows: (batch or 1, m) float64; 1 where all sentences share the triangle.
        columns: of the same shape.
        dtype: of the products.
    """

    def __init__(self, rows: Tensor, columns: Tensor, dtype: torch.dtype) -> None:
        self.m = rows.shape[1]
        self.block = max(1, min(self.m, BLOCK))
        self.blocks = -(-self.m // self.block)
        fill = self.blocks * self.block - self.m
        by_block = (-1, self.blocks, self.block)
        # (batch or 1, blocks, block)
        rows, columns = (F.pad(x, (0, fill)).reshape(by_block) for x in (rows, columns))
        self.diagonal = (rows[..., :, None] * columns[..., None, :]).tril_().to(dtype).contiguous()
        # contiguous: bmm takes other operands sentence by sentence
        self.rows = rows.to(dtype).contiguous()
        self.columns = columns.to(dtype).contiguous()

    def multiply(self, out: Tensor, x: Tensor, *, transposed: bool = False) -> None:
        """Write T · x into `out`, or Tᵀ · x; both (m, batch, channels), of any strides."""
        x = x.to(self.rows.dtype)
        batch = x.shape[1]
        by_sentence = (x.transpose(0, 1), out.transpose(0, 1))  # (batch, m, channels)
        if self.blocks > max(batch, 1):
            for sentence, (part, target) in enumerate(zip(*by_sentence, strict=True)):
                self._one_sentence(target, part, min(sentence, len(self.rows) - 1), transposed)
        else:
            self._block_by_block(by_sentence[1], by_sentence[0], transposed)

    def _block_by_block(self, out: Tensor, x: Tensor, transposed: bool) -> None:
        """Run all sentences together, one block behind the other; (batch, m, channels)."""
        batch = x.shape[0]
        carry: Tensor | None = None  # (batch, 1, channels)
        order = range(self.blocks)
        for k in reversed(order) if transposed else order:
            start = k * self.block
            size = min(self.block, self.m - start)
            matrix, outer, inner = self._parts(k, size, transposed)
            part, target = x[:, start : start + size], out[:, start : start + size]
            product = torch.bmm(matrix.expand(batch, -1, -1), part)
            if carry is None:
                target.copy_(product)
            elif target.dtype == product.dtype:
                torch.addcmul(product, outer[:, :, None], carry, out=target)
            else:
                target.copy_(product.addcmul_(outer[:, :, None], carry))
            if k != (0 if transposed else self.blocks - 1):
                total = torch.bmm(inner[:, None].expand(batch, -1, -1), part)
                carry = total if carry is None else carry.add_(total)

    def _parts(self, k: int, size: int, transposed: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return block k's matrix and its row and column weights, (batch or 1, …)."""
        matrix = self.diagonal[:, k, :size, :size]
        rows, columns = self.rows[:, k, :size], self.columns[:, k, :size]
        return (matrix.transpose(1, 2), columns, rows) if transposed else (matrix, rows, columns)

    def _one_sentence(self, out: Tensor, x: Tensor, sentence: int, transposed: bool) -> None:
        """Run all blocks of a sentence together; (m, channels)."""
        whole = self.m // self.block
        split = whole * self.block
        diagonal = self.diagonal[sentence]
        outer, inner = self.rows[sentence], self.columns[sentence]
        if transposed:
            diagonal, outer, inner = diagonal.transpose(1, 2), inner, outer
        blocks = x[:split].unflatten(0, (whole, self.block))  # (blocks, block, channels)
        totals = torch.bmm(inner[:whole, None], blocks)  # (blocks, 1, channels)
        rest = self.m - split
        if transposed:
            last = inner[whole, None, :rest] @ x[split:] if rest else totals.new_zeros(())
            carry = totals.flip(0).cumsum(0).flip(0)
            carry = last + F.pad(carry[1:], (0, 0, 0, 0, 0, 1))
        else:
            carried = totals.cumsum(0)
            carry = F.pad(carried[:-1], (0, 0, 0, 0, 1, 0))
        product = torch.bmm(diagonal[:whole], blocks)
        target = out[:split].unflatten(0, (whole, self.block))
        if target.dtype == product.dtype:
            torch.addcmul(product, outer[:whole, :, None], carry, out=target)
        else:
            target.copy_(product.addcmul_(outer[:whole, :, None], carry))
        if rest:
            product = diagonal[whole, :rest, :rest] @ x[split:]
            if not transposed:
                product.addcmul_(outer[whole, :rest, None], carried[-1])
            out[split:].copy_(product)
