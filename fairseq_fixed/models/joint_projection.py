"""Very old checkpoints keep queries', keys' and values' projections as one."""

from __future__ import annotations

from torch import Tensor

__all__ = ["split_joint_projection"]


def split_joint_projection(state_dict: dict[str, Tensor], name: str) -> None:
    """Split an attention's `in_proj_weight` and `in_proj_bias`, in place, where it has them.

    Args:
        state_dict: of a model.
        name: of the attention in it, such as `encoder.layers.0.self_attn`.
    """
    for part in ("weight", "bias"):
        joint = state_dict.pop(f"{name}.in_proj_{part}", None)
        if joint is None:
            continue
        for projection, tensor in zip("qkv", joint.chunk(3), strict=True):
            state_dict[f"{name}.{projection}_proj.{part}"] = tensor
