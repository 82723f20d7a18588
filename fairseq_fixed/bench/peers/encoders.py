"""Whole encoders that are neither fairseq's transformer nor ours."""

from __future__ import annotations

import argparse
import contextlib
import io
from typing import Any

import torch
from fairseq.models.lightconv import LightConvEncoder
from torch import Tensor, nn

from fairseq_fixed.bench.peers.base import PAD
from fairseq_fixed.bench.peers.lightconv import KERNELS

__all__ = ["TorchEncoder", "build_lightconv"]


class TorchEncoder(nn.Module):
    """`torch.nn.TransformerEncoder` between fairseq's embedding and its final norm.

    The weights are copied from fairseq's encoder: the same function. Batch first, as torch's
    encoder is fastest. Its layers have one dropout for all; here each has fairseq's.

    Args:
        vanilla: fairseq's encoder.
        args: the options it was built with.
    """

    def __init__(self, vanilla: Any, args: argparse.Namespace):
        super().__init__()
        self.embed_tokens = vanilla.embed_tokens
        self.embed_positions = vanilla.embed_positions
        self.embed_scale = vanilla.embed_scale
        self.dropout = nn.Dropout(args.dropout)
        layer = nn.TransformerEncoderLayer(
            args.encoder_embed_dim,
            args.encoder_attention_heads,
            args.encoder_ffn_embed_dim,
            dropout=args.dropout,
            activation=args.activation_fn,
            batch_first=True,
            norm_first=args.encoder_normalize_before,
        )
        # torch refuses nested tensors with norm_first, and warns where they are asked for
        self.encoder = nn.TransformerEncoder(
            layer,
            args.encoder_layers,
            norm=vanilla.layer_norm,
            enable_nested_tensor=not args.encoder_normalize_before,
        )
        for mine, theirs in zip(self.encoder.layers, vanilla.layers, strict=True):
            mine.self_attn.dropout = args.attention_dropout
            mine.dropout.p = args.activation_dropout
            mine.load_state_dict(_torch_names(theirs.state_dict()))

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode (batch, n) tokens; returns (batch, n, d)."""
        mask = tokens.eq(PAD)
        x = self.embed_scale * self.embed_tokens(tokens)
        if self.embed_positions is not None:
            x = x + self.embed_positions(tokens)
        x = self.dropout(x)
        return self.encoder(x, src_key_padding_mask=mask if bool(mask.any()) else None)


def _torch_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a fairseq layer's state under the names of torch's layer."""
    names = {
        "self_attn.out_proj": "self_attn.out_proj",
        "fc1": "linear1",
        "fc2": "linear2",
        "self_attn_layer_norm": "norm1",
        "final_layer_norm": "norm2",
    }
    found = {
        f"{new}.{kind}": state[f"{old}.{kind}"]
        for old, new in names.items()
        for kind in ("weight", "bias")
    }
    for kind in ("weight", "bias"):
        found[f"self_attn.in_proj_{kind}"] = torch.cat(
            [state[f"self_attn.{name}_proj.{kind}"] for name in "qkv"]
        )
    return found


def build_lightconv(args: argparse.Namespace, dictionary: Any, embed_tokens: nn.Embedding) -> Any:
    """Build fairseq's LightConv encoder of a transformer's sizes.

    Kernels and the lack of a gated linear unit are those of `lightconv_iwslt_de_en`; attention
    dropout is the convolutions' weight dropout. Another function than attention.
    """
    kernels = [KERNELS[min(i, len(KERNELS) - 1)] for i in range(args.encoder_layers)]
    options = argparse.Namespace(**vars(args))
    options.encoder_conv_dim = args.encoder_embed_dim
    options.encoder_conv_type = "lightweight"
    options.encoder_glu = False
    options.encoder_kernel_size_list = kernels
    options.weight_softmax = True
    options.weight_dropout = args.attention_dropout
    options.relu_dropout = args.activation_dropout
    options.input_dropout = 0.0
    # prints where its CUDA kernel was not compiled
    with contextlib.redirect_stdout(io.StringIO()):
        return LightConvEncoder(options, dictionary, embed_tokens)
