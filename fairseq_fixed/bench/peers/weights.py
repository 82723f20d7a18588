"""One set of weights for all contenders, so that equal functions give equal outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["PROJECTIONS", "Projections"]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


@dataclass(frozen=True)
class Projections:
    """Weights (d, d) and biases (d,) of a layer with all heads learned, by fairseq's names."""

    weight: dict[str, Tensor]
    bias: dict[str, Tensor]

    @classmethod
    def draw(cls, d: int, seed: int) -> Projections:
        """Draw weights as fairseq does (Xavier); biases, which start at zero there, are small."""
        generator = torch.Generator().manual_seed(seed)

        def uniform(*shape: int, bound: float) -> Tensor:
            return torch.empty(*shape).uniform_(-bound, bound, generator=generator)

        bound = math.sqrt(6 / (2 * d))
        return cls(
            {
                name: uniform(d, d, bound=bound if name == "out_proj" else bound / math.sqrt(2))
                for name in PROJECTIONS
            },
            {name: uniform(d, bound=1 / math.sqrt(d)) for name in PROJECTIONS},
        )

    @torch.no_grad()
    def copy_to(self, module: nn.Module, rows: Tensor | None = None) -> None:
        """Copy into a module's projections of these names.

        Args:
            module: whose state has `q_proj.weight` and so on; `q_proj` and `k_proj` may lack.
            rows: of `q_proj` and `k_proj`, where the module has some alone.
        """
        state = module.state_dict()
        for name in PROJECTIONS:
            for kind, values in (("weight", self.weight), ("bias", self.bias)):
                key = f"{name}.{kind}"
                if key not in state:
                    continue
                full = values[name]
                scores = name in ("q_proj", "k_proj")
                state[key] = full[rows] if scores and rows is not None else full
        module.load_state_dict(state)

    def stacked(self, *names: str) -> tuple[Tensor, Tensor]:
        """Return the weights and biases of some projections, one below the other."""
        return (
            torch.cat([self.weight[name] for name in names]),
            torch.cat([self.bias[name] for name in names]),
        )
