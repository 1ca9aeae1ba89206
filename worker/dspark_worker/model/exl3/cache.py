"""Decoded matrices within a budget of bytes.

Decides which stay: those of layers that every round uses (`pin`, asked once at load), as long as
there is room, then those of experts, of which the least recently used goes first. What does not
stay is decoded into one space that all share, again at every use.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor


class CacheFacts(NamedTuple):
    """What STATS says of it."""

    budget_bytes: int
    pinned_bytes: int
    kept_bytes: int
    """Of experts, beside the pinned ones."""
    hits: int
    misses: int
    """Uses of a matrix that was, or was not, there."""


class DecodedCache:
    """Buffers of `dtype` on `device`, flat; one thread uses it."""

    def __init__(self, budget_bytes: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self._budget_bytes = budget_bytes
        self._pinned_bytes = 0
        self._kept_bytes = 0
        self._kept: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._shared = self._new(0)
        self._hits = 0
        self._misses = 0

    def facts(self) -> CacheFacts:
        return CacheFacts(
            self._budget_bytes, self._pinned_bytes, self._kept_bytes, self._hits, self._misses
        )

    def pin(self, n_weights: int) -> Tensor | None:
        """A buffer [n_weights] for good, or None when the budget does not hold it."""
        n_bytes = n_weights * self.dtype.itemsize
        if self._pinned_bytes + self._kept_bytes + n_bytes > self._budget_bytes:
            return None
        self._pinned_bytes += n_bytes
        return self._new(n_weights)

    def find(self, key: Hashable) -> Tensor | None:
        """The buffer that was kept under `key`, now the most recently used."""
        found = self._kept.get(key)
        if found is None:
            self._misses += 1
            return None
        self._hits += 1
        self._kept.move_to_end(key)
        return found

    def room(self, key: Hashable, n_weights: int) -> Tensor:
        """A buffer [n_weights] to decode into: kept under `key` where the budget holds it, else the
        shared one, which is good until the next call."""
        n_bytes = n_weights * self.dtype.itemsize
        if self._pinned_bytes + n_bytes > self._budget_bytes:
            return self.shared(n_weights)
        buffer: Tensor | None = None
        while self._pinned_bytes + self._kept_bytes + n_bytes > self._budget_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= dropped.nbytes
            # Experts are alike: the one that goes leaves its memory to the one that comes.
            buffer = dropped if dropped.numel() == n_weights else buffer
        self._kept[key] = found = self._new(n_weights) if buffer is None else buffer
        self._kept_bytes += n_bytes
        return found

    def shared(self, n_weights: int) -> Tensor:
        """The buffer that nobody keeps, good until the next call."""
        if self._shared.numel() < n_weights:
            self._shared = self._new(n_weights)
        return self._shared[:n_weights]

    def _new(self, n_weights: int) -> Tensor:
        return torch.empty(n_weights, dtype=self.dtype, device=self.device)
