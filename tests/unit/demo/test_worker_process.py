"""The demo's child: awaited, explained when it dies, and never left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.demo import worker_process as module
from dsparkctl.demo.worker_process import WorkerDied, worker_process
from dsparkctl.net.transport import Broken

READY = """print('{"event":"ready","listen":"tcp://127.0.0.1:1234"}', flush=True)"""
SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def child(tmp_path: Path) -> Path:
    """A file into which the stand-in for the worker writes its pid; `script` says what it does."""
    return tmp_path / "pid"


def script(monkeypatch: pytest.MonkeyPatch, pid_file: Path, *lines: str) -> None:
    first = f"import os, pathlib, sys; pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))"
    command = [sys.executable, "-c", "\n".join([first, *lines])]
    monkeypatch.setattr(module, "_command", lambda *_: command)


def is_gone(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def runs(pid: int) -> bool:
    """Also False for a dead process whose new parent has not asked for it yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_the_listener_of_the_ready_line_and_the_child_ends_with_the_block(
    child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, child, READY, SLEEP)
    with worker_process(Path(), None) as worker:
        assert worker.endpoint == Endpoint("tcp", "127.0.0.1", 1234)
        assert not is_gone(child)
    assert is_gone(child)


def test_a_killed_worker_starts_again_on_its_port_and_ends_with_the_block(
    child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--show-outage`: the client knows one endpoint."""
    ports: list[int] = []

    def command(_checkpoint: Path, _receipt: Path | None, listen: Endpoint) -> list[str]:
        ports.append(listen.port)
        say = f"import os, pathlib; pathlib.Path({str(child)!r}).write_text(str(os.getpid()))"
        return [sys.executable, "-c", "\n".join([say, READY, SLEEP])]

    monkeypatch.setattr(module, "_command", command)
    with worker_process(Path(), None) as worker:
        worker.kill()
        assert is_gone(child)
        child.unlink()
        worker.start()
        while not (child.exists() and child.read_text()):
            time.sleep(0.02)
        assert not is_gone(child)
    assert is_gone(child)
    assert ports == [0, 1234]


def test_something_else_can_be_done_while_it_gets_ready(
    child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two imports of torch on two cores."""
    go = child.with_name("go")
    wait = f"import time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)"
    script(monkeypatch, child, wait, READY, SLEEP)
    with worker_process(Path(), None, ready_s=20, meanwhile=go.touch) as worker:
        assert worker.endpoint.port == 1234


def test_a_child_that_dies_is_told_with_its_code_and_its_last_lines(
    child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "\n".join(f"line {i}" for i in range(100))
    script(monkeypatch, child, f"sys.stderr.write({words!r})", "sys.exit(7)")
    with pytest.raises(WorkerDied, match="did not start: it ended with exit code 7") as caught:
        worker_process(Path(), None).__enter__()
    assert caught.value.last_lines == [f"line {i}" for i in range(90, 100)]


def test_a_child_that_says_nothing_is_given_up_in_time(
    child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, child, "sys.stdout.write('half a line')", "sys.stdout.flush()", SLEEP)
    began_s = time.monotonic()
    with (
        pytest.raises(WorkerDied, match=r"not ready after 0\.5 s"),
        worker_process(Path(), None, ready_s=0.5),
    ):
        raise AssertionError("it was never ready")
    assert time.monotonic() - began_s < 10
    assert is_gone(child)


@pytest.mark.parametrize("line", ["no JSON", "[]", "{}", '{"listen": 5}', '{"listen": "nowhere"}'])
def test_a_strange_ready_line_is_one_line(
    child: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    script(monkeypatch, child, f"print({line!r}, flush=True)", SLEEP)
    with (
        pytest.raises(WorkerDied, match="ready line cannot be read") as caught,
        worker_process(Path(), None),
    ):
        raise AssertionError("it was never ready")
    assert "\n" not in str(caught.value)
    assert is_gone(child)


def test_a_link_that_broke_because_the_child_died_says_so(
    child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, child, READY, "sys.stderr.write('out of memory')", "os.abort()")
    with (
        pytest.raises(WorkerDied, match="gone: it was ended by signal 6") as caught,
        worker_process(Path(), None),
    ):
        raise Broken("gone")
    assert caught.value.last_lines == ["out of memory"]


def test_a_child_that_ignores_sigterm_is_killed(
    child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_END_S", 0.2)
    script(monkeypatch, child, "import signal; signal.signal(15, signal.SIG_IGN)", READY, SLEEP)
    began_s = time.monotonic()
    with worker_process(Path(), None):
        pass
    assert is_gone(child)
    assert time.monotonic() - began_s < 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unwinds_the_block_and_ends_the_child(
    child: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    script(monkeypatch, child, READY, SLEEP)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), worker_process(Path(), None):
            signal.raise_signal(number)
        assert is_gone(child)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_hangup_that_nohup_ignores_stays_ignored(
    child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, child, READY, SLEEP)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with worker_process(Path(), None):
            signal.raise_signal(signal.SIGHUP)
            assert not is_gone(child)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_demo_that_is_killed_leaves_no_worker(child: Path) -> None:
    """Nothing of ours runs after SIGKILL: the kernel ends the child."""
    worker = (
        f"import os, pathlib; pathlib.Path({str(child)!r}).write_text(str(os.getpid()))"
        f"\n{READY}\n{SLEEP}"
    )
    demo = (
        "import sys, time; from pathlib import Path;"
        "from dsparkctl.demo import worker_process as module;"
        f"module._command = lambda *_: [sys.executable, '-c', {worker!r}];"
        "held = module.worker_process(Path(), None); held.__enter__();"
        "print('ready', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", demo], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert runs(int(child.read_text()))
        process.kill()
    end_s = time.monotonic() + 10
    while runs(int(child.read_text())):
        assert time.monotonic() < end_s, "the worker outlived the demo"
        time.sleep(0.05)


def test_a_signal_while_the_child_starts_does_not_leave_it_behind(
    child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, child, READY, SLEEP)
    start = subprocess.Popen

    def popen(*args: Any, **options: Any) -> Any:
        started = start(*args, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)  # until the child has written its pid
        return started

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(KeyboardInterrupt), worker_process(Path(), None):
        raise AssertionError("it was interrupted before")
    assert is_gone(child)
