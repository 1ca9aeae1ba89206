"""One sshd for the tests of a module, and a host on it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.rollout.ssh.config import route_to
from dsparkctl.rollout.ssh.machine import SshHost
from tests.sshd import MISSING, SSHD, Sshd, running_sshd

Opener = Callable[..., SshHost]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if SSHD is None:
        pytest.skip(MISSING)
    with running_sshd(tmp_path_factory.mktemp("sshd") / "it") as server:
        yield server


def nobody(name: str) -> str:
    raise AssertionError(f"a password was asked for: {name}")


@pytest.fixture
def opened(sshd: Sshd) -> Iterator[Opener]:
    """Makes hosts that are closed at the end; the target is `box` by itself."""
    with ExitStack() as closing:

        def make(target: str = "box", *, file: Path | None = None, **given: Any) -> SshHost:
            route = route_to(target, file=file or sshd.config)
            host = SshHost(target, route, **({"ask_password": nobody} | given))
            closing.callback(host.close)
            return host

        yield make


@pytest.fixture
def box(opened: Opener) -> SshHost:
    return opened()
