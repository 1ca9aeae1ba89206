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
        self._max_requests, self._num_spec = max_requests, num_spec
        n_words = 1 + 2 * max_requests * num_spec
        is_cuda = device.type == "cuda"
        self.tensor = torch.zeros(n_words, dtype=torch.int32, device=device)
        self._here = torch.zeros(n_words, dtype=torch.int32, pin_memory=is_cuda)
        array: Any = self._here.numpy()
        self._bytes = memoryview(array).cast("B")

    @torch.inference_mode()
    def packed(
        self, outcome: Outcome, draft_ids: Sequence[int], confidence: Sequence[float]
    ) -> Tensor:
        """Rank 0: N values for each request in turn, into the device's tensor.

        Asynchronous on CUDA, in the order of the current stream; the round before has left the
        pinned words by then, since the wait for this round's rows came after it.
        """
        at_most = self._max_requests * self._num_spec
        pack = _packing(len(draft_ids), at_most)
        pack.pack_into(self._bytes, 0, outcome, *draft_ids, *confidence)
        self.tensor.copy_(self._here, non_blocking=True)
        return self.tensor

    @torch.inference_mode()
    def unpacked(self, tensor: Tensor, n_requests: int) -> Drafts:
        """Every rank: the first `n_requests` requests of a broadcast tensor; waits for nothing."""
        shape = (2, self._max_requests, self._num_spec)
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
