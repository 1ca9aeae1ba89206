"""A worker that does one wrong thing over real TCP and everything else right.

Each message has its deed, the next of those that a test laid out; without one it is answered as
the contract says. Connections are served one after the other, as a worker's data listener does.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from dsparkctl.contract.codes import Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import prefix
from dsparkctl.contract.messages import parse_header
from dsparkctl.net.dial import dial
from dsparkctl.state.n_out import Caps, Range
from tests.unit.client.fakes import Clock, Fault, GoodWorker, Spark
from tests.unit.net.peers import receive

Deed = Callable[[socket.socket, bytes], None]
"""What happens with the good reply to a message; a ConnectionError ends the connection."""

TIMEOUT_S = 0.3
"""A round's deadline where a test has to wait for it: short, and yet enough on a busy machine."""

PATIENT_S = 5.0
"""A round's deadline where no test waits for it: whatever is wrong is found out long before."""


class SkippingClock(Clock):
    """The real clock, which a test may put forward, so that nobody waits for a backoff."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.now_s


class HostileWorker:
    """A listener on loopback; `good` is the worker behind it."""

    def __init__(self, *, accepts: bool) -> None:
        self.good = GoodWorker()
        self.deeds: dict[Op, list[Deed]] = {Op.HELLO: [], Op.STEP: []}
        self.n_accepted = 0
        self.n_answered = 0
        self.accepts = threading.Event()
        if accepts:
            self.accepts.set()
        self.sparks: list[Spark] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("tcp", "127.0.0.1", self._listener.getsockname()[1])

    def will(self, *deeds: Deed, op: Op = Op.STEP) -> None:
        self.deeds[op] += deeds

    def wait_for(self, n_answered: int) -> None:
        """Until that many messages have all of their answer on the wire."""
        for _ in range(1000):
            if self.n_answered >= n_answered:
                return
            time.sleep(0.01)
        raise AssertionError(f"{self.n_answered} answers, not {n_answered}")

    def close(self) -> None:
        for rank0 in self.sparks:
            rank0.link.close()
        self.accepts.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            self.accepts.wait()
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.n_accepted += 1
            with sock, contextlib.suppress(OSError):
                sock.settimeout(10)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._talk(sock)

    def _talk(self, sock: socket.socket) -> None:
        self.good.accepted()
        while True:
            message = receive(sock)
            reply = self.good.reply(message)
            deeds = self.deeds[Op(parse_header(message).op)]
            (deeds.pop(0) if deeds else answer)(sock, reply)
            self.n_answered += 1


@contextmanager
def hostile_worker(*, accepts: bool = True) -> Iterator[HostileWorker]:
    worker = HostileWorker(accepts=accepts)
    try:
        yield worker
    finally:
        worker.close()


def spark(worker: HostileWorker, timeout_s: float = PATIENT_S) -> Spark:
    """The real client for it, closed with it. From two requests on it asks for 2 drafts of 3."""
    rank0 = Spark(
        partial(dial, worker.endpoint),
        SkippingClock(),
        timeout_s=timeout_s,
        caps=Caps((Range(2, 4, 2),), ""),
        want_margin=True,
    )
    worker.sparks.append(rank0)
    return rank0


# --- deeds ----------------------------------------------------------------------------------------


def framed(message: bytes) -> bytes:
    return prefix(len(message)) + message


def answer(sock: socket.socket, reply: bytes) -> None:
    sock.sendall(framed(reply))


def reply_of(fault: Fault) -> Deed:
    """A well framed reply, spoilt."""
    return lambda sock, reply: answer(sock, fault(reply))


def raw(spoil: Callable[[bytes], bytes]) -> Deed:
    """These bytes as they are, made from the good reply with its prefix."""
    return lambda sock, reply: sock.sendall(spoil(framed(reply)))


def field(offset: int, code: str, change: Callable[[int], int]) -> Deed:
    """One field of the AppHeader, another value."""

    def spoil(reply: bytes) -> bytes:
        data = bytearray(reply)
        (value,) = struct.unpack_from(f"<{code}", data, offset)
        struct.pack_into(f"<{code}", data, offset, change(value))
        return bytes(data)

    return reply_of(spoil)


def nothing(_sock: socket.socket, _reply: bytes) -> None:
    """Says nothing, and goes on reading."""


def late(sock: socket.socket, reply: bytes) -> None:
    """The whole good reply, once nobody waits for it."""
    time.sleep(TIMEOUT_S + 0.1)
    answer(sock, reply)


def dripping(sock: socket.socket, reply: bytes) -> None:
    """One byte at a time, slowly: the deadline is for the whole reply (C26)."""
    for byte in framed(reply):
        sock.sendall(bytes([byte]))
        time.sleep(0.02)


def byte_by_byte(sock: socket.socket, reply: bytes) -> None:
    """One byte at a time, as fast as it goes: a good reply."""
    for byte in framed(reply):
        sock.sendall(bytes([byte]))


def in_two_parts(sock: socket.socket, reply: bytes) -> None:
    sock.sendall(framed(reply)[:50])
    time.sleep(0.02)
    sock.sendall(framed(reply)[50:])


def hang_up(_sock: socket.socket, _reply: bytes) -> None:
    raise ConnectionAbortedError


def half(sock: socket.socket, reply: bytes) -> None:
    """Half a reply, then the end of the stream."""
    sock.sendall(framed(reply)[: len(reply) // 2])
    raise ConnectionAbortedError


def slam(sock: socket.socket, _reply: bytes) -> None:
    """A reset instead of a reply."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionAbortedError


def half_and_slam(sock: socket.socket, reply: bytes) -> None:
    sock.sendall(framed(reply)[:40])
    slam(sock, reply)
