"""What a service manager is told: more time, ready, alive, stopping (sd_notify(3), Type=notify).

Decides when a word is due. Refuses to know what the worker does meanwhile: a start deserves more
time while the process computes, and the loop is alive because it says so itself, once around.
Without `$NOTIFY_SOCKET` nobody listens, and every verb does nothing.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

_LOOK_EVERY_S: Final = 5.0
_MORE_TIME_S: Final = 60.0
"""A start that stands still for so long is over."""
_WORKING_S: Final = 0.01
"""Processor seconds between two looks below which a start stands still; looking costs less."""


class Service:
    """The service manager of this process, if there is one."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        pid: int,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._cpu_s = cpu_s
        self._beat_at = float("-inf")
        self.beat_every_s = _half_of_the_watchdogs(environ, pid) if address else None
        """How often the loop must come around, in seconds; None when no watchdog waits."""

    @classmethod
    def of_this_process(cls) -> "Service":
        """The one that the environment names; it is not handed on to child processes."""
        service = cls(os.environ, pid=os.getpid())
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            os.environ.pop(name, None)
        return service

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._tell(f"STATUS={text}")

    def ready(self, text: str) -> None:
        """The start is over, and went well."""
        self._tell(f"READY=1\nSTATUS={text}")

    def stopping(self) -> None:
        """The end has begun, on purpose."""
        self._tell("STOPPING=1\nSTATUS=stopping")

    def alive(self, now: float) -> None:
        """The loop came around; `now` is in seconds on the loop's clock."""
        if self.beat_every_s is not None and now - self._beat_at >= self.beat_every_s:
            self._beat_at = now
            self._tell("WATCHDOG=1")

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Inside, the start's timeout is moved on for as long as this process computes."""
        if not self._address:
            yield
            return
        done = threading.Event()
        looking = threading.Thread(target=self._move_on, args=(done,), daemon=True)
        looking.start()
        try:
            yield
        finally:
            done.set()
            looking.join()

    def more_time(self) -> None:
        """Ask for another minute, from now on."""
        self._tell(f"EXTEND_TIMEOUT_USEC={_MORE_TIME_S * 1e6:.0f}")

    def _move_on(self, done: threading.Event) -> None:
        seen = float("-inf")
        while not done.is_set():
            spent = self._cpu_s()
            if spent - seen >= _WORKING_S:
                self.more_time()
            seen = spent
            done.wait(_LOOK_EVERY_S)

    def _tell(self, text: str) -> None:
        """A manager that does not hear is no reason to stop drafting."""
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock,
        ):
            sock.sendto(text.encode(), self._address)


def _half_of_the_watchdogs(environ: Mapping[str, str], pid: int) -> float | None:
    """sd_watchdog_enabled(3): beat twice as often as is asked; None when not we are meant."""
    try:
        usec = int(environ.get("WATCHDOG_USEC", "0"))
        meant = int(environ.get("WATCHDOG_PID", pid))
    except ValueError:
        return None
    return usec / 2e6 if usec > 0 and meant == pid else None
