"""Rotation of a head's last r components by absolute position (model specification §5.2).

Adjacent pairs are complex numbers. Frequency and angle are fp32, as the reference has them: near
position 327,679 a float64 table differs by a hundredth. No YaRN on layers of ratio 0 (pitfall 5 of
§13), so `rope_scaling` is never looked at.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Rope(NamedTuple):
    """The frequencies of one model."""

    frequencies: Tensor
    """fp32 [r/2]: θ^(−2i/r)"""

    def at(self, positions: Tensor) -> Tensor:
        """exp(i·p·freq) for each position: [...] int -> complex64 [..., r/2]."""
        angles = positions.float().unsqueeze(-1) * self.frequencies
        return torch.polar(torch.ones_like(angles), angles)


def make_rope(rope_dim: int, theta: float, device: torch.device) -> Rope:
    """`rope_dim` r is even; θ > 0."""
    exponents = torch.arange(0, rope_dim, 2, dtype=torch.float32, device=device) / rope_dim
    return Rope(1.0 / (theta**exponents))


def rotate_(x: Tensor, turns: Tensor) -> Tensor:
    """Turn the last r components of `x` [..., d] by `turns` complex64, broadcast to [..., r/2].

    In place: the other components, most of a head, are not touched. The product is fp32, rounded to
    x's dtype. Turn back with `turns.conj()`.
    """
    turning = x[..., -2 * turns.shape[-1] :]
    pairs = torch.view_as_complex(turning.float().reshape(*turning.shape[:-1], -1, 2))
    turning.copy_(torch.view_as_real(pairs * turns).flatten(-2))
    return x
