"""Files on their way to a host: what is sent, and the constant scripts that take it there.

Decides that a file stands under its name only when it is whole: large ones grow as `.part`, from
where an earlier attempt ended, and are renamed when their sha256 is right; many go as one tar
stream; small ones go through a temporary file beside their place. Names reach the scripts as
arguments. Python's hashlib does the digests: it is several times as fast as sha256sum where the
processor has no instructions for it. The scripts run on Python 3.8 and newer.
"""

import hashlib
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 1 << 18

WRONG_DIGEST: Final = 3
"""What RECEIVE ends with when the file is whole and another one."""

RECEIVE: Final = (
    "python3",
    "-c",
    """
import contextlib, fcntl, hashlib, os, sys
part, final, size, expected = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
try:
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    n_there = os.fstat(fd).st_size
    if n_there > size:
        os.ftruncate(fd, 0)
        n_there = 0
    print(n_there, flush=True)
    with contextlib.suppress(OSError):
        fcntl.fcntl(0, 1031, 1 << 20)  # F_SETPIPE_SZ: fewer turns between sshd and us
    found, buffer = hashlib.sha256(), bytearray(1 << 20)
    piece = memoryview(buffer)
    while n := os.readv(fd, [buffer]):
        found.update(piece[:n])
    while n := os.readv(0, [buffer]):
        found.update(piece[:n])
        rest = piece[:n]
        while rest:
            rest = rest[os.write(fd, rest):]
    n_there = os.fstat(fd).st_size
    if n_there != size:
        sys.exit(f"{n_there} of {size} bytes arrived")
    if found.hexdigest() != expected:
        os.unlink(part)
        print(found.hexdigest(), file=sys.stderr)
        sys.exit(3)
    os.fsync(fd)
    os.replace(part, final)
    folder = os.open(os.path.dirname(final) or ".", os.O_RDONLY)
    os.fsync(folder)
except OSError as error:
    sys.exit(f"{error.filename or final}: {error.strerror}")
""",
)
"""+ the part, its final name, bytes in all, sha256. Prints how many bytes are there already, and
takes the rest on its input. The digest is made of all bytes as they pass, found and new ones."""

UNPACK: Final = (
    "sh",
    "-c",
    'set -e; mkdir -p -- "$1"; tar -x --no-same-owner --no-same-permissions -f - -C "$1"',
    "unpack",
)
"""+ the folder; its input is the tar stream."""

CHECK: Final = (
    "python3",
    "-c",
    """
import hashlib, os, sys
def digest(path):
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(1 << 20):
            found.update(data)
    return found.hexdigest()
bad = []
for line in sys.stdin:
    expected, name = line[:-1].split("  ", 1)
    path = os.path.join(sys.argv[1], name)
    if not os.path.isfile(path) or digest(path) != expected:
        bad.append(name)
sys.exit("not what was sent: " + ", ".join(bad[:3]) if bad else 0)
""",
)
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
        if not path.name.isprintable() or "\\" in path.name:
            raise ValueError(f"{path.name!a}: no name for a file that is sent")
        lines.append(f"{sha256_of(path)}  {path.name}\n")
    return "".join(lines).encode()
