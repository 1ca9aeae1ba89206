"""Files on their way to a host: what is sent, and the fixed scripts that take it there.

Decides that a file stands under its name only when it is whole: large ones grow as `.part`, from
where an earlier attempt ended, and are renamed when their sha256 is right; many go as one tar
stream; small ones go through a temporary file beside their place. The scripts are constant; names
reach them as arguments.
"""

import hashlib
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 1 << 18

APPEND: Final = ("sh", "-c", 'cat >> "$1"', "append")
"""+ the part."""

SIZE: Final = ("sh", "-c", 'if [ -e "$1" ]; then stat -c %s -- "$1"; else echo 0; fi', "size")
"""+ a file; 0 where there is none."""

FINISH: Final = (
    "sh",
    "-c",
    'set -e; sync -- "$1"; mv -T -- "$1" "$2"; sync -- "$(dirname -- "$2")"',
    "finish",
)
"""+ the part and its final name."""

UNPACK: Final = (
    "sh",
    "-c",
    'set -e; mkdir -p -- "$1"; tar -x --no-same-owner --no-same-permissions -f - -C "$1"',
    "unpack",
)
"""+ the folder; its input is the tar stream."""

CHECK: Final = ("sh", "-c", 'cd -- "$1" && sha256sum --check --strict --quiet -', "check")
"""+ the folder; its input is what sha256sum prints."""

WRITE: Final = (
    "sh",
    "-c",
    """set -e
d=$(dirname -- "$1"); t=$(mktemp -p "$d" .dspark.XXXXXX); trap 'rm -f -- "$t"' EXIT
cat > "$t"
if [ "$(stat -c %s -- "$t")" != "$4" ]; then echo "not all bytes arrived" >&2; exit 1; fi
chmod -- "$2" "$t"; if [ -n "$3" ]; then chown -- "$3" "$t"; fi
sync -- "$t"; mv -T -- "$t" "$1"; trap - EXIT; sync -- "$d"
""",
    "write",
)
"""+ path, mode, owner (may be empty), size; its input is the file."""


def chunks(path: Path, start: int = 0) -> Iterator[bytes]:
    """The file's bytes from `start` on."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while data := file.read(CHUNK_BYTES):
            yield data


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tar_of(files: Sequence[Path]) -> Iterator[bytes]:
    """A tar stream of the files by their base names, in pieces that are worth a packet."""
    held = bytearray()
    for piece in _members(files):
        held += piece
        if len(held) >= CHUNK_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held)


def _members(files: Sequence[Path]) -> Iterator[bytes]:
    for path in files:
        info = tarfile.TarInfo(path.name)
        info.size, info.mode = path.stat().st_size, 0o644
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield from chunks(path)
        yield bytes(-info.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def digests_of(files: Sequence[Path]) -> bytes:
    """As sha256sum prints them, for CHECK. ValueError for a name that it would escape."""
    lines = []
    for path in files:
        if "\n" in path.name or "\\" in path.name or "\r" in path.name:
            raise ValueError(f"{path.name!a}: no name for a file that is sent")
        lines.append(f"{sha256_of(path)}  {path.name}\n")
    return "".join(lines).encode()
