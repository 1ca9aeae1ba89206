"""A receipt: which files a checkpoint came from, and which were extracted of them (§6.7, R41).

Decides what a well-formed DSPARK_COPY_DONE is and how one is written. Bytes in, value out: it
never opens a file and refuses to know whether a listed file exists or matches.

A receipt is a JSON object with the lists `files` (the sources, over which the identity runs) and
`extracted_files` (what a worker loads; may be empty or absent, which is enough for a digest). An
entry names its file by `path`, `name` or `file`, of which the basename counts, and carries
`sha256` and perhaps `size` or `bytes`. Every other key is kept and ignored.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MAX_RECEIPT_BYTES: Final = 4 << 20
MAX_FILES: Final = 10_000
MAX_BASENAME_BYTES: Final = 255
MAX_FILE_BYTES: Final = (1 << 63) - 1

_NAME_KEYS: Final = ("path", "name", "file")
_SIZE_KEYS: Final = ("size", "bytes")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class ReceiptError(ValueError):
    """A receipt that does not hold to R41; the message is one line and names the entry."""


@dataclass(frozen=True, slots=True)
class ReceiptFile:
    """One file as a receipt lists it."""

    path: str
    """As written, or the basename."""
    sha256: str
    """64 lower-case hex digits."""
    n_bytes: int | None = None
    """The file's size, where the receipt states it."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """Keys that we do not know."""

    @property
    def name(self) -> str:
        """The basename: the name that counts (R41)."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Receipt:
    """Both lists, in the receipt's order; basenames are unique within each."""

    files: tuple[ReceiptFile, ...]
    extracted_files: tuple[ReceiptFile, ...] = ()
    other: Mapping[str, Any] = field(default_factory=dict)


def parse_receipt(data: bytes) -> Receipt:
    """The receipt of a DSPARK_COPY_DONE's bytes, or ReceiptError."""
    if len(data) > MAX_RECEIPT_BYTES:
        raise ReceiptError(f"expected at most {MAX_RECEIPT_BYTES} bytes, got {len(data)}")
    top = _load(data)
    if not isinstance(top, dict):
        raise ReceiptError(f"expected a JSON object, got {_quote(top)}")
    if "files" not in top:
        raise ReceiptError("files: missing; a receipt lists its source files there")
    files = _entries("files", top.pop("files"))
    if not files:
        raise ReceiptError("files: expected at least one entry, got an empty list")
    return Receipt(files, _entries("extracted_files", top.pop("extracted_files", [])), top)


def render_receipt(receipt: Receipt) -> bytes:
    """The receipt's bytes; `parse_receipt` reads them back to an equal value."""
    lists = {"files": receipt.files, "extracted_files": receipt.extracted_files}
    body = {key: [_render(file) for file in files] for key, files in lists.items()}
    return (json.dumps({**body, **receipt.other}, indent=1) + "\n").encode()


def parse_digest(text: str) -> str:
    """64 hex digits in any case, as 64 lower-case ones; ValueError otherwise."""
    if not _DIGEST.fullmatch(text):
        raise ValueError(f"expected 64 hex digits, got {_quote(text)}")
    return text.lower()


def _load(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise ReceiptError(f"byte {error.start}: not UTF-8 text") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise ReceiptError(f"{where}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ReceiptError("nested too deeply for a receipt") from None
    except ReceiptError:
        raise
    except ValueError as error:  # a number of more digits than Python converts
        raise ReceiptError(f"not JSON: {str(error).splitlines()[0]}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two values under one key would make the digest a matter of taste."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ReceiptError(f"key {_quote(key)} stands twice in one object")
        found[key] = value
    return found


def _entries(key: str, value: Any) -> tuple[ReceiptFile, ...]:
    if not isinstance(value, list):
        raise ReceiptError(f"{key}: expected a list, got {_quote(value)}")
    if len(value) > MAX_FILES:
        raise ReceiptError(f"{key}: expected at most {MAX_FILES} entries, got {len(value)}")
    files = tuple(_entry(f"{key}[{i}]", entry) for i, entry in enumerate(value))
    first: dict[str, int] = {}
    for i, file in enumerate(files):
        earlier = first.setdefault(file.name, i)
        if earlier != i:
            name = _quote(file.name)
            raise ReceiptError(f"{key}[{i}]: basename {name} stands in {key}[{earlier}] already")
    return files


def _entry(where: str, value: Any) -> ReceiptFile:
    if not isinstance(value, dict):
        raise ReceiptError(f"{where}: expected an object, got {_quote(value)}")
    paths = {key: _path(f"{where}.{key}", value[key]) for key in _NAME_KEYS if key in value}
    if not paths:
        raise ReceiptError(f"{where}: names no file; expected one of {', '.join(_NAME_KEYS)}")
    _agree(where, {key: path.rpartition("/")[2] for key, path in paths.items()})
    sizes = {key: _size(f"{where}.{key}", value[key]) for key in _SIZE_KEYS if key in value}
    _agree(where, sizes)
    return ReceiptFile(
        next(iter(paths.values())),
        _sha256(f"{where}.sha256", value),
        next(iter(sizes.values()), None),
        {k: v for k, v in value.items() if k not in (*_NAME_KEYS, *_SIZE_KEYS, "sha256")},
    )


def _path(where: str, value: Any) -> str:
    """A basename goes into the identity's lines, so it must be one name on one line."""
    if not isinstance(value, str):
        raise ReceiptError(f"{where}: expected a file name, got {_quote(value)}")
    if _CONTROL.search(value):
        raise ReceiptError(f"{where}: a control character in {_quote(value)}")
    name = value.rpartition("/")[2]
    if name in ("", ".", "..") or len(name.encode()) > MAX_BASENAME_BYTES:
        raise ReceiptError(f"{where}: expected a file name, got {_quote(value)}")
    return value


def _sha256(where: str, entry: Mapping[str, Any]) -> str:
    if "sha256" not in entry:
        raise ReceiptError(f"{where}: missing; expected 64 hex digits")
    value = entry["sha256"]
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ReceiptError(f"{where}: expected 64 hex digits, got {_quote(value)}")
    return value.lower()


def _size(where: str, value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= MAX_FILE_BYTES:
        raise ReceiptError(f"{where}: expected a number of bytes, got {_quote(value)}")
    return value


def _agree(where: str, said: Mapping[str, Any]) -> None:
    if len(set(said.values())) > 1:
        parts = " and ".join(f"{key} {_quote(value)}" for key, value in said.items())
        raise ReceiptError(f"{where}: contradicts itself: {parts}")


def _render(file: ReceiptFile) -> dict[str, Any]:
    size = {} if file.n_bytes is None else {"size": file.n_bytes}
    return {"path": file.path, "sha256": file.sha256, **size, **file.other}


def _quote(value: Any) -> str:
    """What was found, on one short line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:76]}..."
