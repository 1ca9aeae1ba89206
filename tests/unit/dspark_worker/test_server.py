"""The one thread's order: newest wins, the engine before admin, the self-test when it is quiet."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_worker import data_link
from dspark_worker import server as server_module
from dspark_worker.data_link import TcpListener
from dspark_worker.desk import Desk
from dspark_worker.selftest import SelfTest
from dspark_worker.server import Server
from dspark_worker.service import Service
from dspark_worker.sockets import bound, listening
from dsparkctl.contract.codes import Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import prefix
from dsparkctl.contract.messages import frame
from tests.unit.dspark_worker.fake import OWN, SLOTS, FakeDrafter, good_draft

PING = prefix(32) + frame(Op.PING, 7, 0)


class Running:
    """A server in a thread of its own, on a fake drafter."""

    def __init__(self, spin_us: int = 0, service: Service | None = None) -> None:
        self.drafter = FakeDrafter()
        desk = Desk(OWN, self.drafter, worker_name="w", clock=time.perf_counter)
        anywhere = Endpoint("tcp", "127.0.0.1", 0)
        data, admin = TcpListener(anywhere, time.perf_counter), bound(anywhere)
        data.prepare(4096)
        self.server = Server(
            desk, SelfTest(OWN, self.drafter), data=data, admin=[admin],
            spin_us=spin_us, now=time.perf_counter,
            service=service or Service({}, pid=0),
        )  # fmt: skip
        self.data, self.admin = data.listen(), listening(admin)
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()

    def connect(self, *, admin: bool = False) -> socket.socket:
        endpoint = self.admin if admin else self.data
        return socket.create_connection((endpoint.host, endpoint.port), timeout=5)

    def stats(self) -> dict[str, object]:
        with self.connect(admin=True) as sock, sock.makefile("rb") as stream:
            sock.sendall(prefix(32) + frame(Op.STATS, 0, 0))
            n_bytes = int.from_bytes(stream.read(4), "little")
            found: dict[str, object] = json.loads(stream.read(n_bytes)[32:])
            return found


@pytest.fixture
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    running = Running(getattr(request, "param", 0))
    yield running
    running.server.stop()
    running.thread.join(5)
    assert not running.thread.is_alive()


@pytest.mark.parametrize("running", [0, 1000, 500_000], indirect=True)
def test_it_answers_on_both_listeners_spinning_or_not(running: Running) -> None:
    with running.connect() as engine, running.connect(admin=True) as admin:
        for sock in (engine, admin, engine, admin):
            sock.sendall(PING)
            assert len(sock.recv(36)) == 36


@pytest.mark.parametrize("running", [0, 500_000], indirect=True)
def test_7_5_the_newest_connection_wins(running: Running) -> None:
    with running.connect() as old, running.connect() as new:
        new.sendall(PING)
        assert len(new.recv(36)) == 36
        assert old.recv(1) == b""


def test_stop_closes_everything_and_frees_the_port(running: Running) -> None:
    with running.connect() as engine, running.connect(admin=True) as admin:
        engine.sendall(PING)
        engine.recv(36)
        running.server.stop()
        running.thread.join(5)
        assert (engine.recv(1), admin.recv(1)) == (b"", b"")
    with bound(running.data) as again:
        listening(again)


def test_the_self_test_runs_when_idle_and_its_failure_stands_in_stats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "_QUIET_S", 0.05)
    monkeypatch.setattr(server_module, "_SELF_TEST_EVERY_S", 0.1)
    running = Running()
    try:
        deadline = time.monotonic() + 10
        while running.stats()["self_test_ok"] is not True:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running.drafter.draft_says[SLOTS] = good_draft(3)._replace(ids=[1, 1, 1])
        while running.stats()["self_test_ok"] is not False:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        running.server.stop()
        running.thread.join(5)


def test_the_self_test_waits_while_the_engine_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_QUIET_S", 5.0)
    monkeypatch.setattr(server_module, "_SELF_TEST_EVERY_S", 0.01)
    running = Running()
    try:
        with running.connect() as engine:
            for _ in range(20):
                engine.sendall(PING)
                engine.recv(36)
                time.sleep(0.01)
        assert running.drafter.appended == []
    finally:
        running.server.stop()
        running.thread.join(5)


def test_without_a_free_descriptor_the_engine_is_still_heard(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that cannot be accepted keeps its listener readable, round after round."""
    with running.connect() as engine:
        engine.sendall(PING)
        engine.recv(36)
        for module in (server_module, data_link):
            monkeypatch.setattr(module, "accepted", lambda _: None)
        with running.connect(), running.connect(admin=True):
            engine.sendall(PING)
            assert len(engine.recv(36)) == 36
            monkeypatch.undo()


def test_an_idle_worker_feeds_the_watchdog_and_says_when_it_stops(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        named = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        running = Running(service=Service(named, pid=1))
        beats = [manager.recv(64) for _ in range(3)]
        running.server.stop()
        running.thread.join(5)
        assert beats == [b"WATCHDOG=1"] * 3
        said = manager.recv(64)
        while said == b"WATCHDOG=1":
            said = manager.recv(64)
        assert said.startswith(b"STOPPING=1")
