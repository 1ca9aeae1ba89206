"""A forwarded port whose SSH connection is gone (issue 5 §3)."""

import contextlib
import threading
from typing import NoReturn

import pytest

from dsparkctl.rollout.ssh.forward import socket_of


class LostChannel:
    """As paramiko's is once its transport has ended: every call raises, `close` as well."""

    closed = True

    def settimeout(self, _seconds: float | None) -> None:
        pass

    def _lost(self, *_args: object) -> NoReturn:
        raise EOFError

    recv = sendall = shutdown_write = close = _lost


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("said", [b"", b"asked"])
def test_a_connection_that_was_cut_is_an_end_of_stream_and_no_threads_exception(
    said: bytes,
) -> None:
    before = set(threading.enumerate())
    near = socket_of(LostChannel())
    near.settimeout(10)
    with contextlib.suppress(BrokenPipeError):  # the end was there first
        near.sendall(said)
    assert near.recv(1) == b""
    near.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
