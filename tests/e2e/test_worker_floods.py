"""Floods of the admin side beside an engine that drafts (issue 6, part 5): what is answered, and
that nobody is forgotten. How fast a STEP stays is `benchmarks/floods.py`'s to measure."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from dsparkctl.contract.codes import NEED_DRAFT, Op
from dsparkctl.contract.framing import prefix
from dsparkctl.contract.messages import frame, step_head
from dsparkctl.contract.records import ReqEntry
from tests.e2e.running import Client, Worker, running_worker

PING = frame(Op.PING, 1, 0)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with running_worker("--drafter", "scripted") as started:
        yield started


SESSIONS = itertools.count(1)


def draft(client: Client, worker: Worker, session: int, number: int) -> int:
    """One STEP's frame status."""
    one = ReqEntry(0, NEED_DRAFT, 0, 0, 1, number, 1, 1, number + 1)
    head = step_head(seq=number + 2, session=session, step_id=number, step_flags=0,
                     row_bytes=worker.own.row_bytes, entries=[one])  # fmt: skip
    return client.ask(head + b"\x00\x3f" * (worker.own.row_bytes // 2))[0].status


@contextlib.contextmanager
def flood(worker: Worker, ask: bool) -> Iterator[list[int]]:
    """Connections that come and go as fast as they can, or ask and ask; how many there were."""
    stop, counts = threading.Event(), [0]

    def come_and_go() -> None:
        while not stop.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection((worker.admin.host, worker.admin.port), 2) as sock,
            ):
                counts[0] += 1
                for _ in range(50 if ask else 0):
                    sock.sendall(prefix(len(PING)) + PING)
                    sock.recv(1 << 16)

    threads = [threading.Thread(target=come_and_go, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)


@pytest.mark.parametrize("ask", [False, True], ids=["come and go", "ask and ask"])
def test_an_engine_drafts_on_while_the_admin_side_is_flooded(worker: Worker, ask: bool) -> None:
    with Client(worker.data) as engine:
        session = next(SESSIONS)
        assert engine.hello(worker.own, session=session).status == 0
        with flood(worker, ask) as counts:
            statuses = {draft(engine, worker, session, number) for number in range(300)}
            end_s = time.monotonic() + 10
            while not counts[0] and time.monotonic() < end_s:
                time.sleep(0.01)
        assert statuses == {0}
        assert counts[0] > 0


def test_the_admin_side_gets_its_share_while_an_engine_is_busy(worker: Worker) -> None:
    """Throttled is not forgotten: an operator's STATS is answered in the middle of it."""
    done = threading.Event()

    def busy() -> None:
        with Client(worker.data) as engine:
            session, number = next(SESSIONS), 0
            engine.hello(worker.own, session=session)
            while not done.is_set():
                draft(engine, worker, session, number)
                number += 1

    engine = threading.Thread(target=busy, daemon=True)
    engine.start()
    try:
        with flood(worker, ask=True), Client(worker.admin) as operator:
            for _ in range(20):
                assert operator.stats()["steps"] >= 0
    finally:
        done.set()
        engine.join(30)
