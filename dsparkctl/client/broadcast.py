"""The one tensor that every rank gets of a round (§4.1, §4.2): status, drafts, confidences.

Decides its layout, and who hands it on. One shape for every outcome, so that no rank can wait for a
collective that another one skips (§4.1); requests that are not there, and those without drafts,
hold zeros, never a value of an earlier round (§10). Refuses to know what the status leads to.

`int32 [1 + 2 * max_requests * N]`: the status word (`fallback.Outcome`), N draft ids for each
request, then N confidences for each, the bits of float32.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from dsparkctl.client.fallback import Outcome
from dsparkctl.client.pinned import host_bytes, host_tensor

_WORD_BYTES: Final = 4


class Broadcast(Protocol):
    """Hands rank 0's tensor to every rank; every rank calls it once a round."""

    def __call__(self, tensor: Tensor) -> Tensor:
        """`tensor` as rank 0 has it: itself, overwritten in place, or a new one."""


class Drafts(NamedTuple):
    """What is taken out of the tensor, on its device and of its own memory."""

    ids: Tensor
    """[n_req, N] int64, writable."""
    confidence: Tensor
    """[n_req, N] float32."""


class Word:
    """Packs and unpacks the tensor of one rank; `device` is where it is broadcast."""

    def __init__(self, max_requests: int, num_spec: int, device: torch.device) -> None:
        self.max_requests, self._num_spec = max_requests, num_spec
        n_words = 1 + 2 * max_requests * num_spec
        self.tensor = torch.zeros(n_words, dtype=torch.int32, device=device)
        self._here = host_tensor(n_words, torch.int32, device)
        self._bytes = host_bytes(self._here)
        self._left: Any = None
        if device.type == "cuda":
            self._left = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def packed(
        self, outcome: Outcome, draft_ids: Sequence[int], confidence: Sequence[float]
    ) -> Tensor:
        """Rank 0: N values for each request in turn, into the device's tensor.

        Asynchronous on CUDA, in the order of the current stream.
        """
        n, at_most = len(draft_ids), self.max_requests * self._num_spec
        if n > at_most:
            raise ValueError(
                f"drafts of {n // self._num_spec} requests, the tensor holds {self.max_requests}"
            )
        packing = _packing(n, at_most)
        if self._left is not None:
            self._left.synchronize()  # the words of the round before are long gone
        packing.pack_into(self._bytes, 0, outcome, *draft_ids, *confidence)
        self.tensor.copy_(self._here, non_blocking=True)
        if self._left is not None:
            self._left.record()
        return self.tensor

    def unpacked(self, tensor: Tensor, n_requests: int) -> Drafts:
        """Every rank: the first `n_requests` requests of a broadcast tensor; waits for nothing."""
        shape = (2, self.max_requests, self._num_spec)
        ids, confidence = tensor[1:].view(shape)[:, :n_requests]
        return Drafts(ids.to(torch.int64), confidence.view(torch.float32).clone())

    @staticmethod
    def outcome(tensor: Tensor) -> Outcome:
        """The status word; on CUDA this waits for the device."""
        return Outcome(int(tensor[0]))


@lru_cache(maxsize=256)
def _packing(n: int, at_most: int) -> struct.Struct:
    """Status, `n` ids and `n` floats, each padded with zeros to `at_most`."""
    padding = (at_most - n) * _WORD_BYTES
    return struct.Struct(f"<i{n}i{padding}x{n}f{padding}x")


class Alone:
    """One rank: there is nobody to tell."""

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor


class OverGroup:
    """A torch.distributed process group, NCCL or gloo; None: the default one. Rank 0 speaks."""

    def __init__(self, group: "dist.ProcessGroup | None" = None) -> None:
        self._group = group

    def __call__(self, tensor: Tensor) -> Tensor:
        dist.broadcast(tensor, group=self._group, group_src=0)
        return tensor


class GroupCoordinator(Protocol):
    """As much of vLLM's tensor-parallel group as is used here."""

    def broadcast(self, input_: Tensor, src: int = 0) -> Tensor: ...


class OverEngine:
    """vLLM's own group, through the communicator that its forward pass uses."""

    def __init__(self, group: GroupCoordinator) -> None:
        self._group = group

    def __call__(self, tensor: Tensor) -> Tensor:
        return self._group.broadcast(tensor, src=0)
