"""`dsparkctl demo` run for a test, and a relay that writes down what it and a worker say."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dsparkctl.contract.codes import NEED_DRAFT, Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import HEADER_BYTES, PREFIX_BYTES
from dsparkctl.contract.messages import (
    Limits,
    Step,
    StepReply,
    parse_header,
    parse_step,
    parse_step_reply,
)
from dsparkctl.contract.records import AppHeader, Hello
from tests.e2e.running import WAIT_S

PROGRAM = (sys.executable, "-c", "from dsparkctl.cli.app import main; main()", "demo")


def demo_process(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *flags], capture_output=True, text=True, timeout=WAIT_S, check=False
    )


def report_of(said: str) -> dict[str, Any]:
    """The JSON that a run has printed: one line."""
    assert said.count("\n") == 1
    found: dict[str, Any] = json.loads(said)
    return found


class Said(NamedTuple):
    """One message."""

    at_s: float
    header: AppHeader
    body: bytes


class Relay:
    """Between a demo and a worker: every message passes, and is kept."""

    def __init__(self, worker: Endpoint, own: Hello) -> None:
        self.asked: list[Said] = []
        self.answered: list[Said] = []
        self.n_connections = 0
        self._worker = worker
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._limits = Limits(own.max_slots, own.max_rows_per_step, own.row_bytes)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("tcp", "127.0.0.1", self._listener.getsockname()[1])

    def steps(self) -> list[Step]:
        return [
            parse_step(memoryview(said.body), self._limits)
            for said in self.asked
            if said.header.op == Op.STEP
        ]

    def replies(self) -> list[StepReply]:
        return [parse_step_reply(said.body) for said in self.answered if said.header.op == Op.STEP]

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.n_connections += 1
            worker = socket.create_connection((self._worker.host, self._worker.port))
            for one, other, kept in ((client, worker, self.asked), (worker, client, self.answered)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                thread = threading.Thread(target=_pass_on, args=(one, other, kept), daemon=True)
                thread.start()
                self._sockets.append(one)
                self._threads.append(thread)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for sock in self._sockets:
            sock.close()


@contextmanager
def relay(worker: Endpoint, own: Hello) -> Iterator[Relay]:
    found = Relay(worker, own)
    thread = threading.Thread(target=found.serve, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.close()
        thread.join(5)


def _pass_on(one: socket.socket, other: socket.socket, kept: list[Said]) -> None:
    held = b""
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 16):
            held += data
            while len(held) >= PREFIX_BYTES:
                end = PREFIX_BYTES + int.from_bytes(held[:PREFIX_BYTES], "little")
                if len(held) < end:
                    break
                message, held = held[PREFIX_BYTES:end], held[end:]
                body = message[HEADER_BYTES:]
                kept.append(Said(time.monotonic(), parse_header(message), body))
            other.sendall(data)
    for sock in (one, other):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def drafted_and_accepted(relay: Relay) -> tuple[int, list[int]]:
    """As the wire tells it: entries that got drafts, and accepted drafts by position."""
    n_drafted, accepted = 0, [0] * 5
    for step, reply in zip(relay.steps(), relay.replies(), strict=True):
        for entry, status in zip(step.entries, reply.statuses, strict=True):
            n_drafted += bool(entry.req_flags & NEED_DRAFT) and status.status <= 1
            for j in range(entry.n_rows - 1 if entry.k_window else 0):
                accepted[j] += 1
    return n_drafted, accepted


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
