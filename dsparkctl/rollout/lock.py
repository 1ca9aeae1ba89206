"""One deploy at a time on a host: a lease that is kept alive while we work (`on_host/lock.py`).

Decides how long to wait for somebody else's, and when our own is lost: somebody took it, or nobody
could touch it for as long as it lasts. A host that is out of reach is an SshError, never "locked".
"""

import getpass
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from dsparkctl.rollout.host import Host, HostError
from dsparkctl.rollout.layout import Layout
from dsparkctl.rollout.programs import ask

_LOOK_EVERY_S: Final = 2.0
_LOOK: Final = "nothing more was done; look at dsparkctl status and history"


class Locked(HostError):  # noqa: N818 -- what it is
    """Somebody else holds the lock (exit code 7)."""


class LockLost(Locked):
    """Our lease ran out and somebody else may have it: nothing more is done (exit code 7)."""


class Holder(NamedTuple):
    """Who holds a lock, and since when it was not touched."""

    owner: str
    age_s: float


def who() -> str:
    """This person on this machine, for lock and history."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def holder(host: Host, layout: Layout) -> Holder | None:
    """Whose the lock is now."""
    said = _verb(host, layout, "look", token="")
    return None if said["age_s"] is None else Holder(str(said["owner"]), float(said["age_s"]))


def release(host: Host, layout: Layout) -> Holder | None:
    """Take the lock away from whoever holds it; who that was."""
    found = holder(host, layout)
    _verb(host, layout, "break", token="")
    return found


class Lease:
    """A lock of ours, touched four times in its length by a thread of its own."""

    def __init__(self, host: Host, layout: Layout, token: str, lease_s: float) -> None:
        self._host, self._layout, self._token, self._lease_s = host, layout, token, lease_s
        self._touched_s = time.monotonic()
        self._taken_by: str | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """LockLost when somebody else may be at work by now."""
        if self._taken_by is not None:
            by = f"{self._taken_by} has it" if self._taken_by else "somebody took it away"
            raise LockLost(f"{self._host.name}: the lock is not ours any more: {by}; {_LOOK}")
        if time.monotonic() - self._touched_s > self._lease_s:
            raise LockLost(
                f"{self._host.name}: the lock could not be touched for {self._lease_s:g} s and has "
                f"run out; {_LOOK}"
            )

    def end(self) -> None:
        """Give it up. HostError when the host does not say that it is free."""
        self._done.set()
        self._thread.join()
        _verb(self._host, self._layout, "drop", token=self._token)

    def _keep(self) -> None:
        while not self._done.wait(self._lease_s / 4):
            before_s = time.monotonic()
            try:
                said = _verb(self._host, self._layout, "touch", token=self._token)
            except HostError:  # how long that may go on is the lease's to say
                continue
            if not said["held"]:
                self._taken_by = str(said["owner"] or "")
                return
            self._touched_s = before_s


@contextmanager
def held(
    host: Host,
    layout: Layout,
    *,
    command: str,
    lease_s: float,
    wait_s: float,
    say: Callable[[str], None],
) -> Iterator[Lease]:
    """Ours while the block runs; Locked when it is not free within `wait_s`."""
    token, owner = secrets.token_hex(8), f"{who()}: {command}"
    end_s = time.monotonic() + wait_s
    has_waited = False
    while True:
        said = _verb(host, layout, "take", token=token, owner=owner, lease_s=lease_s)
        if said["held"]:
            break
        whose = f"{said['owner']}, touched {float(said['age_s'] or 0):.0f} s ago"
        if time.monotonic() >= end_s:
            raise Locked(
                f"{host.name}: locked by {whose}; wait with --lock-wait S, or look with dsparkctl "
                f"lock status (untouched for {lease_s:g} s it is free)"
            )
        if not has_waited:
            say(f"{host.name}: waiting up to {wait_s:g} s for the lock of {whose}")
            has_waited = True
        time.sleep(min(_LOOK_EVERY_S, max(0.0, end_s - time.monotonic())))
    lease = Lease(host, layout, token, lease_s)
    try:
        yield lease
    finally:
        try:
            lease.end()
        except HostError as error:
            say(f"{host.name}: its lock could not be freed ({error}); it ends in {lease_s:g} s")


def _verb(host: Host, layout: Layout, verb: str, *, token: str, **more: Any) -> dict[str, Any]:
    asked = {"verb": verb, "path": str(layout.lock), "token": token, "owner": "", "lease_s": 0.0}
    return ask(host, "lock", asked | more, as_root=True)
