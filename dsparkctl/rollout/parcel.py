"""Rooms of ours as one program for a host's `python3 -`: nothing is installed, nothing is left.

Decides how modules travel: zipped, in the program's own text, and imported on the host from an
anonymous file in memory. Refuses to know what they do. A room that travels holds to the standard
library, and its sources stand in the distribution once.
"""

import base64
import io
import zipfile
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

PYTHON: Final = ("python3", "-I", "-")
"""What reads a parcel from stdin: isolated, so that no folder or variable of the account counts."""

_OPENING: Final = """\
import base64, os, runpy, sys
if sys.version_info < {oldest!r}:
    sys.exit("Python %d.%d is too old here: {version} is needed" % sys.version_info[:2])
parcel = os.memfd_create("dsparkctl")
with open(parcel, "wb", closefd=False) as file:
    file.write(base64.b64decode({content!r}))
sys.path.insert(0, "/proc/self/fd/%d" % parcel)
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


def parcel(module: str, rooms: Sequence[str] = (), *, oldest: tuple[int, int] = (3, 11)) -> bytes:
    """The text of a program that runs `module` as `__main__`.

    `rooms` are the packages below dsparkctl, and the modules, that it imports, its own among them;
    `oldest` is the Python that they need.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sorted(_sources([module, *rooms]).items()):
            archive.writestr(zipfile.ZipInfo(name), source, zipfile.ZIP_DEFLATED)
    content = base64.b64encode(packed.getvalue()).decode()
    version = ".".join(map(str, oldest))
    return _OPENING.format(oldest=oldest, version=version, content=content, module=module).encode()


def _sources(names: Sequence[str]) -> dict[str, bytes]:
    """Path in the archive to source: each module, each package's modules, and what leads there."""
    found: dict[str, bytes] = {}
    for name in names:
        top, *rest = name.split(".")
        room = files(top).joinpath(*rest)
        if room.is_dir():
            paths = [(*rest, one.name) for one in room.iterdir() if one.name.endswith(".py")]
        else:
            paths = [(*rest[:-1], f"{rest[-1]}.py")]
        paths += [(*rest[:depth], "__init__.py") for depth in range(len(rest))]
        found |= {"/".join((top, *path)): files(top).joinpath(*path).read_bytes() for path in paths}
    return found
