"""Host memory that a device copies to and from, and the same memory as bytes.

Decides that it is pinned wherever there is a device: only then do copies run while the host goes on
(§8.2; a GB10 knows no other way to a socket).
"""

from typing import Any

import torch
from torch import Tensor


def host_tensor(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[n] zeros on the host, for copies to and from `device`."""
    return torch.zeros(n, dtype=dtype, pin_memory=device.type == "cuda")


def host_bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host, byte by byte; not a copy."""
    array: Any = tensor.numpy()
    return memoryview(array).cast("B")
