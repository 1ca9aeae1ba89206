"""One deploy at a time on a host: a lease that is kept alive while we work (`on_host/lock.py`).

Decides how long to wait for somebody else's, and that losing our own is said. A host that cannot be
reached is an SshError, never "locked".
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


class Locked(HostError):  # noqa: N818 -- what it is
    """Somebody else holds the lock (exit code 7)."""


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


@contextmanager
def held(
    host: Host,
    layout: Layout,
    *,
    command: str,
    lease_s: float,
    wait_s: float,
    say: Callable[[str], None],
) -> Iterator[None]:
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
    done = threading.Event()
    toucher = threading.Thread(
        target=_touch, args=(host, layout, token, lease_s / 4, done), daemon=True
    )
    toucher.start()
    try:
        yield
    finally:
        done.set()
        toucher.join()
        try:
            _verb(host, layout, "drop", token=token)
        except HostError as error:
            say(f"{host.name}: its lock could not be freed ({error}); it ends in {lease_s:g} s")


def _touch(host: Host, layout: Layout, token: str, every_s: float, done: threading.Event) -> None:
    while not done.wait(every_s):
        try:
            _verb(host, layout, "touch", token=token)
        except HostError:  # whoever works meanwhile finds out too, and says it
            continue


def _verb(host: Host, layout: Layout, verb: str, *, token: str, **more: Any) -> dict[str, Any]:
    asked = {"verb": verb, "path": str(layout.lock), "token": token, "owner": "", "lease_s": 0.0}
    return ask(host, "lock", asked | more, as_root=True)
