"""The header of a safetensors file, checked against the file itself before data is read.

Decides whether a file is whole: its length field, its JSON, every shape against its byte range, the
ranges against each other, and their end against the file's size. A truncated download, bytes behind
the end, an overlap or a hole is an error that names the tensor. It refuses to know which tensors a
model needs (`tensors`), and never reads a byte of their data.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from dsparkctl.checkpoint.errors import wrong
from dsparkctl.checkpoint.strict_json import parse_object

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format itself."""

MAX_DIMS = 16

ITEM_BYTES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
"""Bytes per element of each dtype that a header may name."""


class TensorInfo(NamedTuple):
    """One tensor as its file declares it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    """First byte, counted from the start of the file."""
    end: int
    """One behind the last byte."""

    @property
    def n_bytes(self) -> int:
        return self.end - self.begin


def read_header(path: Path) -> dict[str, TensorInfo]:
    """All tensors of one file, in order of their data; `CheckpointError` when it is not whole."""
    if path.exists() and not path.is_file():
        raise wrong(path, "is not a regular file")
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            prefix = file.read(8)
            if len(prefix) < 8:
                raise wrong(path, f"is {size} bytes long, too short for a safetensors file")
            length = int.from_bytes(prefix, "little")
            if length > MAX_HEADER_BYTES or 8 + length > size:
                raise wrong(
                    path,
                    f"the header claims {length} bytes, the file has {size}:"
                    " truncated, or not a safetensors file",
                )
            text = file.read(length)
    except OSError as error:
        raise wrong(path, f"cannot be read ({error.strerror or error})") from None
    if len(text) != length:
        raise wrong(path, "changed while its header was read")
    return _checked(path, parse_object(text, path, "header"), 8 + length, size)


def _checked(path: Path, header: dict[str, Any], data: int, size: int) -> dict[str, TensorInfo]:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise wrong(path, "must map strings to strings", at="__metadata__")
    tensors = [(name, _entry(path, name, raw, data)) for name, raw in header.items()]
    tensors.sort(key=lambda item: (item[1].begin, item[1].end))
    end, before = data, "the header"
    for name, info in tensors:
        if info.begin < end:
            raise wrong(path, f"its data overlaps that of {before}", at=name)
        if info.begin > end:
            raise wrong(path, f"bytes before its data lie unused: {info.begin - end}", at=name)
        if info.end > size:
            raise wrong(
                path, f"truncated: {info.end - size} bytes of its data are missing", at=name
            )
        end, before = info.end, name
    if end != size:
        raise wrong(path, f"bytes lie behind the last tensor: {size - end}")
    return dict(tensors)


def _entry(path: Path, name: str, raw: object, data: int) -> TensorInfo:
    if not name.isprintable() or len(name) > 512:
        raise wrong(path, "a tensor's name is not printable or too long", at=ascii(name[:80]))
    if not isinstance(raw, dict) or set(raw) != {"dtype", "shape", "data_offsets"}:
        raise wrong(path, "must state dtype, shape and data_offsets, nothing else", at=name)
    dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
    item_bytes = ITEM_BYTES.get(dtype) if isinstance(dtype, str) else None
    if item_bytes is None:
        raise wrong(path, f"dtype {ascii(dtype)[:40]} is not known", at=name)
    if not _is_naturals(shape) or len(shape) > MAX_DIMS:
        raise wrong(path, f"shape {ascii(shape)[:80]} is not a list of sizes", at=name)
    if not _is_naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(path, f"data_offsets {ascii(offsets)[:80]} are not [begin, end]", at=name)
    begin, end = offsets
    if end - begin != prod(shape) * item_bytes:
        raise wrong(
            path,
            f"{dtype} {list(shape)} needs {prod(shape) * item_bytes} bytes,"
            f" data_offsets give it {end - begin}",
            at=name,
        )
    return TensorInfo(dtype, tuple(shape), data + begin, data + end)


def _is_naturals(value: object) -> bool:
    return isinstance(value, list) and all(
        type(number) is int and 0 <= number < 1 << 48 for number in value
    )
