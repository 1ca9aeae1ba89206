"""Peers on loopback that do to a connection whatever a test says: small threads, real sockets."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import PREFIX_BYTES, prefix
from dsparkctl.contract.messages import frame, parse_header

Behaviour = Callable[[socket.socket], None]
"""What the peer does with one connection, which is closed when it returns."""


@contextmanager
def peer(behave: Behaviour, host: str = "127.0.0.1") -> Iterator[Endpoint]:
    """A listener that gives each connection to `behave`, one after the other."""
    listener = socket.create_server((host, 0))
    thread = threading.Thread(target=_serve, args=(listener, behave), daemon=True)
    thread.start()
    try:
        yield Endpoint("tcp", host, listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        listener.close()


def _serve(listener: socket.socket, behave: Behaviour) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        with sock:
            sock.settimeout(5)
            try:
                behave(sock)
            except OSError:
                continue


def receive(sock: socket.socket) -> bytes:
    """One whole message, without its prefix; ConnectionError at the end of the stream."""
    (n_bytes,) = struct.unpack("<I", _exactly(sock, PREFIX_BYTES))
    return _exactly(sock, n_bytes)


def reply(sock: socket.socket, message: bytes, body: bytes = b"", status: int = 0) -> None:
    """A well-formed reply to the message."""
    header = parse_header(message)
    send(sock, frame(header.op, header.seq, header.session, body, status))


def send(sock: socket.socket, message: bytes) -> None:
    sock.sendall(prefix(len(message)) + message)


def answering(*bodies: bytes, status: int = 0) -> Behaviour:
    """Replies to every message, with each body in turn, the last one for ever."""

    def behave(sock: socket.socket) -> None:
        left = list(bodies) or [b""]
        while True:
            message = receive(sock)
            reply(sock, message, left.pop(0) if len(left) > 1 else left[0], status)

    return behave


def saying(data: bytes) -> Behaviour:
    """Answers the first message with these bytes, as they are, and then waits to be closed."""

    def behave(sock: socket.socket) -> None:
        receive(sock)
        sock.sendall(data)
        silent(sock)

    return behave


def silent(sock: socket.socket) -> None:
    """Reads and never answers."""
    while sock.recv(1 << 16):
        pass


def _exactly(sock: socket.socket, n_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < n_bytes:
        part = sock.recv(n_bytes - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return bytes(data)
