"""A real worker process for a test, and a raw client that speaks to it byte by byte."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.config.hello import HelloParams
from dsparkctl.contract.codes import Op
from dsparkctl.contract.endpoint import Endpoint, parse_endpoint
from dsparkctl.contract.framing import HEADER_BYTES, prefix
from dsparkctl.contract.messages import frame, hello_frame, parse_header
from dsparkctl.contract.records import AppHeader, Hello

GOLDEN = Path(__file__).parents[1] / "golden" / "drafter" / "a"

WAIT_S = 60.0


class Worker(NamedTuple):
    """A worker that printed its ready line."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    own: Hello

    @property
    def data(self) -> Endpoint:
        return parse_endpoint(self.ready["listen"])

    @property
    def admin(self) -> Endpoint:
        return parse_endpoint(self.ready["admin"][0])

    def n_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208


def command(*flags: str) -> list[str]:
    return [
        *(sys.executable, "-P", "-m", "dspark_worker", "serve"),
        *("--listen", "tcp://127.0.0.1:0", "--admin", "tcp://127.0.0.1:0", "--json"),
        *flags,
    ]


@contextmanager
def running_worker(*flags: str, checkpoint: Path = GOLDEN) -> Iterator[Worker]:
    """Serves on free loopback ports until the block ends; then it must have ended by SIGTERM."""
    identity = () if "--receipt" in flags else ("--identity-from-files",)
    given = command("--checkpoint", str(checkpoint), *identity, *flags)
    process = subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        ready = json.loads(line)
        own = HelloParams.from_checkpoint(
            read_model_config(find_files(checkpoint)),
            drafter_identity=bytes.fromhex(ready["drafter_identity"]),
        )
        yield Worker(process, ready, own.record())
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()


class Client:
    """One TCP connection that sends what it is told and reads whole replies."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.sock = socket.create_connection((endpoint.host, endpoint.port), timeout=WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self.sock.makefile("rb")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: bytes) -> None:
        self.sock.sendall(prefix(len(message)) + message)

    def receive(self) -> tuple[AppHeader, bytes]:
        """The next reply; EOFError when the worker closed the connection."""
        try:
            head = self._stream.read(4)
            message = self._stream.read(int.from_bytes(head, "little")) if len(head) == 4 else b""
        except ConnectionResetError:
            message = b""
        if len(message) < HEADER_BYTES:
            raise EOFError
        return parse_header(message), message[HEADER_BYTES:]

    def ask(self, message: bytes) -> tuple[AppHeader, bytes]:
        self.send(message)
        return self.receive()

    def hello(self, own: Hello, *, session: int = 1, seq: int = 1) -> AppHeader:
        return self.ask(hello_frame(seq, session, own))[0]

    def ping(self, *, body: bytes = b"") -> AppHeader:
        return self.ask(frame(Op.PING, 0, 0, body))[0]

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask(frame(Op.STATS, 0, 0))[1])
        return found

    def is_closed(self) -> bool:
        """Whether the worker closed the connection (it may have sent nothing before)."""
        try:
            self.receive()
        except EOFError:
            return True
        return False

    def close(self) -> None:
        self._stream.close()
        self.sock.close()
