"""Free space, the receipt's bytes, and what lies in the checkpoint's folder."""

from __future__ import annotations

import base64
import os

MAX_RECEIPT_BYTES = 4 << 20
MAX_ENTRIES = 10_000


def disks(paths: list[str]) -> dict[str, object]:
    """By path: the filesystem on which it lies, or would lie once it is made."""
    found: dict[str, object] = {}
    for path in paths:
        at = path
        while not os.path.exists(at) and at != "/":  # noqa: PTH110
            at = os.path.dirname(at)  # noqa: PTH120
        had = os.statvfs(at)
        found[path] = {
            "at": at,
            "free_bytes": had.f_bavail * had.f_frsize,
            "is_read_only": bool(had.f_flag & os.ST_RDONLY),
        }
    return found


def receipt(path: str | None) -> dict[str, object] | None:
    """Its bytes, to be read by those who know receipts; or in `error` why there are none."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            data = file.read(MAX_RECEIPT_BYTES + 1)
    except OSError as error:
        return {"content": None, "error": error.strerror}
    return {"content": base64.b64encode(data).decode(), "error": None}


def folder(path: str | None) -> dict[str, object] | None:
    """Names and sizes of its files; a link that leads nowhere has no size."""
    if path is None:
        return None
    sizes: dict[str, int | None] = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if len(sizes) == MAX_ENTRIES:
                    break
                sizes[entry.name] = _size(entry)
    except OSError as error:
        return {"sizes": {}, "error": error.strerror}
    return {"sizes": sizes, "error": None}


def _size(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat().st_size if entry.is_file() else None
    except OSError:
        return None
