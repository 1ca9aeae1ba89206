"""One safetensors file, read tensor by tensor into memory of our own.

Decides how bytes come in: by the offsets of a header that was checked, never by mapping. A mapped
file that is cut short ends the process by SIGBUS, and one that is overwritten changes the weights
of a running worker; read, the first is an error of one line and the second cannot happen. Refuses
to know what a tensor is for.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from dsparkctl.checkpoint.errors import wrong
from dsparkctl.checkpoint.header import TensorInfo, read_header

_DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {
        "BOOL": torch.bool,
        "U8": torch.uint8,
        "I8": torch.int8,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E8M0": torch.float8_e8m0fnu,
        "U16": torch.uint16,
        "I16": torch.int16,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "U32": torch.uint32,
        "I32": torch.int32,
        "F32": torch.float32,
        "U64": torch.uint64,
        "I64": torch.int64,
        "F64": torch.float64,
    }
)
"""The header's names in torch's words; a test holds them against `ITEM_BYTES`."""


class Shard:
    """An open file; use it inside `open_shard`."""

    def __init__(self, path: Path, header: Mapping[str, TensorInfo], descriptor: int) -> None:
        self.path = path
        self.header = header
        self._descriptor = descriptor

    def take(self, name: str) -> Tensor:
        """The tensor as it lies in the file, on the CPU, in memory that nobody else has.

        CheckpointError when the bytes are not there any more, or cannot be held.
        """
        info = self.header[name]
        try:
            data = torch.empty(info.n_bytes, dtype=torch.uint8)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise wrong(self.path, f"cannot be held in memory ({reason})", at=name) from None
        rest = memoryview(data.numpy().data)
        at = info.begin
        while rest:
            try:
                n_read = os.preadv(self._descriptor, [rest], at)
            except OSError as error:
                raise wrong(self.path, f"cannot be read ({error.strerror})", at=name) from None
            if not n_read:
                raise wrong(
                    self.path, f"{len(rest)} bytes of its data went while it was read", at=name
                )
            rest, at = rest[n_read:], at + n_read
        return data.view(_DTYPES[info.dtype]).view(info.shape)


@contextmanager
def open_shard(path: Path) -> Iterator[Shard]:
    """The file whose header is in order; CheckpointError names what is not."""
    header = read_header(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise wrong(path, f"cannot be read ({error.strerror})") from None
    try:
        yield Shard(path, header, descriptor)
    finally:
        os.close(descriptor)
