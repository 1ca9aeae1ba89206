"""The worker's end of ofl (§5): requests in one registered range, replies written into another.

Decides nothing that libfabric decides: order, framing and who is newest lie in the shim. A request
is received where its body begins at 64, so rows are read where the carrier put them.
"""

from collections.abc import Callable
from typing import Any, Final

from dspark_worker.sockets import ListenError, NoSuchAddress
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import HEADER_BYTES, MAX_MESSAGE_BYTES
from dsparkctl.contract.messages import parse_header
from dsparkctl.contract.records import AppHeader
from dsparkctl.net.fabric.library import NO_ADDRESS, PROVIDERS, load, require
from dsparkctl.net.transport import NotInThisBuild

_SEND_US: Final = 2_000_000
"""A peer that does not take its reply for so long has lost its connection."""


class FabricListener:
    """A `Listener` on libfabric, of `o1tcp://` and `o1rdma://`."""

    def __init__(self, endpoint: Endpoint, now: Callable[[], float]) -> None:
        """ListenError when the address cannot be taken, or libfabric is not there."""
        try:
            require(endpoint)
        except NotInThisBuild as error:
            raise ListenError(f"cannot listen on {error}") from None
        self._endpoint = endpoint
        self._now = now
        self._library = load()
        ffi, self._lib = self._library.ffi, self._library.lib
        self._said, status = self._library.said(), ffi.new("int *")
        host = endpoint.host.encode() if endpoint.host else ffi.NULL
        self._door: Any = self._lib.dsf_bind(
            PROVIDERS[endpoint.scheme].encode(), host, str(endpoint.port).encode(),
            self._library.terms(), status, self._said,
        )  # fmt: skip
        if not self._door:
            kind = NoSuchAddress if status[0] == NO_ADDRESS else ListenError
            raise kind(f"cannot listen on {endpoint}: {self._library.text(self._said)}")
        requests = self._lib.dsf_request_memory(self._door)
        self._requests = memoryview(ffi.buffer(requests, MAX_MESSAGE_BYTES))

    def prepare(self, max_message_bytes: int) -> None:
        if max_message_bytes > MAX_MESSAGE_BYTES:
            raise ListenError(
                f"cannot listen on {self._endpoint}: {self._endpoint.scheme} carries messages of "
                f"{MAX_MESSAGE_BYTES} bytes (§5), these terms allow {max_message_bytes}: lower "
                "--max-slots or --max-rows-per-step"
            )

    def listen(self) -> Endpoint:
        if self._lib.dsf_listen(self._door, self._said):
            said = self._library.text(self._said)
            raise ListenError(f"cannot listen on {self._endpoint}: {said}")
        host = self._library.ffi.new("char[]", 64)
        port = self._lib.dsf_name(self._door, host, 64, self._said)
        name = bytes(self._library.ffi.string(host)).decode()
        return Endpoint(self._endpoint.scheme, name, port)

    def fileno(self) -> int:
        return int(self._lib.dsf_door_fd(self._door))

    def may_sleep(self) -> bool:
        return bool(self._lib.dsf_door_may_sleep(self._door))

    def knocked(self) -> bool:
        return bool(self._lib.dsf_knocked(self._door))

    def admit(self) -> "FabricConnection | None":
        peer = self._lib.dsf_admit(self._door, self._said)
        return FabricConnection(self, peer) if peer else None

    def close(self) -> None:
        if self._door:
            self._requests.release()
            self._lib.dsf_close_door(self._door)
            self._door = None


class FabricConnection:
    """One connection of the listener. A `Connection`."""

    def __init__(self, listener: FabricListener, peer: Any) -> None:
        self._library = listener._library
        self._lib = listener._lib
        self._said = listener._said
        self._now = listener._now
        self._requests = listener._requests
        self._peer = peer
        ffi = self._library.ffi
        self._n_bytes, self._op, self._generation = (
            ffi.new("size_t *"), ffi.new("uint32_t *"), ffi.new("uint32_t *")
        )  # fmt: skip
        self._is_whole = False
        self.first_byte_at = 0.0
        self.received_at = 0.0

    def fileno(self) -> int:
        return int(self._lib.dsf_peer_fd(self._peer))

    def may_sleep(self) -> bool:
        return bool(self._lib.dsf_peer_may_sleep(self._peer))

    def receive(self) -> bool:
        self.first_byte_at = self._now()
        got = self._lib.dsf_receive(
            self._peer, self._n_bytes, self._op, self._generation, self._said
        )
        if got < 0:
            raise ConnectionResetError(self._library.text(self._said))
        self._is_whole = bool(got)
        self.received_at = self._now()
        return self._is_whole

    def has_message(self) -> bool:
        return False  # what waits behind a message is not taken before that is answered

    def message(self) -> tuple[AppHeader, memoryview]:
        message = self.whole()
        header = parse_header(message)
        return header, message[HEADER_BYTES:]

    def whole(self) -> memoryview:
        assert self._is_whole
        return self._requests[: self._n_bytes[0]]

    def send(self, reply: bytes) -> None:
        failed = self._lib.dsf_reply(
            self._peer, self._library.ffi.from_buffer(reply), len(reply), self._generation[0],
            _SEND_US, self._said,
        )  # fmt: skip
        if failed:
            raise ConnectionResetError(self._library.text(self._said))
        self._is_whole = False

    def consume(self) -> None:
        """Nothing is left to do: the next receive was posted before the reply."""

    def close(self) -> None:
        if self._peer:
            self._lib.dsf_close_peer(self._peer)
            self._peer = None
