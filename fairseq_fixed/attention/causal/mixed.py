"""The self-attention of a decoder layer whose heads are of different kinds."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_fixed.attention.causal.base import CausalHeads, lasting
from fairseq_fixed.attention.causal.layout import CausalLayout, Step
from fairseq_fixed.heads import HeadSpec

__all__ = ["CausalAttention", "family_class"]


def family_class(spec: HeadSpec) -> type[CausalHeads]:
    """Return the class that implements a kind of the grammar in a decoder."""
    module, _, name = spec.info.causal.partition(":")
    return getattr(importlib.import_module(f"fairseq_fixed.attention.causal.{module}"), name)


class CausalAttention(nn.Module):
    """Multi-head self-attention that looks back alone, with a kind of head for each head.

    Values are projected for all heads in one product, queries and keys for the heads that score
    them alone. Heads of a family run together, neighbours or not; where a family's heads are
    neighbours nothing has to be gathered, so write them side by side.

    Parameters are named as in fairseq's `MultiheadAttention`: `q_proj`, `k_proj` (absent where no
    head scores), `v_proj`, `out_proj`; rows of `q_proj` and `k_proj` are those of the scored heads
    in order. They start as the rows of a full matrix would.

    Args:
        embed_dim: channels d of the layer.
        heads: one spec a head, each of a kind that has a causal form.
        bias: whether the projections have biases.
        dropout: of learned weights, in training; fixed heads' weights are never dropped.
        edge: what a fixed head does where its pattern has nothing to attend to; see `FixedHead`.
        gaussian_rows: whether rows of `gaussian` heads sum to one; see `Gaussian`.

    Raises:
        HeadsError: a Gaussian head that sees only tokens which are not written yet.
        ValueError: `embed_dim` is not divisible by the number of heads; an unknown `edge` or
            `gaussian_rows`.
    """

    def __init__(
        self,
        embed_dim: int,
        heads: Sequence[HeadSpec],
        *,
        bias: bool = True,
        dropout: float = 0.0,
        edge: str = "zero",
        gaussian_rows: str = "renormalized",
    ) -> None:
        super().__init__()
        if not heads or embed_dim % len(heads):
            raise ValueError(f"embed_dim {embed_dim} is not divisible by {len(heads)} heads")
        self.embed_dim = embed_dim
        self.num_heads = len(heads)
        self.head_dim = embed_dim // len(heads)
        self.specs = tuple(heads)
        self.dropout = dropout
        self.retain_dropout = False

        members: dict[object, list[int]] = {}
        for index, spec in enumerate(heads):
            cls = family_class(spec)
            members.setdefault((cls, cls.family(spec)), []).append(index)
        scored = [index for index, spec in enumerate(heads) if family_class(spec).scored]
        options = {"edge": edge, "gaussian_rows": gaussian_rows}
        self._members = [
            _Member(
                name=str(number),
                family=_build([heads[index] for index in family], self.head_dim, options),
                heads=_Pick(family),
                scored=_Pick([scored.index(index) for index in family if index in scored]),
            )
            for number, family in enumerate(members.values())
        ]
        self.families = nn.ModuleList(member.family for member in self._members)
        order = [index for family in members.values() for index in family]
        self._join = _Pick([order.index(index) for index in range(len(heads))])

        self.scored_dim = self.head_dim * len(scored)
        self.q_proj = nn.Linear(embed_dim, self.scored_dim, bias=bias) if scored else None
        self.k_proj = nn.Linear(embed_dim, self.scored_dim, bias=bias) if scored else None
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections as fairseq does: Xavier, gain 1/√2 for the inputs'."""
        bound = math.sqrt(6 / (2 * self.embed_dim))
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            if projection is not None:
                nn.init.uniform_(projection.weight, -bound / math.sqrt(2), bound / math.sqrt(2))
        nn.init.uniform_(self.out_proj.weight, -bound, bound)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def _project(
        self, x: Tensor, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return values, zero where `hidden`, queries and keys: (…, heads, head_dim)."""
        values = self.v_proj(x)
        if hidden is not None:
            values = values.masked_fill(hidden, 0)
        queries = None if self.q_proj is None else _split(self.q_proj(x), self.head_dim)
        keys = None if self.k_proj is None else _split(self.k_proj(x), self.head_dim)
        return _split(values, self.head_dim), queries, keys

    def _inputs(
        self, x: Tensor, hidden: Tensor | None
    ) -> list[tuple[CausalHeads, Tensor, Tensor | None, Tensor | None]]:
        """Return each family with its heads' values, queries and keys."""
        values, queries, keys = self._project(x, hidden)
        parts = []
        for member in self._members:
            q = k = None
            if member.family.scored and queries is not None and keys is not None:
                q, k = member.scored(queries), member.scored(keys)
            parts.append((member.family, member.heads(values), q, k))
        return parts

    def _output(self, outs: list[Tensor]) -> Tensor:
        """Join the families' outputs (…, heads, head_dim) in the order of the heads."""
        joined = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-2)
        return self.out_proj(self._join(joined).flatten(-2))

    @property
    def dropout_p(self) -> float:
        """The dropout of learned weights that is in force now."""
        return self.dropout if self.training or self.retain_dropout else 0.0

    def forward(self, x: Tensor, layout: CausalLayout) -> Tensor:
        """Attend over whole sentences.

        Args:
            x: (n, batch, embed_dim).
            layout: of this batch.

        Returns:
            (n, batch, embed_dim); undefined at padding.
        """
        dropout, cast_down = self.dropout_p, _casts_down(x)
        outs = []
        for family, values, queries, keys in self._inputs(x, layout.hidden):
            with _precision(family, cast_down):
                outs.append(family.attend(values, layout, queries, keys, dropout))
        return self._output(outs)

    def step(
        self, x: Tensor, step: Step, state: dict[str, Any] | None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Attend from one more token of every sentence.

        Args:
            x: (1, batch, embed_dim).
            step: which token it is.
            state: what the step before returned; None at the first token.

        Returns:
            (1, batch, embed_dim), and the state for the next step: that of each family that has
            one, by the family's number, and what does not depend on the sentences.

        Raises:
            ValueError: a token was left out.
        """
        if state is None:
            state = {"tokens": 0, "projection": self._joint_projection()}
        if step.index != state["tokens"]:
            raise ValueError(
                f"incremental decoding takes one token a step: {state['tokens']} were seen, and "
                f"now comes token {step.index}, counted from 0"
            )
        new = {"tokens": step.index + 1, "projection": state["projection"]}
        inputs = self._step_inputs(x[0], step.hidden, state["projection"])
        dropout, cast_down = self.dropout_p, _casts_down(x)
        outs = []
        for member, part in zip(self._members, inputs, strict=True):
            with _precision(member.family, cast_down):
                out, kept = member.family.step(part, step, state.get(member.name), dropout)
            outs.append(out)
            if kept is not None:
                new[member.name] = kept
        return self._output(outs)[None], new

    def _joint_projection(self) -> tuple[Tensor, Tensor | None] | None:
        """Return keys', values' and queries' projections as one, for the steps of one batch.

        Its rows lie family by family, head by head, in the order that `CausalHeads.step` takes
        them in. None: there is nothing to join, or a projection is no plain layer.
        """
        if self.q_proj is None or self.k_proj is None:
            return None
        projections = [self.k_proj, self.v_proj, self.q_proj]
        if not all(
            type(p) is nn.Linear and not (p._forward_hooks or p._forward_pre_hooks)
            for p in projections
        ):
            return None

        def rows(name: str) -> Tensor | None:
            k, v, q = (getattr(p, name) for p in projections)
            if v is None:
                return None
            k, v, q = (_split(t.t(), self.head_dim) for t in (k, v, q * self.head_dim**-0.5))
            parts = [part.flatten(-3) for part in self._pick_inputs(v, q, k)]
            return torch.cat(parts, dim=-1).t().contiguous()

        weight = rows("weight")
        assert weight is not None
        return weight, rows("bias")

    def _pick_inputs(
        self, values: Tensor, queries: Tensor | None, keys: Tensor | None
    ) -> list[Tensor]:
        """Return what each family's step takes, (…, heads, 1 or 3, head_dim)."""
        parts = []
        for member in self._members:
            part = member.heads(values)
            if member.family.scored and queries is not None and keys is not None:
                parts.append(torch.stack([member.scored(keys), part, member.scored(queries)], -2))
            else:
                parts.append(part.unsqueeze(-2))
        return parts

    def _step_inputs(
        self, x: Tensor, hidden: Tensor | None, projection: tuple[Tensor, Tensor | None] | None
    ) -> list[Tensor]:
        """Project one token (batch, embed_dim); return what each family's step takes."""
        if projection is None:
            values, queries, keys = self._project(x, hidden)
            queries = None if queries is None else queries * self.head_dim**-0.5
            return self._pick_inputs(values, queries, keys)
        joint = F.linear(x, *projection)
        if hidden is not None:
            joint = joint.masked_fill(hidden, 0)
        widths = [member.width for member in self._members]
        return [
            part.view(len(x), member.family.num_heads, -1, self.head_dim)
            for member, part in zip(self._members, joint.split(widths, 1), strict=True)
        ]

    def reorder(self, state: dict[str, Any], order: Tensor) -> dict[str, Any]:
        """Return the state of sentences `order`, (batch,) int64: some dropped, some repeated."""
        new = {"tokens": state["tokens"], "projection": state["projection"]}
        for member in self._members:
            if member.name in state:
                old = state[member.name]
                new[member.name] = member.family.reorder(old, order, state["tokens"])
        return new

    def weights(self, x: Tensor, layout: CausalLayout) -> Tensor:
        """Return all heads' attention matrices, (batch, heads, n, n), dense: for analysis."""
        matrices = [
            family.weights(layout, queries, keys, x.dtype)
            for family, _, queries, keys in self._inputs(x, layout.hidden)
        ]
        order = torch.tensor(self._join.index, device=x.device)
        return torch.cat(matrices, dim=1).index_select(1, order)

    def make_generation_fast_(
        self,
        name: str,
        retain_dropout: bool = False,
        retain_dropout_modules: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep dropout while generating, where fairseq-generate is asked to (`--retain-dropout`).

        `--retain-dropout-modules` may name `MultiheadAttention`, fairseq's name for what stands
        in this place.
        """
        names = {type(self).__name__, "CausalAttention", "MultiheadAttention"}
        chosen = retain_dropout_modules is None or not names.isdisjoint(retain_dropout_modules)
        self.retain_dropout = retain_dropout and chosen

    def extra_repr(self) -> str:
        """Name the layer's size."""
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"


class _Pick:
    """Picks heads of a tensor (…, heads, head_dim): a view where they are neighbours in order."""

    def __init__(self, index: list[int]) -> None:
        self.index = index
        self.neighbours = bool(index) and index == list(range(index[0], index[0] + len(index)))
        self._tensors: dict[torch.device, Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        if self.neighbours:
            if len(self.index) == x.shape[-2]:
                return x
            return x.narrow(-2, self.index[0], len(self.index))
        if x.device not in self._tensors:
            with lasting():
                self._tensors[x.device] = torch.tensor(self.index, device=x.device)
        return x.index_select(x.dim() - 2, self._tensors[x.device])


@dataclass(frozen=True)
class _Member:
    """A family, its name in the state, and which heads, and scored heads, of the layer it has."""

    name: str
    family: CausalHeads
    heads: _Pick
    scored: _Pick

    @property
    def width(self) -> int:
        """Rows of the joint projection."""
        return self.family.num_heads * self.family.head_dim * (3 if self.family.scored else 1)


def _split(x: Tensor, head_dim: int) -> Tensor:
    """View (…, heads * head_dim) as (…, heads, head_dim)."""
    return x.view(*x.shape[:-1], -1, head_dim)


def _casts_down(x: Tensor) -> str | None:
    """Return the device type on which autocast (fairseq's --amp) is on, or None."""
    return x.device.type if torch.is_autocast_enabled(x.device.type) else None


def _precision(family: CausalHeads, cast_down: str | None) -> AbstractContextManager[Any]:
    """Keep autocast from taking fixed heads' sums back to half precision."""
    if cast_down is None or family.scored:
        return _AS_IT_IS
    return torch.autocast(cast_down, enabled=False)


_AS_IT_IS = nullcontext()


def _build(specs: Sequence[HeadSpec], head_dim: int, options: Mapping[str, object]) -> CausalHeads:
    """Build a family with the options that it takes."""
    cls = family_class(specs[0])
    known = inspect.signature(cls.__init__).parameters
    taken = {name: value for name, value in options.items() if name in known}
    return cls(specs, head_dim, **taken)
