"""One safetensors file, written tensor by tensor: no more than one of them is in memory.

Decides that half a file never stands at its place: a temporary one beside it is renamed when it is
whole. The library writes whole dictionaries only.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsparkctl.checkpoint.header import ITEM_BYTES
from dsparkctl.config.errors import WriteError

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""The header's words for what is written here."""

_PAGE = 64
"""The header is filled up to a multiple of it, so that data is aligned for every dtype."""


class Planned(NamedTuple):
    """One tensor before it is there."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def write_shard(path: Path, plan: Sequence[Planned], tensors: Iterable[Tensor]) -> None:
    """`tensors` in the order of `plan`; WriteError, and nothing at `path`, when it fails."""
    if path.exists() and not path.is_file():
        raise WriteError(f"{path}: not a regular file")
    try:
        handle, temporary = tempfile.mkstemp(prefix=".dspark.", dir=path.absolute().parent)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_header(plan))
            for planned, tensor in zip(plan, tensors, strict=True):
                assert tensor.dtype == DTYPES[planned.dtype], planned
                assert tuple(tensor.shape) == planned.shape, planned
                data: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def _header(plan: Sequence[Planned]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for planned in plan:
        begin, end = end, end + planned.n_bytes
        entries[planned.name] = {
            "dtype": planned.dtype,
            "shape": list(planned.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _PAGE)
    return len(text).to_bytes(8, "little") + text
