"""libfabric for these tests: the shim is built once; where it cannot be, each says so, skipped."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dspark_worker.fabric_listener import FabricConnection, FabricListener
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import MAX_MESSAGE_BYTES
from dsparkctl.net.fabric import library
from dsparkctl.net.fabric.build import BuildError, build

ANYWHERE = Endpoint("o1tcp", "127.0.0.1", 0)


@pytest.fixture(scope="session", autouse=True)
def shim() -> None:
    try:
        library.load()
    except library.Missing:
        try:
            build()
            library.load.cache_clear()
            library.load()
        except (BuildError, library.Missing) as error:
            pytest.skip(f"no libfabric: {error}")


Serve = Callable[[FabricListener, "Bench"], None]


class Bench:
    """A listener whose own thread does what a test says, and what it saw."""

    def __init__(self, serve: Serve) -> None:
        self.listener = FabricListener(ANYWHERE, time.perf_counter)
        self.listener.prepare(MAX_MESSAGE_BYTES)
        self.endpoint = self.listener.listen()
        self.seen: list[Any] = []
        self.is_over = threading.Event()
        self.go = threading.Event()
        self.deaf = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(serve,))
        self._thread.start()

    def _run(self, serve: Serve) -> None:
        serve(self.listener, self)

    def admitted(self) -> FabricConnection:
        """The next one that knocks."""
        while not self.listener.knocked():
            assert not self.is_over.is_set()
            time.sleep(1e-3)
        link = self.listener.admit()
        assert link is not None
        return link

    def received(self, link: FabricConnection) -> bytes:
        while not link.receive():
            assert not self.is_over.is_set()
            time.sleep(1e-4)
        return bytes(link.whole())

    def close(self) -> None:
        self.is_over.set()
        self.go.set()
        self.deaf.set()
        self._thread.join(10)
        self.listener.close()


@pytest.fixture
def bench() -> Iterator[Callable[[Serve], Bench]]:
    opened: list[Bench] = []

    def open_one(serve: Serve) -> Bench:
        opened.append(Bench(serve))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
