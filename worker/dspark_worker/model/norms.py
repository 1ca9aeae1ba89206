"""RMS norm, rounded where the reference rounds: once, at the very end (model specification §3)."""

from typing import NamedTuple

import torch
from torch import Tensor


class RmsNorm(NamedTuple):
    """RMS(x; w) = x · rsqrt(mean(x²) + eps) · w in fp32, then x's own dtype."""

    weight: Tensor
    """fp32 [n]"""
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Any leading dims, [..., n]."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).mul_(self.weight).to(x.dtype)
