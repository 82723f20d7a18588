"""Named sizes of `fixed_transformer`, after fairseq's architectures of the same names."""

from __future__ import annotations

from typing import Any

from fairseq.models import register_model_architecture
from fairseq.models.transformer import transformer_legacy

from fairseq_fixed.models.model import FixedTransformerModel  # noqa: F401  registers the model
from fairseq_fixed.models.options import set_defaults

__all__ = ["fixed_transformer", "iwslt_de_en", "tiny", "wmt_en_de", "wmt_en_de_big"]


def _default(args: Any, **values: object) -> None:
    for name, value in values.items():
        setattr(args, name, getattr(args, name, value))


@register_model_architecture("fixed_transformer", "fixed_transformer")
def fixed_transformer(args: Any) -> None:
    """6+6 layers, d = 512, feed-forward 2048, 8 heads: seven fixed, one learned."""
    set_defaults(args)
    transformer_legacy.base_architecture(args)


@register_model_architecture("fixed_transformer", "fixed_transformer_iwslt_de_en")
def iwslt_de_en(args: Any) -> None:
    """Size of fairseq's `transformer_iwslt_de_en` (512/1024), 8 encoder heads, not 4."""
    _default(args, encoder_attention_heads=8)
    set_defaults(args)
    transformer_legacy.transformer_iwslt_de_en(args)


@register_model_architecture("fixed_transformer", "fixed_transformer_tiny")
def tiny(args: Any) -> None:
    """3+3 layers, d = 128, feed-forward 256: trains on a CPU in minutes."""
    _default(
        args,
        encoder_embed_dim=128,
        encoder_ffn_embed_dim=256,
        encoder_layers=3,
        encoder_attention_heads=8,
        decoder_layers=3,
        decoder_attention_heads=4,
    )
    fixed_transformer(args)


@register_model_architecture("fixed_transformer", "fixed_transformer_wmt_en_de")
def wmt_en_de(args: Any) -> None:
    """Size of fairseq's `transformer_wmt_en_de`: the base size."""
    set_defaults(args)
    transformer_legacy.transformer_wmt_en_de(args)


@register_model_architecture("fixed_transformer", "fixed_transformer_wmt_en_de_big")
def wmt_en_de_big(args: Any) -> None:
    """Size of fairseq's `transformer_wmt_en_de_big`: d = 1024, 16 heads, two of them learned."""
    _default(args, encoder_heads="2xcurrent+2xprevious+2xnext+2xleft+2xright+2xend+2xstart+2l")
    set_defaults(args)
    transformer_legacy.transformer_wmt_en_de_big(args)
