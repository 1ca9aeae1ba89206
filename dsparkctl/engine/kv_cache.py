"""Keys and values of every slot and position, per layer of the target.

Positions are overwritten in place and never cleared: which of them hold is the caller's book.
"""

import torch
from torch import Tensor


class KvCache:
    """float64 [layers][n_slots, max_model_len, 2, d]: key and value side by side."""

    def __init__(self, n_layers: int, n_slots: int, max_model_len: int, head_dim: int) -> None:
        shape = (n_slots, max_model_len, 2, head_dim)
        self._layers = [torch.zeros(shape, dtype=torch.float64) for _ in range(n_layers)]

    def store(self, layer: int, slots: Tensor, positions: Tensor, kv: Tensor) -> None:
        """Keep `kv` [T, 2, d] of `positions` int64 [T] in `slots` int64 [T]."""
        self._layers[layer].index_put_((slots, positions), kv)

    def gather(self, layer: int, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [S, n, d] of `slots` int64 [S] at `positions` int64 [S, n]."""
        kv = self._layers[layer][slots.unsqueeze(1), positions]
        return kv[:, :, 0], kv[:, :, 1]

    def copy(self, src_slot: int, dst_slot: int, n_tokens: int) -> None:
        """Take over the first `n_tokens` positions of another slot."""
        for layer in self._layers:
            layer[dst_slot, :n_tokens] = layer[src_slot, :n_tokens]
