"""A linear layer that knows how its weight is stored.

The block asks for `Linear` and never sees a format. Plain, fp8 and fp4 weights are all turned into
the compute dtype once, at load, and become a `PlainLinear`; EXL3 layers stay packed and have
classes of their own with the same verb (`exl3.linear`), chosen in `weights.Weights.linear`.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor


class Linear(Protocol):
    """y = x · Wᵀ, no bias: [..., in] -> [..., out] in x's dtype."""

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainLinear(NamedTuple):
    """A weight unpacked to the dtype that the inputs have."""

    weight: Tensor
    """[out, in]"""

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class GroupedLinear(NamedTuple):
    """G independent weights, one for each group of inputs (wo_a)."""

    weight: Tensor
    """[G, out, in]"""

    def __call__(self, x: Tensor) -> Tensor:
        """[t, G, in] -> [t, G, out]"""
        return torch.bmm(x.transpose(0, 1), self.weight.transpose(1, 2)).transpose(0, 1)
