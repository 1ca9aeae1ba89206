"""The shim as Python sees it: loaded once, declared by its own header, its errors as ours.

Decides what is missing when a scheme cannot be used, and what to do about it. Refuses to know
links and listeners.
"""

import functools
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import MAX_MESSAGE_BYTES, MAX_REPLY_BYTES
from dsparkctl.net.fabric.build import HERE, LIBRARY, source_digest
from dsparkctl.net.transport import Broken, NotInThisBuild, Oversize, TimedOut, TransportError

PROVIDERS: Final = {"o1tcp": "tcp", "o1rdma": "verbs"}
"""Scheme to libfabric's provider; both under FI_EP_MSG, verbs as RC queue pairs."""

SERVICE: Final = "dspark-v1"
VERSION: Final = 1
MAX_INFLIGHT: Final = 1

DEVICES: Final = Path("/sys/class/infiniband")

_BUILD: Final = "`dsparkctl fabric build`"
_ERRORS: Final = {-1: TimedOut, -2: Broken, -3: Oversize, -4: Broken, -5: Broken}
NO_ADDRESS: Final = -4

_SIGACTION_BYTES: Final = 512
"""More than a `struct sigaction` has anywhere."""


class Library(NamedTuple):
    """cffi's view of the loaded shim."""

    ffi: Any
    lib: Any

    def said(self) -> Any:
        """Room for the line of a call that fails."""
        return self.ffi.new("char[]", self.lib.DSF_SAID)

    def text(self, said: Any) -> str:
        return bytes(self.ffi.string(said)).decode("utf-8", "replace")

    def terms(self) -> Any:
        """What this side says at connect (§5)."""
        return self.ffi.new(
            "struct dsf_terms *", (VERSION, MAX_INFLIGHT, MAX_MESSAGE_BYTES, MAX_REPLY_BYTES)
        )

    def error(self, endpoint: Endpoint, status: int, said: Any) -> TransportError:
        """A negative status as the exception that every carrier raises."""
        return _ERRORS[status](f"{endpoint}: {self.text(said)}")


class Interface(NamedTuple):
    """Where FI_EP_MSG can be had."""

    provider: str
    fabric: str
    domain: str
    address: str


class Missing(Exception):  # noqa: N818 -- what happened
    """libfabric cannot be used; one line: why, and what to install."""


@functools.cache
def load(path: Path = LIBRARY) -> Library:
    """The shim, or Missing."""
    try:
        import cffi
    except ImportError:
        raise Missing('install the extra: pip install "dsparkctl[fabric]"') from None
    if not path.exists():
        raise Missing(f"install libfabric-dev and a C compiler, then run {_BUILD}")
    ffi = cffi.FFI()
    ffi.cdef(_declarations((HERE / "shim.h").read_text()))
    ffi.cdef("int sigaction(int, const void *, void *);")
    try:
        with _handlers_kept(ffi):
            lib = ffi.dlopen(str(path))
            built_of = bytes(ffi.string(lib.dsf_sources())).decode()
            lib.dsf_load_providers()
    except (OSError, AttributeError) as error:
        raise Missing(f"{str(error).splitlines()[0]}: install libfabric1, or {_BUILD}") from None
    if built_of != source_digest():
        raise Missing(f"{path} was built of another version's sources: run {_BUILD} again")
    return Library(ffi, lib)


@contextmanager
def _handlers_kept(ffi: Any) -> Iterator[None]:
    """What signals do, as it was before. Debian's libfabric brings libpsm2, which takes SIGINT and
    SIGTERM from the process as it is loaded, and makes a crash an exit code of 1."""
    libc = ffi.dlopen(None)
    before = {number: ffi.new("char[]", _SIGACTION_BYTES) for number in range(1, signal.NSIG)}
    known = [number for number, was in before.items() if not libc.sigaction(number, ffi.NULL, was)]
    try:
        yield
    finally:
        for number in known:
            libc.sigaction(number, before[number], ffi.NULL)


def interfaces(provider: str) -> list[Interface]:
    """Where the provider offers FI_EP_MSG now; Missing without libfabric."""
    library = load()
    text, said = library.ffi.new("char[]", 1 << 16), library.said()
    n = library.lib.dsf_interfaces(provider.encode(), text, 1 << 16, said)
    if n < 0:
        raise Missing(library.text(said))
    lines = bytes(library.ffi.buffer(text, n)).decode("utf-8", "replace").splitlines()
    return [Interface(*line.split("\t")) for line in lines]


def require(endpoint: Endpoint) -> None:
    """NotInThisBuild unless a link or a listener of this scheme can be tried here."""
    try:
        load()
        if endpoint.scheme == "o1rdma" and not interfaces(PROVIDERS["o1rdma"]):
            found = sorted(path.name for path in DEVICES.iterdir()) if DEVICES.is_dir() else []
            raise Missing(
                "no RDMA device: libfabric's provider verbs offers none, and "
                f"{DEVICES} holds {', '.join(found) or 'none'}"
            )
    except Missing as error:
        raise NotInThisBuild(f"{endpoint}: {endpoint.scheme} is not usable here: {error}") from None


def _declarations(header: str) -> str:
    """The header without what only a preprocessor understands."""
    lines = [line for line in header.splitlines() if not re.match(r"#(ifndef|endif|include)", line)]
    return "\n".join(line for line in lines if line != "#define DSF_SHIM_H")
