"""The client's end of ofl: one request out, its reply in a registered range (§5).

Decides what is kept between connections: the domain, the reply's range and the memory that messages
are sent from, each registered once. Refuses to know what a message says, but for its op and its
seq, which ofl carries as well.
"""

from collections.abc import Sequence
from typing import Any, Final

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import HEADER_BYTES, MAX_REPLY_BYTES
from dsparkctl.contract.layout import Buffer, unpack
from dsparkctl.contract.records import AppHeader
from dsparkctl.net.fabric.library import PROVIDERS, Library, load, require
from dsparkctl.net.transport import Deadline

ECHO: Final = 0
"""ofl's built-in echo, which the far end's transport answers by itself (§5)."""

_NO_OP: Final = 255
"""ofl's op of a message whose own cannot be one."""


class FabricDialler:
    """Connects to one listener again and again, from memory that is registered once."""

    def __init__(
        self, endpoint: Endpoint, spin_s: float = 0.0, staging: memoryview | None = None
    ) -> None:
        """`staging`: writable memory; parts of messages that lie in it are sent from there."""
        self._endpoint = endpoint
        self._spin_s = spin_s
        self._staging = staging
        self._side: _Side | None = None

    def __call__(self, deadline: Deadline) -> "FabricLink":
        """A connection; NotInThisBuild, TimedOut or Broken when there is none."""
        require(self._endpoint)
        if self._side is None:
            self._side = _Side(self._endpoint, self._staging)
        return FabricLink(self._side, self._endpoint, self._spin_s, deadline)


class _Side:
    """A domain with its registered memory; closed when nobody holds it any more."""

    def __init__(self, endpoint: Endpoint, staging: memoryview | None) -> None:
        self.library = load()
        ffi, lib = self.library.ffi, self.library.lib
        said, status = self.library.said(), ffi.new("int *")
        opened = lib.dsf_open(
            PROVIDERS[endpoint.scheme].encode(),
            endpoint.host.encode(),
            str(endpoint.port).encode(),
            ffi.NULL if endpoint.bind is None else endpoint.bind.encode(),
            self.library.terms(),
            status,
            said,
        )
        if not opened:
            raise self.library.error(endpoint, status[0], said)
        self.pointer = ffi.gc(opened, lib.dsf_close)
        self.replies = memoryview(ffi.buffer(lib.dsf_reply_range(opened), MAX_REPLY_BYTES))
        if staging is not None:
            # The address alone is kept beside the view: an export of a view, held in a reference
            # cycle, crashes the collector of CPython before 3.11.8 and 3.12.2 (gh-77894).
            self._staging = staging
            at = ffi.cast("void *", ffi.from_buffer(staging, require_writable=True))
            failed = lib.dsf_register(opened, at, staging.nbytes, said)
            if failed:
                raise self.library.error(endpoint, failed, said)


class FabricLink:
    """A `Link` over libfabric. Requests are sent from registered memory, copied there unless they
    lie in it."""

    def __init__(self, side: _Side, endpoint: Endpoint, spin_s: float, deadline: Deadline) -> None:
        self._library: Library = side.library
        ffi, self._lib = self._library.ffi, self._library.lib
        self._said, status = self._library.said(), ffi.new("int *")
        opened = self._lib.dsf_dial(side.pointer, _us(deadline.left_s), status, self._said)
        if not opened:
            raise self._library.error(endpoint, status[0], self._said)
        self._pointer: Any = ffi.gc(opened, self._lib.dsf_free_link)
        self._side = side  # outlives the endpoint
        self._endpoint = endpoint
        self._spin_us = _us(spin_s)
        self._parts = ffi.new("void *[]", self._lib.DSF_MAX_PARTS)
        self._lengths = ffi.new("size_t[]", self._lib.DSF_MAX_PARTS)

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    def exchange(self, parts: Sequence[Buffer], deadline: Deadline) -> memoryview:
        """Send the buffers as one message, return its reply as a view; see `Link`."""
        if len(parts[0]) < HEADER_BYTES:
            return self._exchange(parts, _NO_OP, 0, deadline)
        header = unpack(AppHeader, parts[0])
        return self._exchange(parts, min(header.op, _NO_OP), header.seq, deadline)

    def echo(self, payload: Buffer, deadline: Deadline) -> memoryview:
        """ofl's op 0: the payload as the far end's transport returns it; no desk sees it."""
        return self._exchange((payload,), ECHO, 0, deadline)

    def check(self) -> None:
        """Whether the connection still stands, with nothing on it; see `Link`."""
        status = self._lib.dsf_check(self._pointer, self._said)
        if status:
            raise self._library.error(self._endpoint, status, self._said)

    def close(self) -> None:
        self._lib.dsf_hang_up(self._pointer)

    def _exchange(
        self, parts: Sequence[Buffer], op: int, generation: int, deadline: Deadline
    ) -> memoryview:
        if len(parts) > self._lib.DSF_MAX_PARTS:
            parts = (b"".join(parts),)
        ffi = self._library.ffi
        views = [ffi.from_buffer(part) for part in parts]
        for number, view in enumerate(views):
            self._parts[number] = view
            self._lengths[number] = len(view)
        try:
            n = self._lib.dsf_exchange(
                self._pointer, self._parts, self._lengths, len(views), op,
                generation & 0xFFFFFFFF, _us(deadline.left_s), self._spin_us, self._said,
            )  # fmt: skip
        except BaseException:  # a signal's exception: the reply may still come
            self.close()
            raise
        finally:
            for view in views:  # a traceback would keep them, and with them the caller's buffers
                ffi.release(view)
        if n < 0:
            raise self._library.error(self._endpoint, n, self._said)
        return self._side.replies[:n]


def _us(seconds: float) -> int:
    return min(int(seconds * 1e6), 1 << 60)
