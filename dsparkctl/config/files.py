"""Small files that a person names: read whole within a bound, written whole or not at all.

Decides nothing of their content. Large files (tensors) are `dsparkctl.checkpoint`'s.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dsparkctl.config.errors import ReadError, WriteError
from dsparkctl.contract.layout import Buffer
from dsparkctl.contract.receipt import MAX_RECEIPT_BYTES, Receipt, ReceiptError, parse_receipt


def read_whole(path: Path, *, max_bytes: int) -> bytes:
    """The file's bytes; ReadError when it cannot be read or is larger than `max_bytes`."""
    try:
        with _opened(path) as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ReadError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise ReadError(f"{path}: larger than {max_bytes} bytes, which is more than it may be")
    return data


def _opened(path: Path) -> BinaryIO:
    """A pipe that nobody writes to is at its end, not waited for; `<(command)` works."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def read_receipt(path: Path) -> Receipt:
    """The receipt in a file; ReadError or ReceiptError, both naming the file."""
    data = read_whole(path, max_bytes=MAX_RECEIPT_BYTES)
    try:
        return parse_receipt(data)
    except ReceiptError as error:
        raise ReceiptError(f"{path}: {error}") from None


def write_whole(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Put `data` at `path` so that at no time, and after no failure, half of it stands there.

    A temporary file beside it is written, synced, measured and only then renamed; with `replace`
    off, an existing file is refused. On a WriteError nothing has changed and nothing is left over.
    """
    with writing(path, replace=replace) as write:
        write(data)


@contextmanager
def writing(path: Path, *, replace: bool = True) -> Iterator[Callable[[Buffer], None]]:
    """The same for what comes in pieces: the block is given what writes one.

    Nothing is renamed, and nothing left over, when the block raises.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise WriteError(f"{path}: not a regular file")
    if path.exists() and not replace:
        raise WriteError(f"{path}: exists already")
    try:
        handle, temporary = tempfile.mkstemp(prefix=".dspark.", dir=path.parent)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            n_bytes = 0

            def write(data: Buffer) -> None:
                nonlocal n_bytes
                n_bytes += _write_all(file.fileno(), data)

            yield write
            _sync(file.fileno(), n_bytes)
            os.fchmod(file.fileno(), _mode(path))
        Path(temporary).replace(path)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync_directory(path.parent)


def _write_all(descriptor: int, data: Buffer) -> int:
    """How many bytes there were. A short write is no error to the kernel."""
    rest = memoryview(data).cast("B")
    n_bytes = len(rest)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    return n_bytes


def _sync(descriptor: int, n_bytes: int) -> None:
    """Some full disks speak up only here."""
    os.fsync(descriptor)
    size = os.fstat(descriptor).st_size
    if size != n_bytes:
        raise OSError(0, f"{size} of {n_bytes} bytes arrived on disk")


def _mode(path: Path) -> int:
    """The mode of the file that is replaced, or what the umask gives a new one."""
    try:
        return path.stat().st_mode & 0o7777
    except FileNotFoundError:
        return 0o666 & ~umask()


def umask() -> int:
    """This process's; the kernel tells it only to who sets another."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
