"""The decoder: fairseq's, with layers whose self-attention heads are chosen one by one."""

from __future__ import annotations

from typing import Any

from fairseq.data import Dictionary
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_fixed.attention.causal import CausalLayout, Step
from fairseq_fixed.heads import HeadsError, parse_heads
from fairseq_fixed.models.decoder_layer import FixedTransformerDecoderLayer
from fairseq_fixed.models.options import causal_options

__all__ = ["FixedTransformerDecoder"]


class FixedTransformerDecoder(TransformerDecoderBase):
    """fairseq's transformer decoder with self-attention of mixed causal heads.

    Embeddings, positions, attention to the encoder, layer drop, quantization noise, activation
    checkpointing, FSDP wrapping and the output are fairseq's.

    Args:
        cfg: fairseq's configuration with the options of `models/options.py` beside it.
        dictionary: of the target language.
        embed_tokens: the token embedding.
        no_encoder_attn: no attention to the encoder.

    Raises:
        HeadsError: heads that do not fit the decoder, or that look ahead.
        ValueError: an option that cannot work with these layers.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        no_encoder_attn: bool = False,
    ) -> None:
        for name, value in (
            ("--cross-self-attention", cfg.cross_self_attention),
            ("--decoder-xformers-att-config", cfg.decoder.xformers_att_config),
        ):
            if value:
                raise ValueError(
                    f"{name} replaces the self-attention that --decoder-heads chooses; leave one "
                    "of them out"
                )
        # fairseq asks for layers one by one without saying which: deal the specs out in order
        self._specs_left = list(
            parse_heads(
                cfg.decoder_heads,
                layers=cfg.decoder.layers,
                heads=cfg.decoder.attention_heads,
                embed_dim=cfg.decoder.embed_dim,
                side="decoder",
            )
        )
        self._head_options = causal_options(cfg, self._specs_left)
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        if self._specs_left:
            raise HeadsError(f"heads: {len(self._specs_left)} layers' heads were left over")
        del self._specs_left, self._head_options
        self.dropout_module.module_name = "TransformerDecoder"  # for --retain-dropout-modules
        self._with_state: list[Any] | None = None

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """Build the next layer, wrapped as fairseq wraps its own."""
        layer = FixedTransformerDecoderLayer(
            cfg,
            self._specs_left.pop(0),
            no_encoder_attn=no_encoder_attn,
            head_options=self._head_options,
        )
        if cfg.checkpoint_activations:
            layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        # under checkpointing FSDP wraps every layer, whatever its size, as in fairseq
        minimum = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
        return fsdp_wrap(layer, min_num_params=minimum)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Any]] | None,
        incremental_state: dict[str, dict[str, Any]] | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Decode without the output layer.

        Args:
            prev_output_tokens: (batch, n) tokens so far, padded on either side.
            encoder_out: what the encoder returned.
            incremental_state: fairseq's dictionary of states: then only the newest token is
                decoded, with what the states hold of those before it.
            full_context_alignment: not for heads that look back alone.
            alignment_layer: whose attention to the encoder is returned; None: the last.
            alignment_heads: average over this many of its heads; None: over all.

        Returns:
            (batch, n or 1, embed_dim), and `attn` and `inner_states` as fairseq's decoder returns
            them.

        Raises:
            ValueError: `full_context_alignment`.
        """
        if full_context_alignment:
            raise ValueError(
                "--full-context-alignment lets every token see those behind it; with "
                "--decoder-heads they look back alone"
            )
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        enc = _first(encoder_out, "encoder_out")
        enc_padding = _first(encoder_out, "encoder_padding_mask")

        layout: CausalLayout | Step
        if incremental_state is None:
            layout = CausalLayout.from_tokens(prev_output_tokens, self.padding_idx)
        else:
            layout = Step.from_tokens(prev_output_tokens, self.padding_idx)
            if layout.index == 0:
                self._with_state = None
        x = self._embed(prev_output_tokens, layout).transpose(0, 1)  # (n, batch, embed_dim)

        attn: Tensor | None = None
        inner_states = [x]
        for index, layer in enumerate(self.layers):
            # the layout travels in the place of fairseq's mask of future tokens
            x, layer_attn, _ = layer(
                x,
                enc,
                enc_padding,
                incremental_state,
                self_attn_mask=layout,
                need_attn=index == alignment_layer,
                need_head_weights=index == alignment_layer,
            )
            inner_states.append(x)
            if layer_attn is not None and index == alignment_layer:
                attn = layer_attn.float().to(x)
        if attn is not None:
            attn = attn[:alignment_heads].mean(dim=0)

        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": inner_states}

    def reorder_incremental_state_scripting(
        self, incremental_state: dict[str, dict[str, Any]], new_order: Tensor
    ) -> None:
        """Let all states follow the beams.

        fairseq asks every module of the decoder for a state, at every step; here once a batch.
        """
        if self._with_state is None:
            self._with_state = [
                module
                for module in self.modules()
                if module is not self and hasattr(module, "reorder_incremental_state")
            ]
        for module in self._with_state:
            module.reorder_incremental_state(incremental_state, new_order)

    def _embed(self, tokens: Tensor, layout: CausalLayout | Step) -> Tensor:
        """Embed tokens and positions, of the newest token alone where one comes at a time."""
        positions = None
        if self.embed_positions is not None:
            # fairseq counts padding as tokens where only one comes at a time
            alike = isinstance(layout, Step) and layout.padding_mask is None
            positions = self.embed_positions(tokens, incremental_state={} if alike else None)
        if isinstance(layout, Step):
            tokens = tokens[:, -1:]
            positions = None if positions is None else positions[:, -1:]
        x = self.embed_scale * self.embed_tokens(tokens)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x)


def _first(encoder_out: dict[str, list[Any]] | None, key: str) -> Any:
    found = None if encoder_out is None else encoder_out[key]
    return found[0] if found else None
