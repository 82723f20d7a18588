"""The encoder layer: mixed-head self-attention, then the feed-forward block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairseq import utils
from fairseq.modules import LayerNorm
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from fairseq_fixed.attention import MixedHeadAttention
from fairseq_fixed.heads import HeadSpec
from fairseq_fixed.layout import SequenceLayout
from fairseq_fixed.models.joint_projection import split_joint_projection

__all__ = ["FixedTransformerEncoderLayer"]


class FixedTransformerEncoderLayer(nn.Module):
    """An encoder layer whose heads are chosen one by one.

    Parameters are named as in fairseq's `TransformerEncoderLayer`, so vanilla weights can be
    converted. It does not derive from that class: some versions of it read projections that
    fixed heads lack, and skip a custom attention in their inference fast path.

    Args:
        embed_dim: channels d of the model.
        ffn_embed_dim: channels inside the feed-forward block.
        heads: one spec a head.
        dropout: after attention and after the feed-forward block.
        attention_dropout: of learned heads' weights; fixed heads' weights are never dropped.
        activation_dropout: inside the feed-forward block.
        activation_fn: name of fairseq's activation function.
        normalize_before: layer norm before each block rather than after it.
        q_noise: share of quantization noise.
        qn_block_size: its block size.
        export: whether layer norms can be exported.
        return_fc: also return the feed-forward block's output.
        head_options: what kinds of heads take (`edge`, …).
    """

    def __init__(
        self,
        embed_dim: int,
        ffn_embed_dim: int,
        heads: Sequence[HeadSpec],
        *,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation_fn: str = "relu",
        normalize_before: bool = False,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
        export: bool = False,
        return_fc: bool = False,
        head_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        name = "TransformerEncoderLayerBase"  # fairseq's, for --retain-dropout-modules
        self.self_attn = MixedHeadAttention(
            embed_dim, heads, dropout=attention_dropout, **(head_options or {})
        )
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            module = getattr(self.self_attn, projection)
            if module is not None:
                setattr(self.self_attn, projection, quant_noise(module, q_noise, qn_block_size))
        self.self_attn_layer_norm = LayerNorm(embed_dim, export=export)
        self.dropout_module = FairseqDropout(dropout, module_name=name)
        self.activation_fn = utils.get_activation_fn(activation=activation_fn)
        self.activation_dropout_module = FairseqDropout(activation_dropout, module_name=name)
        self.normalize_before = normalize_before
        self.fc1 = quant_noise(nn.Linear(embed_dim, ffn_embed_dim), q_noise, qn_block_size)
        self.fc2 = quant_noise(nn.Linear(ffn_embed_dim, embed_dim), q_noise, qn_block_size)
        self.final_layer_norm = LayerNorm(embed_dim, export=export)
        self.return_fc = return_fc

    def forward(self, x: Tensor, layout: SequenceLayout) -> Tensor | tuple[Tensor, Tensor]:
        """Run the layer.

        Args:
            x: (n, batch, embed_dim).
            layout: of this batch.

        Returns:
            (n, batch, embed_dim), and with `return_fc` the feed-forward block's output beside it.
        """
        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x)
        x = self.dropout_module(self.self_attn(x, layout)) + residual
        if not self.normalize_before:
            x = self.self_attn_layer_norm(x)

        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x)
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        fc_result = self.fc2(x)
        x = self.dropout_module(fc_result) + residual
        if not self.normalize_before:
            x = self.final_layer_norm(x)
        return (x, fc_result) if self.return_fc else x

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Rename what very old checkpoints hold, as fairseq's layer does."""
        split_joint_projection(state_dict, f"{name}.self_attn")
        for old, new in (("0", "self_attn_layer_norm"), ("1", "final_layer_norm")):
            for part in ("weight", "bias"):
                key = f"{name}.layer_norms.{old}.{part}"
                if key in state_dict:
                    state_dict[f"{name}.{new}.{part}"] = state_dict.pop(key)
