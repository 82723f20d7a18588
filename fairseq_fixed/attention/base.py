"""What every kind of head has: a dense definition and a fast operator."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_fixed.layout import SequenceLayout

__all__ = ["EDGES", "FixedHead", "Head", "compute_dtype"]

EDGES = ("zero", "self", "clamp")


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype sums are kept in: float32 for half precision, else the tensor's own."""
    return torch.promote_types(tensor.dtype, torch.float32)


class Head(nn.Module):
    """A run of `num_heads` neighbouring heads of one kind.

    A kind is one subclass with two faces that a property test holds together: :meth:`weights`,
    the dense attention matrix, the definition, for tests, plots and analysis; and
    :meth:`attend`, the operator that training runs.

    Where the matrix depends on the layout alone, a kind may say :attr:`writes` and implement
    :meth:`write` and :meth:`write_transposed` in place of :meth:`attend`: such heads write their
    slice of the layer's output, and of its gradient, in place. Nothing is joined, padded or kept
    for the backward pass.

    A subclass takes `num_heads`, `head_dim`, its grammar arguments by position and any option of
    `MixedHeadAttention` that it names among its keyword arguments.
    """

    #: whether the head scores queries against keys, and so needs both projections
    scored: ClassVar[bool] = False
    #: whether the kind has :meth:`write` and its transpose
    writes: ClassVar[bool] = False
    #: whether :meth:`attend` needs values to be zero at padding
    zero_padding: ClassVar[bool] = True
    #: what the layout must know of the tokens: "words" (their boundaries), "rarity" (counts)
    needs: frozenset[str] = frozenset()

    #: of the attention weights, in training; kinds that have it set it
    dropout: float = 0.0

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.retain_dropout = False

    @property
    def drops(self) -> bool:
        """Whether what is dropped at random in training is dropped now."""
        return self.training or self.retain_dropout

    @property
    def dropout_p(self) -> float:
        """The dropout in force now."""
        return self.dropout if self.drops else 0.0

    def make_generation_fast_(
        self,
        name: str,
        retain_dropout: bool = False,
        retain_dropout_modules: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep dropout while generating, where fairseq-generate is asked to (`--retain-dropout`).

        `--retain-dropout-modules` may name this kind's class, or `MultiheadAttention`, fairseq's
        name for what stands in this place.
        """
        names = {type(self).__name__, "MixedHeadAttention", "MultiheadAttention"}
        chosen = retain_dropout_modules is None or not names.isdisjoint(retain_dropout_modules)
        self.retain_dropout = retain_dropout and chosen

    def weights(
        self,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the attention matrices, (batch, num_heads, n, n): the head's definition.

        Rows and columns of padding are zero. `queries` and `keys`, (n, batch, num_heads *
        head_dim), are given to scored heads alone.
        """
        raise NotImplementedError

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Return weights · values, (n, batch, num_heads * head_dim), without the matrix.

        `values` is finite, and zero at padding where the class says `zero_padding`; what is
        returned at padding is undefined. Scored heads also take, and then return, tensors that
        are split by head: (n, batch, num_heads, head_dim).
        """
        if self.writes:
            return _Written.apply(values, self, layout)
        raise NotImplementedError

    def write(self, out: Tensor, values: Tensor, layout: SequenceLayout) -> None:
        """Write weights · values into `out`; both (n, batch, channels), of any strides.

        `values` is finite, at padding too; what is written there is undefined.
        """
        raise NotImplementedError

    def write_transposed(self, grad: Tensor, grad_out: Tensor, layout: SequenceLayout) -> None:
        """Write weightsᵀ · grad_out, the values' gradient, into `grad`; shapes as in `write`."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Name the run's size."""
        return f"num_heads={self.num_heads}, head_dim={self.head_dim}"


class FixedHead(Head):
    """A head whose matrix depends on positions alone: no queries, no keys, no parameters.

    Attention dropout does not apply to it: there is no distribution to regularise, and dropping
    the single weight of `previous` would drop the whole head.

    Args:
        num_heads: neighbouring heads of this kind.
        head_dim: channels of a head.
        edge: what a row with nothing to attend to holds (`previous` at i = 0): `zero`, the head
            adds nothing there; `self`, the token itself; `clamp`, the token at the edge. The
            paper does not say (arXiv 2002.10260), and public re-implementations disagree.

    Raises:
        ValueError: an unknown `edge`.
    """

    def __init__(self, num_heads: int, head_dim: int, *, edge: str = "zero") -> None:
        super().__init__(num_heads, head_dim)
        if edge not in EDGES:
            raise ValueError(f"edge is {edge!r}; it must be one of {', '.join(EDGES)}")
        self.edge = edge

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """Return the unnormalised weight of key j for query i in a sentence of n tokens.

        Args:
            i: (batch, n, 1) query positions, floating point.
            j: (batch, 1, n) key positions.
            n: (batch, 1, 1) lengths.

        Returns:
            (batch, n, n), not negative; a row of zeros is an edge row.
        """
        raise NotImplementedError

    def edge_key(self, n: Tensor) -> Tensor:
        """Return the position that `edge="clamp"` attends to, of n's shape."""
        return torch.zeros_like(n)

    def weights(
        self,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return (batch, num_heads, n, n): rows normalised to one, edge rows as `edge` says."""
        # float64 throughout: cubes of positions overflow half precision and round in float32
        position = layout.position.t().double()
        i, j = position[:, :, None], position[:, None, :]
        n = layout.length.double()[:, None, None]
        inside = layout.inside.t()
        raw = self.rows(i, j, n) * (inside[:, :, None] & inside[:, None, :])
        total = raw.sum(dim=-1, keepdim=True)
        empty = total == 0
        matrix = raw / total.masked_fill(empty, 1)
        if self.edge == "self":
            matrix = torch.where(empty, (i == j).double(), matrix)
        elif self.edge == "clamp":
            matrix = torch.where(empty, (j == self.edge_key(n)).double(), matrix)
        matrix = (matrix * layout.visible).to(dtype)
        return matrix[:, None].expand(-1, self.num_heads, -1, -1)

    def edge_index(self, layout: SequenceLayout) -> Tensor:
        """Return the index of the token that `edge="clamp"` attends to, (batch,)."""
        return layout.start

    def edge_rows(self, layout: SequenceLayout, empty: Tensor, dtype: torch.dtype) -> Tensor:
        """Return 1 at the rows `empty` (n, batch) that `edge` fills, else 0; (n, batch, 1)."""
        rows = empty & layout.inside
        if self.edge == "self":
            rows = rows & layout.attendable.t()
        return rows.to(dtype)[:, :, None]

    def write_edge(self, out: Tensor, values: Tensor, rows: Tensor, layout: SequenceLayout) -> None:
        """Add to `out` what `edge` says of the rows with nothing to attend to.

        Args:
            out: (n, batch, channels), zero at those rows.
            values: (n, batch, channels).
            rows: from :meth:`edge_rows`.
            layout: of the batch.
        """
        if self.edge == "self":
            out.addcmul_(values, rows)
        elif self.edge == "clamp":
            out.addcmul_(values[self.edge_index(layout), layout.sentences], rows)

    def write_edge_transposed(
        self, grad: Tensor, grad_out: Tensor, rows: Tensor, layout: SequenceLayout
    ) -> None:
        """Add the transpose of :meth:`write_edge` to `grad`."""
        if self.edge == "self":
            grad.addcmul_(grad_out, rows)
        elif self.edge == "clamp":
            grad[self.edge_index(layout), layout.sentences] += (grad_out * rows).sum(0)

    def fill_edge(self, out: Tensor, values: Tensor, empty: Tensor, edge_index: Tensor) -> Tensor:
        """Fill the rows that have nothing to attend to, as `edge` says.

        Args:
            out: (n, batch, channels), zero at the empty rows.
            values: (n, batch, channels).
            empty: (n, batch, 1) bool.
            edge_index: (batch,) index of the token that `clamp` attends to.
        """
        if self.edge == "zero":
            return out
        if self.edge == "self":
            return torch.where(empty, values, out)
        batch = torch.arange(values.shape[1], device=values.device)
        return torch.where(empty, values[edge_index, batch], out)


class _Written(torch.autograd.Function):
    """A head that writes, by itself: with its own output and gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, head: Head, layout: SequenceLayout) -> Tensor:
        ctx.head, ctx.layout = head, layout
        out = torch.empty_like(values, memory_format=torch.contiguous_format)
        head.write(out, values, layout)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad = torch.empty_like(grads[0], memory_format=torch.contiguous_format)
        ctx.head.write_transposed(grad, grads[0], ctx.layout)
        return grad, None, None
