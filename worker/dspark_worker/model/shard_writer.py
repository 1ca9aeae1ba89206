"""One safetensors file, written tensor by tensor: no more than one of them is in memory.

Decides how such a file lies; that half of one never stands at its place is `config.files`'. The
library writes whole dictionaries only.
"""

import json
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsparkctl.checkpoint.header import ITEM_BYTES
from dsparkctl.config.files import writing

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


def write_shard(
    path: Path, plan: Sequence[Planned], tensors: Iterable[Tensor], *, replace: bool = False
) -> None:
    """`tensors` in the order of `plan`; WriteError, and `path` as it was, when it fails.

    With `replace` off, an existing file is refused.
    """
    with writing(path, replace=replace) as write:
        write(_header(plan))
        for planned, tensor in zip(plan, tensors, strict=True):
            assert tensor.dtype == DTYPES[planned.dtype], planned
            assert tuple(tensor.shape) == planned.shape, planned
            write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


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
