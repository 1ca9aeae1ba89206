"""Sends messages as large as STEPs over a direct link and times each until it is acknowledged.

Runs on both ends of the link at once, in a parcel: `receive` on the worker's host, `send` on the
Spark. At most MAX_BYTES and LONGEST_S in all, and never more than one message in memory: a Spark's
memory is its GPU's too. Standard library of Python 3.9.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from typing import Any

MAX_BYTES = 64 << 20
MAX_MESSAGE_BYTES = 16 << 20
LONGEST_S = 10.0
N_RTT = 100
EACH_S = 2.5
"""For the messages of one size."""

_LENGTH = struct.Struct("!I")
_ACK = b"\x06"


class Out(Exception):  # noqa: N818 -- what happened
    """The time is over."""


def receive(asked: dict[str, Any], until_s: float) -> dict[str, Any]:
    """Acknowledge what one connection from the named address sends."""
    n_bytes = 0
    with socket.create_server((asked["peer"], asked["port"]), backlog=1) as listener:
        sock = _from(listener, asked["own"], until_s)
        with sock:
            buffer = memoryview(bytearray(MAX_MESSAGE_BYTES))
            while n_bytes < MAX_BYTES and _exactly(sock, buffer[: _LENGTH.size], until_s):
                (length,) = _LENGTH.unpack(buffer[: _LENGTH.size])
                if length > MAX_MESSAGE_BYTES or not _exactly(sock, buffer[:length], until_s):
                    break
                n_bytes += length
                sock.sendall(_ACK)
    return {"received_bytes": n_bytes}


def send(asked: dict[str, Any], until_s: float) -> dict[str, Any]:
    """Microseconds from the first byte until the acknowledgement, for each message."""
    found: dict[str, Any] = {"rtt_us": [], "rounds": [], "error": None}
    left_bytes = MAX_BYTES - MAX_MESSAGE_BYTES
    try:
        with _connect(asked, until_s) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found["rtt_us"] = [_round(sock, b"\0", until_s) for _ in range(N_RTT)]
            for n_bytes, n_rounds in asked["sizes"]:
                payload = bytes(n_bytes)
                us: list[float] = []
                found["rounds"].append({"n_bytes": n_bytes, "us": us})
                enough_s = time.monotonic() + EACH_S
                _round(sock, payload, until_s)  # opens TCP's window
                while len(us) < n_rounds and left_bytes > 0 and time.monotonic() < enough_s:
                    us.append(_round(sock, payload, until_s))
                    left_bytes -= n_bytes
    except (OSError, Out) as error:
        found["error"] = (getattr(error, "strerror", None) or str(error) or "no answer")[:200]
    return found


def _round(sock: socket.socket, payload: bytes, until_s: float) -> float:
    start = time.perf_counter()
    sock.settimeout(_left(until_s))
    sock.sendall(_LENGTH.pack(len(payload)))
    sock.sendall(payload)
    if sock.recv(1) != _ACK:
        raise Out("the other end closed the connection")
    return round((time.perf_counter() - start) * 1e6, 1)


def _connect(asked: dict[str, Any], until_s: float) -> socket.socket:
    """The other end may still be starting."""
    while True:
        try:
            address = (asked["peer"], asked["port"])
            return socket.create_connection(address, _left(until_s), (asked["own"], 0))
        except ConnectionRefusedError:
            time.sleep(min(0.1, _left(until_s)))


def _from(listener: socket.socket, address: str, until_s: float) -> socket.socket:
    while True:
        listener.settimeout(_left(until_s))
        sock, found = listener.accept()
        if found[0] == address:
            return sock
        sock.close()


def _exactly(sock: socket.socket, into: memoryview, until_s: float) -> bool:
    """Whether the buffer was filled before the stream ended."""
    while into:
        sock.settimeout(_left(until_s))
        n = sock.recv_into(into)
        if not n:
            return False
        into = into[n:]
    return True


def _left(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise Out("the time is over")
    return left_s


def main() -> None:
    asked = json.loads(sys.argv[1])
    act = {"send": send, "receive": receive}[asked["act"]]
    try:
        found = act(asked, time.monotonic() + LONGEST_S)
    except (OSError, Out) as error:
        found = {"error": str(error)[:200]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
