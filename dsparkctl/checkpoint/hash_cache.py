"""What was hashed before, so that a restart need not read a checkpoint twice (§6.7).

Decides when a remembered sha256 still speaks for a file: same path, size, mtime and inode, and not
written to in the moment it was hashed. Bytes in, bytes out: where they are kept, and whether they
can be trusted there, is the caller's business.
"""

import json
import re
import stat
from pathlib import Path
from typing import Any, Final, NamedTuple

from dsparkctl.checkpoint.errors import CheckpointError

MAX_ENTRIES: Final = 4096
"""The oldest go first."""
MAX_CACHE_BYTES: Final = 4 << 20

_VERSION: Final = 1
_SETTLED_NS: Final = 100_000_000
"""A clock tick of a file system is shorter than this: a file that was written to so recently may
be written to again without a new mtime."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Stamp(NamedTuple):
    """What a file shows of a change without being read."""

    n_bytes: int
    mtime_ns: int
    inode: int


def stamp_of(path: Path) -> Stamp:
    """CheckpointError when there is no regular file to look at."""
    try:
        found = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise CheckpointError(f"{path}: not a regular file")
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ino)


class HashCache:
    """sha256 by absolute path and stamp."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Stamp, str]] = {}
        self.changed = False
        """Whether `render` would say something new."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, path: Path, stamp: Stamp) -> str | None:
        """The sha256 in hex, where the file still looks as it did."""
        known = self._known.get(str(path.absolute()))
        return known[1] if known is not None and known[0] == stamp else None

    def forget(self, path: Path) -> None:
        if self._known.pop(str(path.absolute()), None):
            self.changed = True

    def put(self, path: Path, stamp: Stamp, sha256: str, *, now_ns: int) -> None:
        """Remember a digest of a file that looked like `stamp` before and after hashing."""
        key = str(path.absolute())
        self._known.pop(key, None)
        self.changed = True
        if now_ns - stamp.mtime_ns >= _SETTLED_NS:
            self._known[key] = (stamp, sha256)
            while len(self._known) > MAX_ENTRIES:
                del self._known[next(iter(self._known))]

    def render(self) -> bytes:
        """`parse_cache` reads it back to an equal cache."""
        files = {
            path: [*stamp, sha256]
            for path, (stamp, sha256) in self._known.items()
            if path.isprintable()
        }
        return (json.dumps({"version": _VERSION, "files": files}, indent=0) + "\n").encode()


def parse_cache(data: bytes) -> HashCache:
    """ValueError, one line, for anything that `render` would not have written."""
    try:
        top: Any = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(top, dict) or top.get("version") != _VERSION:
        raise ValueError(f"not of version {_VERSION}")
    files = top.get("files")
    if not isinstance(files, dict) or len(files) > MAX_ENTRIES:
        raise ValueError(f"files: expected an object of at most {MAX_ENTRIES} entries")
    cache = HashCache()
    for path, entry in files.items():
        if not isinstance(entry, list) or len(entry) != 4:
            raise ValueError(f"{ascii(path)[:120]}: expected size, mtime, inode and sha256")
        *stamp, sha256 = entry
        if not all(type(value) is int for value in stamp) or not (
            isinstance(sha256, str) and _DIGEST.fullmatch(sha256)
        ):
            raise ValueError(f"{ascii(path)[:120]}: expected three integers and a sha256")
        cache._known[path] = (Stamp(*stamp), sha256)
    return cache
