"""The draft's mixture of experts: routing, routed experts, the shared one (specification §5.4).

Tokens are grouped by expert, so that each expert's weights are touched once a layer; loops run over
the experts that were chosen, never over tokens, and do nothing but products.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from dspark_worker.model.linear import Linear
from dspark_worker.model.trace import Trace
from dspark_worker.model.weights import Weights
from dsparkctl.checkpoint.model_config import ModelConfig


class Expert(NamedTuple):
    """One SwiGLU: w2 · (silu(w1·x) · (w3·x)), clamped, the product in fp32."""

    w1: Linear
    w2: Linear
    w3: Linear
    limit: float

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """[t, D] -> [t, D]; `weight` fp32 [t, 1] enters before the rounding to x's dtype."""
        return self.w2(swiglu(self.w1(x), self.w3(x), self.limit, weight))


def swiglu(gate: Tensor, up: Tensor, limit: float, weight: Tensor | None) -> Tensor:
    """silu(gate) · up · weight, clamped, in fp32, then the inputs' dtype; all are [t, I]."""
    inner = F.silu(gate.float().clamp(max=limit)).mul_(up.float().clamp(-limit, limit))
    if weight is not None:
        inner.mul_(weight)
    return inner.to(gate.dtype)


class Router(NamedTuple):
    """Which experts a token sees, and how much of each."""

    gate: Tensor
    """fp32 [E, D]"""
    bias: Tensor
    """fp32 [E]: decides who is selected, never the weight"""
    n_active: int
    scale: float

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[t, D] -> expert ids [t, k] by descending score + bias, and their fp32 weights [t, k].

        Of equal scores the lowest id wins: `topk` would not promise that, a stable sort does.
        """
        scores = F.softplus(F.linear(x.float(), self.gate)).sqrt()
        order = torch.sort(scores + self.bias, dim=-1, descending=True, stable=True).indices
        chosen = order[:, : self.n_active]
        weights = scores.gather(1, chosen)
        return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.scale


class Experts(NamedTuple):
    """MOE of one layer."""

    router: Router
    routed: tuple[Expert, ...]
    shared: Expert

    def __call__(self, x: Tensor, trace: Trace | None = None) -> Tensor:
        """[t, D] -> [t, D]; the sum over experts is fp32, rounded once."""
        chosen, weights = self.router(x)
        if trace is not None:
            trace("routed_experts", chosen)
        pairs = chosen.flatten()
        by_expert = torch.argsort(pairs, stable=True)
        tokens = torch.div(by_expert, chosen.shape[1], rounding_mode="floor")
        inputs, shares = x[tokens], weights.flatten()[by_expert].unsqueeze(-1)
        counts = torch.bincount(pairs, minlength=len(self.routed)).tolist()
        experts = [expert for expert, count in zip(self.routed, counts, strict=True) if count]
        counts = [count for count in counts if count]
        parts = torch.split(inputs, counts)
        gate = torch.cat([expert.w1(part) for expert, part in zip(experts, parts, strict=True)])
        up = torch.cat([expert.w3(part) for expert, part in zip(experts, parts, strict=True)])
        parts = torch.split(swiglu(gate, up, self.shared.limit, shares), counts)
        sorted_outputs = [expert.w2(part) for expert, part in zip(experts, parts, strict=True)]
        outputs = torch.empty_like(inputs)
        outputs[by_expert] = torch.cat(sorted_outputs)
        routed = outputs.view(*chosen.shape, -1).float().sum(1)
        return (routed + self.shared(x).float()).to(x.dtype)


def load_experts(weights: Weights, prefix: str, config: ModelConfig) -> Experts:
    """`prefix` is `mtp.<s>.ffn`."""

    def expert(at: str) -> Expert:
        w1, w2, w3 = (weights.linear(f"{at}.{name}") for name in ("w1", "w2", "w3"))
        return Expert(w1, w2, w3, config.swiglu_limit)

    router = Router(
        weights.fp32(f"{prefix}.gate.weight"),
        weights.fp32(f"{prefix}.gate.bias"),
        config.n_active_experts,
        config.route_scale,
    )
    routed = tuple(expert(f"{prefix}.experts.{e}") for e in range(config.n_experts))
    return Experts(router, routed, expert(f"{prefix}.shared_experts"))
