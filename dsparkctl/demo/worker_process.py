"""A real worker of this installation as a child: started, awaited, and ended whatever happens.

Decides how long it may take to become ready, and what is known of one that dies. Refuses to import
it: this process needs no torch.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from dsparkctl.contract.endpoint import Endpoint, EndpointError, parse_endpoint
from dsparkctl.net.transport import TransportError

READY_S: Final = 120.0
"""A cold disk and a first import of torch may take most of a minute."""

_ANYWHERE: Final = Endpoint("tcp", "127.0.0.1", 0)
_END_S: Final = 5.0
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG: Final = 1
_MAX_LINE_BYTES: Final = 1 << 16
_TAIL_BYTES: Final = 4096
_TAIL_LINES: Final = 10


class WorkerDied(Exception):  # noqa: N818 -- what happened
    """It ended, or never became ready; one line, and the last of what it said on stderr."""

    def __init__(self, reason: str, last_lines: list[str]) -> None:
        super().__init__(reason)
        self.last_lines = last_lines


class Worker:
    """The child, while the block of `worker_process` runs."""

    def __init__(
        self, checkpoint: Path, receipt: Path | None, log: IO[bytes], transport: str
    ) -> None:
        self.endpoint = replace(_ANYWHERE, scheme=transport)
        """Its data listener, once it is ready."""
        self.process: subprocess.Popen[bytes] | None = None
        self._checkpoint = checkpoint
        self._receipt = receipt
        self._log = log

    def start(self) -> subprocess.Popen[bytes]:
        """On the same port as before, if there was one; nobody waits until it is ready."""
        self.process = subprocess.Popen(
            _command(self._checkpoint, self._receipt, self.endpoint),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=_end_with_us(),
        )
        return self.process

    def kill(self) -> None:
        """Without a chance to say goodbye."""
        if self.process is not None:
            self.process.kill()
            _end(self.process)


@contextmanager
def worker_process(
    checkpoint: Path,
    receipt: Path | None,
    *,
    transport: str = "tcp",
    ready_s: float = READY_S,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[Worker]:
    """A worker on free loopback ports, alive while the block runs; `meanwhile` is called while it
    gets ready.

    WorkerDied when it does not become ready, or when a link broke because it ended meanwhile.
    """
    with TemporaryFile() as log, _interruptible() as allow_interrupts:
        worker = Worker(checkpoint, receipt, log, transport)
        try:
            process = worker.start()
            allow_interrupts()
            meanwhile()
            worker.endpoint = _listener(process, log, ready_s)
            yield worker
        except TransportError as error:
            if worker.process is not None and _wait(worker.process, 0.5):
                raise WorkerDied(f"{error}: {_end_of(worker.process)}", _tail(log)) from None
            raise
        finally:
            if worker.process is not None:
                _end(worker.process)


def _command(checkpoint: Path, receipt: Path | None, listen: Endpoint) -> list[str]:
    """`-P` keeps the folder we are called from out of its import path."""
    proof = ["--identity-from-files"] if receipt is None else ["--receipt", str(receipt)]
    listeners = ["--listen", str(listen), "--admin", str(_ANYWHERE)]
    worker = [sys.executable, "-P", "-m", "dspark_worker", "serve", "--json"]
    return [*worker, "--checkpoint", str(checkpoint), *proof, *listeners]


def _end_with_us() -> Callable[[], None]:
    """What makes the child get SIGKILL when we end without a chance to end it; it may be stopped.

    All is looked up here: between fork and exec the child does two system calls and no more.
    Linux means the thread that starts the child, so that thread has to outlive the block.
    """
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()
    prctl.argtypes = (ctypes.c_int, ctypes.c_ulong)
    number = int(signal.SIGKILL)

    def promise() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # we ended before the promise
            os._exit(1)

    return promise


def _listener(process: subprocess.Popen[bytes], log: IO[bytes], ready_s: float) -> Endpoint:
    line = _first_line(process, log, ready_s)
    try:
        said = json.loads(line)
        return parse_endpoint(said["listen"])
    except (ValueError, KeyError, TypeError, EndpointError):
        reason = f"the worker's ready line cannot be read: {line[:80]!a}"
        raise WorkerDied(reason, _tail(log)) from None


def _first_line(process: subprocess.Popen[bytes], log: IO[bytes], ready_s: float) -> bytes:
    assert process.stdout is not None
    end_s = time.monotonic() + ready_s
    line = b""
    while b"\n" not in line and len(line) < _MAX_LINE_BYTES:
        left_s = end_s - time.monotonic()
        if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
            raise WorkerDied(f"the worker is not ready after {ready_s:g} s", _tail(log))
        data = process.stdout.read1(4096)  # type: ignore[attr-defined]
        if not data:
            _wait(process, _END_S)
            raise WorkerDied(f"the worker did not start: {_end_of(process)}", _tail(log))
        line += data
    return line


def _end_of(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is None:
        return "it closed its stdout"
    return f"it ended with exit code {code}" if code >= 0 else f"it was ended by signal {-code}"


def _tail(log: IO[bytes]) -> list[str]:
    size = log.seek(0, 2)
    log.seek(max(0, size - _TAIL_BYTES))
    return log.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Politely, then not; nobody is left behind, also when the wait is interrupted."""
    try:
        process.terminate()
        if not _wait(process, _END_S):
            process.kill()
    except BaseException:
        process.kill()
        raise
    finally:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Inside, SIGTERM and SIGHUP unwind like Ctrl-C, but not before the block calls what it gets.

    A signal while the child starts, before its pid is known, would leave it behind. A SIGHUP that
    is ignored (`nohup`) stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    caught: list[int] = []
    is_allowed = False

    def interrupt(number: int, _frame: Any) -> None:
        caught.append(number)
        if is_allowed:
            raise KeyboardInterrupt

    def allow() -> None:
        nonlocal is_allowed
        is_allowed = True
        if caught:
            raise KeyboardInterrupt

    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    before = {
        number: signal.signal(number, interrupt)
        for number in _INTERRUPTS
        if not (is_nohup and number is signal.SIGHUP)
    }
    try:
        yield allow
    finally:
        for number, action in before.items():
            signal.signal(number, action)
