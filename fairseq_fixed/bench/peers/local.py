"""The `local-attention` package's windowed attention, for bands."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fairseq_fixed.bench.errors import UnavailableError
from fairseq_fixed.bench.peers.base import PAD, Sublayer
from fairseq_fixed.bench.peers.weights import Projections
from fairseq_fixed.heads import HeadSpec

__all__ = ["Local"]


class Local(Sublayer):
    """`local_attention.LocalAttention` between one fused projection and the output projection.

    Windows of W queries that look one window back and one ahead, with `exact_windowsize`: the
    keys with |i - j| ≤ W, as in `band:W`. Its rotary positions are off. What differs:

    - lengths that are no multiple of W are padded by the package (`autopad`); it then attends to
      that padding unless it is given a mask, so it is given one there even without padding;
    - a query whose keys are all padding gets their mean, ours an undefined value. Neither is used.

    The package has no other band than this: W = 0, further keys and mixes of widths are left out.

    Raises:
        UnavailableError: heads that are not all one band of W ≥ 1; or the package is missing.
    """

    batch_first = True

    def __init__(self, specs: Sequence[HeadSpec], weights: Projections, d: int, dropout: float):
        super().__init__()
        spec = specs[0]
        if len(set(specs)) > 1 or spec.kind != "band" or spec.args[0] < 1 or spec.args[1]:
            raise UnavailableError("local-attention has one band of W ≥ 1 for all heads, no more")
        try:
            from local_attention import LocalAttention
        except ImportError:
            raise UnavailableError(
                "local-attention is not installed: pip install 'fairseq-fixed-attention[bench]'"
            ) from None
        self.heads = len(specs)
        self.width = int(spec.args[0])
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        weight, bias = weights.stacked("q_proj", "k_proj", "v_proj")
        self.qkv.load_state_dict({"weight": weight, "bias": bias})
        self.out.load_state_dict(
            {"weight": weights.weight["out_proj"], "bias": weights.bias["out_proj"]}
        )
        self.attention = LocalAttention(
            window_size=self.width,
            causal=False,
            look_backward=1,
            look_forward=1,
            exact_windowsize=True,
            autopad=True,
            dropout=dropout,
            use_rotary_pos_emb=False,
        )

    def prepare(self, tokens: Tensor) -> Tensor | None:
        """Return (batch, n) bool, True at real tokens, or None where none is needed."""
        real = tokens.ne(PAD)
        return None if tokens.shape[1] % self.width == 0 and bool(real.all()) else real

    def forward(self, x: Tensor, prepared: Tensor | None) -> Tensor:
        """Attend; x is (batch, n, d), `prepared` the mask of real tokens."""
        batch, n, d = x.shape
        # (batch, n, 3 d) -> three of (batch, heads, n, head_dim)
        q, k, v = self.qkv(x).view(batch, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        out = self.attention(q, k, v, mask=prepared)
        return self.out(out.transpose(1, 2).reshape(batch, n, d))
