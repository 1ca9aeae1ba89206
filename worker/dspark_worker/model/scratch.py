"""Memory that a round needs and the next one can have again.

A large tensor costs more in page faults than in arithmetic when it is allocated anew each round. A
buffer is found by its name and grows to the largest round it has seen; what it holds lives until
the same name is asked for again. Rounds come one at a time (one thread), so nothing is locked.
"""

from math import prod

import torch
from torch import Tensor


class Scratch:
    """Named buffers of one device."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def get(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        *,
        pinned: bool = False,
    ) -> Tensor:
        """A contiguous tensor of `shape` with whatever was in it; one dtype and device a name."""
        n_values = prod(shape)
        held = self._held.get(name)
        if held is None or held.numel() < n_values:
            held = torch.empty(n_values, dtype=dtype, device=device, pin_memory=pinned)
            self._held[name] = held
        return held[:n_values].view(shape)
