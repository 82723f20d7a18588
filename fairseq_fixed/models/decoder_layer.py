"""The decoder layer: fairseq's, with a self-attention whose heads are chosen one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq.incremental_decoding_utils import FairseqIncrementalState
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.quant_noise import quant_noise
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor

from fairseq_fixed.attention.causal import CausalAttention, CausalLayout, Step
from fairseq_fixed.heads import HeadSpec
from fairseq_fixed.models.joint_projection import split_joint_projection

__all__ = ["DecoderSelfAttention", "FixedTransformerDecoderLayer"]


_STATE = "attn_state"


class DecoderSelfAttention(FairseqIncrementalState, CausalAttention):
    """`CausalAttention` in the place of fairseq's `MultiheadAttention`, with its call and state."""

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        attn_mask: CausalLayout | Step,
        incremental_state: dict[str, dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Attend over whole sentences, or from one more token.

        Args:
            query: (n, batch, embed_dim), or (1, batch, embed_dim) of the newest token.
            key: not used: it is `query`.
            value: likewise.
            attn_mask: what the decoder layer passes on in the place of fairseq's mask: where the
                sentences lie, or which token comes.
            incremental_state: fairseq's dictionary of states, while translating.
            **kwargs: of fairseq's call, not used: `key_padding_mask`, `need_weights`.

        Returns:
            (n, batch, embed_dim), undefined at padding, and None in place of the weights.
        """
        if isinstance(attn_mask, CausalLayout):
            return super().forward(query, attn_mask), None
        out, state = self.step(query, attn_mask, self._get_input_buffer(incremental_state) or None)
        self._set_input_buffer(incremental_state, state)
        return out, None

    def reorder_incremental_state(
        self, incremental_state: dict[str, dict[str, Any]], new_order: Tensor
    ) -> dict[str, dict[str, Any]]:
        """Let the state follow the beams, and drop that of finished sentences."""
        state = self._get_input_buffer(incremental_state)
        if state:
            self._set_input_buffer(incremental_state, self.reorder(state, new_order))
        return incremental_state

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Split the joint projection of very old checkpoints, as fairseq's attention does."""
        split_joint_projection(state_dict, name)

    # fairseq's names; its decoder layer calls them

    def _get_input_buffer(self, incremental_state: Any) -> dict[str, Any]:
        state = FairseqIncrementalState.get_incremental_state(self, incremental_state, _STATE)
        return state or {}

    def _set_input_buffer(self, incremental_state: Any, state: dict[str, Any]) -> None:
        FairseqIncrementalState.set_incremental_state(self, incremental_state, _STATE, state)


class FixedTransformerDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer; its self-attention takes `CausalLayout` or `Step` as its mask.

    Parameters are named as in fairseq's layer.

    Args:
        cfg: fairseq's configuration.
        heads: one spec a head of the self-attention.
        no_encoder_attn: no attention to the encoder.
        head_options: what kinds of heads take (`edge`, …).
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        heads: Sequence[HeadSpec],
        *,
        no_encoder_attn: bool = False,
        head_options: dict[str, Any] | None = None,
    ) -> None:
        # read while fairseq's constructor builds the self-attention
        self._heads, self._head_options = heads, head_options or {}
        super().__init__(cfg, no_encoder_attn)
        del self._heads, self._head_options
        for module in (self.dropout_module, self.activation_dropout_module):
            module.module_name = "TransformerDecoderLayerBase"  # for --retain-dropout-modules

    def build_self_attention(
        self,
        embed_dim: int,
        cfg: TransformerConfig,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
    ) -> DecoderSelfAttention:
        """Build the self-attention of mixed heads, with fairseq's quantization noise.

        Raises:
            ValueError: keys that belong to no token, which fixed heads have no use for.
        """
        if add_bias_kv or add_zero_attn:
            raise ValueError("--decoder-heads: fixed heads have no keys beyond the tokens")
        attention = DecoderSelfAttention(
            embed_dim, self._heads, dropout=cfg.attention_dropout, **self._head_options
        )
        noise = (cfg.quant_noise.pq, cfg.quant_noise.pq_block_size)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            projection = getattr(attention, name)
            if projection is not None:
                setattr(attention, name, quant_noise(projection, *noise))
        return attention
