"""Keys and values of every slot and position, per layer of the target.

Positions are overwritten in place and never cleared: which of them hold is the caller's book.
"""

import torch
from torch import Tensor


class KvCache:
    """float64 [layers][n_slots · max_model_len, 2, d]: key and value side by side."""

    def __init__(self, n_layers: int, n_slots: int, max_model_len: int, head_dim: int) -> None:
        self._max_model_len = max_model_len
        shape = (n_slots * max_model_len, 2, head_dim)
        self._layers = [torch.zeros(shape, dtype=torch.float64) for _ in range(n_layers)]

    def places(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Where `positions` of `slots` lie, the same in every layer; both int64, one shape."""
        return slots * self._max_model_len + positions

    def store(self, layer: int, places: Tensor, kv: Tensor) -> None:
        """Keep `kv` [T, 2, d] at `places` int64 [T]."""
        self._layers[layer].index_copy_(0, places, kv)

    def gather(self, layer: int, places: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [S, n, d] at `places` int64 [S, n]."""
        cache = self._layers[layer]
        kv = cache.index_select(0, places.flatten()).view(*places.shape, 2, -1)
        return kv[:, :, 0], kv[:, :, 1]

    def copy(self, src_slot: int, dst_slot: int, n_tokens: int) -> None:
        """Take over the first `n_tokens` positions of another slot."""
        src, dst = src_slot * self._max_model_len, dst_slot * self._max_model_len
        for layer in self._layers:
            layer[dst : dst + n_tokens] = layer[src : src + n_tokens]
