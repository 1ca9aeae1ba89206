"""The Hadamard transform in blocks of 128 (EXL3 specification §5).

As a product with the matrix itself: for the few rows of a round that is one call, where butterflies
are seven.
"""

from functools import cache

import torch
from torch import Tensor

from dsparkctl.checkpoint.exl3 import BLOCK

SCALE = 0.088388347648
"""1/√128, the constant of the format."""


@cache
def matrix(dtype: torch.dtype, device: torch.device) -> Tensor:
    """[128, 128] of Sylvester's order, scaled: symmetric, and its own inverse."""
    signs = torch.ones(1, 1, dtype=dtype)
    while len(signs) < BLOCK:
        signs = torch.cat((torch.cat((signs, signs), 1), torch.cat((signs, -signs), 1)))
    return (signs * SCALE).to(device)


def transformed(x: Tensor) -> Tensor:
    """[..., n] -> the same, each 128 values turned by themselves, in x's dtype."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    return torch.matmul(blocks, matrix(x.dtype, x.device)).reshape(x.shape)
