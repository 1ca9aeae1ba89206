"""A round's floor: its matrix products alone, and the bytes they have to read.

The products of one real round are noted as they happen, with the very tensors they were given, and
done again in the same order: same shapes, same dtypes, same weights, nothing in between.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS: Final = {
    torch.ops.aten.mm,
    torch.ops.aten.bmm,
    torch.ops.aten.addmm,
    torch.ops.aten.baddbmm,
    torch.ops.aten.mv,
    torch.ops.aten.addmv,
    torch.ops.aten.dot,
    torch.ops.aten.linear,
    torch.ops.aten.matmul,
}

_SWEEP_BYTES: Final = 256 << 20


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every product done inside `with`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.all: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        """function, arguments, named arguments; in the order in which they came"""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func.overloadpacket in _PRODUCTS:
            self.all.append((func, args, given))
        return func(*args, **given)

    def __len__(self) -> int:
        return len(self.all)

    @torch.inference_mode()
    def again(self) -> None:
        """All of them once more."""
        for func, args, kwargs in self.all:
            func(*args, **kwargs)

    @property
    def n_flops(self) -> int:
        """Multiplications and additions."""
        return sum(2 * _n_multiplications(args) for _, args, _ in self.all)

    @property
    def n_bytes(self) -> int:
        """What has to come from memory: every tensor once a round, however often it is used."""
        seen: dict[int, int] = {}
        for _, args, _ in self.all:
            for arg in args:
                if isinstance(arg, Tensor):
                    seen[arg.data_ptr()] = max(seen.get(arg.data_ptr(), 0), arg.nbytes)
        return sum(seen.values())


def _n_multiplications(args: tuple[Any, ...]) -> int:
    left, right = [arg for arg in args if isinstance(arg, Tensor)][-2:]
    inner = left.shape[-1]
    n_right = right.numel() // inner
    if left.dim() == 3 and right.dim() == 3:  # one product for each of a batch
        n_right //= left.shape[0]
    return left.numel() * n_right


def bandwidth() -> float:
    """Bytes/s that one thread reads from memory here, the best of five."""
    sweep = torch.ones(_SWEEP_BYTES // 4)
    best = float("inf")
    for _ in range(5):
        began = time.thread_time()
        sweep.sum()
        best = min(best, time.thread_time() - began)
    return _SWEEP_BYTES / best
