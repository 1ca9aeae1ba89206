"""What the service manager hears (issue 5, Type=notify): on a real datagram socket."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark_worker import service as service_module
from dspark_worker.service import Service


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        yield sock


def environ(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


def heard(manager: socket.socket) -> list[str]:
    manager.setblocking(False)
    found = []
    while True:
        try:
            found.append(manager.recv(4096).decode())
        except BlockingIOError:
            return found


def test_a_start_is_told_once_and_with_a_line(manager: socket.socket) -> None:
    service = Service(environ(manager), pid=1)
    service.status("loading")
    service.ready("drafts")
    service.stopping()
    assert heard(manager) == [
        "STATUS=loading",
        "READY=1\nSTATUS=drafts",
        "STOPPING=1\nSTATUS=stopping",
    ]


def test_an_abstract_address_is_reached_too() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"dspark-test-{os.getpid()}"
        sock.bind("\0" + name)
        Service({"NOTIFY_SOCKET": "@" + name}, pid=1).status("here")
        assert heard(sock) == ["STATUS=here"]


@pytest.mark.parametrize("given", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}])
def test_without_a_manager_every_word_is_lost_and_nothing_fails(given: dict[str, str]) -> None:
    service = Service(given, pid=1)
    with service.starting():
        service.more_time()
    service.ready("drafts")
    service.alive(0.0)
    service.stopping()


def test_the_loop_beats_twice_per_watchdog_however_often_it_comes_around(
    manager: socket.socket,
) -> None:
    service = Service(environ(manager, WATCHDOG_USEC="10000000", WATCHDOG_PID="7"), pid=7)
    assert service.beat_every_s == 5.0
    for tenth in range(201):
        service.alive(100 + tenth / 10)
    assert heard(manager) == ["WATCHDOG=1"] * 5


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "8"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "me"},
    ],
)
def test_a_watchdog_that_is_not_ours_is_not_fed(
    manager: socket.socket, given: dict[str, str]
) -> None:
    service = Service(environ(manager, **given), pid=7)
    assert service.beat_every_s is None
    service.alive(0.0)
    assert heard(manager) == []


@pytest.mark.parametrize(("step_s", "more"), [(0.5, 3), (0.0, 1)])
def test_a_start_gets_more_time_only_while_it_computes(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch, step_s: float, more: int
) -> None:
    """The first look grants a minute by itself; one that stands still gets no second."""
    monkeypatch.setattr(service_module, "_LOOK_EVERY_S", 0.001)
    n_looks, seen = 0, threading.Event()

    def cpu_s() -> float:
        nonlocal n_looks
        n_looks += 1
        if n_looks == 4:
            seen.set()
        return min(n_looks, 3) * step_s

    with Service(environ(manager), pid=1, cpu_s=cpu_s).starting():
        assert seen.wait(5)
    assert heard(manager) == ["EXTEND_TIMEOUT_USEC=60000000"] * more


def test_the_manager_is_not_handed_on_to_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert Service.of_this_process().beat_every_s == 1.0
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)
