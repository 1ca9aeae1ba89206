"""From context rows to what all layers keep of them (model specification §4).

A row is projected once for all layers, and each layer makes its own key/value vector of that. What
comes behind the products is done for all layers at once: it is many small steps, and would
otherwise be as many again for every layer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dspark_worker.model.attention import Attention
from dspark_worker.model.kv_quant import KvQuant, through_cache_
from dspark_worker.model.linear import Linear
from dspark_worker.model.norms import RmsNorm
from dspark_worker.model.rope import rotate_


class ContextKv(NamedTuple):
    """The `kv` of every layer's attention, for the same input."""

    wkv: tuple[Linear, ...]
    norm: RmsNorm
    """of all layers: weight [L, 1, d]"""
    rope_dim: int
    kv_quant: KvQuant

    def __call__(self, main_x: Tensor, turns: Tensor) -> Tensor:
        """[n, D] after main_norm, at `turns` [n, r/2] -> [L, n, d], as a cache read gives it."""
        projected = torch.stack([wkv(main_x) for wkv in self.wkv])
        return through_cache_(rotate_(self.norm(projected), turns), self.kv_quant, self.rope_dim)


def context_kv(layers: Sequence[Attention]) -> ContextKv:
    """Made of the layers' own weights."""
    first = layers[0]
    gains = torch.stack([layer.kv_norm.weight for layer in layers]).unsqueeze(1)
    return ContextKv(
        tuple(layer.wkv for layer in layers),
        RmsNorm(gains, first.kv_norm.eps),
        first.rope_dim,
        first.kv_quant,
    )
