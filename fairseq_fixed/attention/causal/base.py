"""What every family of causal heads has: a definition, a parallel operator, a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from fairseq_fixed.attention.base import FixedHead
from fairseq_fixed.attention.causal.layout import CausalLayout, Step
from fairseq_fixed.heads import HeadSpec

__all__ = ["CausalHeads", "FixedHeads", "lasting", "prefix_weights"]


@contextmanager
def lasting() -> Iterator[None]:
    """Make constants that are kept: first used while translating, perhaps, then in training."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class CausalHeads(nn.Module):
    """The heads of one family in a layer, whether they are neighbours or not.

    A family has three faces, held together by property tests: :meth:`weights`, the dense
    definition, for tests and analysis; :meth:`attend`, the operator over whole sentences, for
    training; and :meth:`step`, the same one token at a time, for translating. Heads that share
    a family share its state and its operations: at one token a step, their number is the cost.

    Args:
        specs: one a head.
        head_dim: channels of a head.
    """

    #: whether the heads score queries against keys, and so need both projections
    scored: ClassVar[bool] = False

    def __init__(self, specs: Sequence[HeadSpec], head_dim: int) -> None:
        super().__init__()
        self.specs = tuple(specs)
        self.num_heads = len(self.specs)
        self.head_dim = head_dim

    @classmethod
    def family(cls, spec: HeadSpec) -> object:
        """Return what heads of this class must have in common to share a family."""
        return None

    def weights(
        self,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the attention matrices, (batch, heads, n, n): the definition.

        Rows and columns of padding that the layout knows of are zero. `queries` and `keys`,
        (n, batch, heads, head_dim), are given to scored heads alone.
        """
        raise NotImplementedError

    def attend(
        self,
        values: Tensor,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Return weights · values; all (n, batch, heads, head_dim).

        `values` is zero at padding that the layout knows of; what is returned there is undefined.
        `dropout` is of learned weights.
        """
        raise NotImplementedError

    def step(
        self, inputs: Tensor, step: Step, state: Any, dropout: float = 0.0
    ) -> tuple[Tensor, Any]:
        """Attend from one more token.

        Args:
            inputs: (batch, heads, 1, head_dim), the token's values, zero where it is padding; for
                scored heads (batch, heads, 3, head_dim): keys, values, and queries times 1/√k.
            step: which token it is.
            state: what the step before returned; None at the first token.
            dropout: of learned weights.

        Returns:
            (batch, heads, head_dim), and the state for the next step: a tensor, a tuple of tensors,
            or None for no state.
        """
        raise NotImplementedError

    def reorder(self, state: Any, order: Tensor, tokens: int) -> Any:
        """Return the state of sentences `order`, (batch,) int64: some dropped, some repeated.

        `tokens` were seen so far.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Name the heads."""
        return f"{'+'.join(map(str, self.specs))}, head_dim={self.head_dim}"


class FixedHeads(CausalHeads):
    """Heads whose rows depend on positions alone: those that the encoder's heads give prefixes.

    Args:
        specs: one a head.
        head_dim: channels of a head.
        **options: what the encoder's heads take: `edge`, `gaussian_rows`.
    """

    def __init__(self, specs: Sequence[HeadSpec], head_dim: int, **options: object) -> None:
        super().__init__(specs, head_dim)
        from fairseq_fixed.attention.mixed import head_class  # which imports this package's rest

        #: the encoder's heads, which define these, by spec
        self.definitions = {
            spec: cast(FixedHead, head_class(spec.kind)(1, head_dim, *spec.args, **options))
            for spec in dict.fromkeys(specs)
        }

    def rows(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the weights of keys j for queries i, (batch, heads, queries, keys) float64.

        Args:
            i: (batch, queries, 1) positions, float64; negative: before the sentence.
            j: (batch, 1, keys) positions.
        """
        each = {spec: prefix_weights(head, i, j) for spec, head in self.definitions.items()}
        return torch.stack([each[spec] for spec in self.specs], dim=1)

    def weights(
        self,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return (batch, heads, n, n): row i is that of the last token of the prefix 0 … i."""
        position = layout.position.t().double()
        matrix = self.rows(position[:, :, None], position[:, None, :])
        return (matrix * layout.visible[:, None]).to(dtype)


def prefix_weights(head: FixedHead, i: Tensor, j: Tensor) -> Tensor:
    """Return the rows that an encoder's head gives the last tokens of prefixes.

    Args:
        head: it says what a row holds; the sentence is the prefix 0 … i, so n = i + 1.
        i: (batch, queries, 1) positions, floating point; negative: before the sentence.
        j: (batch, 1, keys) positions.

    Returns:
        (batch, queries, keys): normalised, and edge rows filled, as the head says.
    """
    n = i + 1
    inside = (j >= 0) & (j <= i)
    raw = head.rows(i, j, n) * inside
    total = raw.sum(dim=-1, keepdim=True)
    empty = total == 0
    matrix = raw / total.masked_fill(empty, 1)
    if head.edge == "self":
        matrix = torch.where(empty, (i == j).to(raw), matrix)
    elif head.edge == "clamp":
        matrix = torch.where(empty, (j == head.edge_key(n)).to(raw), matrix)
    return matrix * inside
