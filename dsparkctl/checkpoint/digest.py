"""The sha256 of many large files, and whether they are those that a receipt lists (§6.7).

Decides how a file is hashed: streamed, a few files at a time, each thread with one buffer of its
own. Refuses to know which files make a checkpoint and what an identity is.
"""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from threading import Event, Lock
from typing import Final

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.hash_cache import HashCache, Stamp, stamp_of
from dsparkctl.contract.receipt import ReceiptFile

CHUNK_BYTES: Final = 1 << 20
"""Large enough that a read and an update each drop the interpreter lock for long."""

Progress = Callable[[int], None]
"""Is told the bytes hashed since its last call; calls come one at a time, from any thread."""


class State(Enum):
    """How a file on disk compares with its entry in the receipt."""

    OK = "ok"
    MISSING = "missing"
    SIZE_DIFFERS = "size differs"
    CONTENT_DIFFERS = "content differs"


@dataclass(frozen=True, slots=True)
class Finding:
    """One listed file: its state, and in `detail` what a person has to know about it."""

    name: str
    state: State
    detail: str = ""


def default_threads() -> int:
    """One thread a core that we may use: hashing is bound by them."""
    may_use = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(may_use(0)) if may_use else os.cpu_count() or 1


def digest_files(
    paths: Sequence[Path],
    *,
    n_threads: int | None = None,
    progress: Progress | None = None,
    cache: HashCache | None = None,
) -> tuple[ReceiptFile, ...]:
    """Every file's basename, sha256 and size, in the order of `paths`.

    What `cache` knows is not read again, and it learns what was read. CheckpointError names a file
    that cannot be read or that changed while being read.
    """
    stamps = {path: stamp_of(path) for path in paths}
    found: dict[Path, str] = {}
    for path, stamp in stamps.items():
        if cache is not None and (sha256 := cache.get(path, stamp)):
            found[path] = sha256
    largest_first = sorted(stamps.keys() - found.keys(), key=lambda p: (-stamps[p].n_bytes, p))
    work = _Work(stamps, progress)
    n_workers = max(1, min(n_threads or default_threads(), len(largest_first)))
    with ThreadPoolExecutor(n_workers) as pool:
        try:
            found.update(zip(largest_first, pool.map(work.digest, largest_first), strict=True))
        except BaseException:
            work.stop.set()
            if work.cause is not None:  # not what another thread gave up with because of it
                raise work.cause from None
            raise
    if cache is not None:
        for path in largest_first:
            cache.put(path, stamps[path], found[path], now_ns=time.time_ns())
    return tuple(ReceiptFile(path.name, found[path], stamps[path].n_bytes) for path in paths)


def verify_files(
    listed: Sequence[ReceiptFile],
    root: Path,
    *,
    n_threads: int | None = None,
    progress: Progress | None = None,
    cache: HashCache | None = None,
) -> tuple[Finding, ...]:
    """One finding a listed file, in the list's order; files are sought as `root/<basename>`.

    A file of another size is not hashed: it cannot be the one that is listed.
    """
    early = {file.name: _glance(root / file.name, file.n_bytes) for file in listed}
    paths = [root / file.name for file in listed if early[file.name] is None]
    hashed = digest_files(paths, n_threads=n_threads, progress=progress, cache=cache)
    found = {file.name: file for file in hashed}
    return tuple(early[file.name] or _compare(file, found[file.name]) for file in listed)


class _Work:
    """What the hashing threads share: what they expect, where they report, when to give up."""

    def __init__(self, stamps: Mapping[Path, Stamp], progress: Progress | None) -> None:
        self.stop = Event()
        self.cause: BaseException | None = None
        """What `progress` raised."""
        self._stamps = stamps
        self._progress = progress
        self._lock = Lock()

    def digest(self, path: Path) -> str:
        """The file's sha256 in hex. A file that is being written to has none."""
        sha256, n_left = hashlib.sha256(), self._stamps[path].n_bytes
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            with path.open("rb", buffering=0) as file:
                if sys.platform == "linux":
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                while n_left >= 0 and (n := file.readinto(buffer)):
                    sha256.update(buffer[:n])
                    n_left -= n
                    self._report(n)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
        if n_left or stamp_of(path) != self._stamps[path]:
            raise CheckpointError(f"{path}: changed while it was read")
        return sha256.hexdigest()

    def _report(self, n_bytes: int) -> None:
        with self._lock:
            if self.stop.is_set():
                raise CheckpointError("given up")
            try:
                if self._progress is not None:
                    self._progress(n_bytes)
            except BaseException as error:
                self.cause = error
                self.stop.set()  # at once: the other threads ask before their next chunk
                raise


def _glance(path: Path, n_bytes: int | None) -> Finding | None:
    """What can be said of a file without reading it."""
    if path.is_symlink() and not path.exists():
        return Finding(path.name, State.MISSING, f"its link to {path.readlink()} leads nowhere")
    if not path.is_file():
        what = "not a regular file" if path.exists() else f"no such file in {path.parent}"
        return Finding(path.name, State.MISSING, what)
    size = stamp_of(path).n_bytes
    if n_bytes is None or size == n_bytes:
        return None
    word = "truncated" if size < n_bytes else "too long"
    detail = f"{word}: {size} bytes, the receipt says {n_bytes}"
    return Finding(path.name, State.SIZE_DIFFERS, detail)


def _compare(listed: ReceiptFile, found: ReceiptFile) -> Finding:
    if found.sha256 == listed.sha256:
        return Finding(listed.name, State.OK)
    detail = f"sha256 is {found.sha256}, the receipt says {listed.sha256}"
    return Finding(listed.name, State.CONTENT_DIFFERS, detail)
