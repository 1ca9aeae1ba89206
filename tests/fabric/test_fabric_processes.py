"""Real processes over `o1tcp://` (§5): the demo, conformance, killed and stopped peers, leaks."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsparkctl.contract.codes import Op
from dsparkctl.contract.endpoint import parse_endpoint
from dsparkctl.contract.messages import frame
from dsparkctl.demo.terms import EMBEDDED
from dsparkctl.exits import Exit
from dsparkctl.net.dial import dial, dialler
from dsparkctl.net.fabric.build import HERE
from dsparkctl.net.transport import Broken, Deadline, TimedOut
from tests.e2e.demo_runs import demo_process, report_of
from tests.e2e.running import running_worker
from tests.e2e.test_operator_commands import command

O1 = ("--listen", "o1tcp://127.0.0.1:0")
PING = frame(Op.PING, 1, 0)
SMALL = ("--requests", "3", "--tokens", "24", "--json")


def test_the_demo_drafts_over_o1tcp_and_every_output_is_the_targets() -> None:
    done = demo_process("--transport", "o1tcp", *SMALL)
    assert done.returncode == 0, done.stderr
    found = report_of(done.stdout)
    assert found["outputs_match_reference"]
    assert found["connections"] == 1
    assert found["tokens_per_step"] > 2.5


def test_a_worker_that_is_killed_and_comes_back_is_found_again_over_o1tcp() -> None:
    """§7.5: the same session, and every live slot resyncs."""
    done = demo_process("--transport", "o1tcp", "--show-outage", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = report_of(done.stdout)
    assert found["outputs_match_reference"]
    assert found["connections"] >= 2
    assert found["resyncs"] >= 1


def test_our_worker_conforms_over_o1tcp() -> None:
    """What only a stream can do wrong is skipped, and said."""
    with running_worker("--receipt", str(EMBEDDED / "DSPARK_COPY_DONE"), *O1,
                        checkpoint=EMBEDDED) as worker:  # fmt: skip
        done = command("conform", worker.data, "--checkpoint", EMBEDDED, "--yes",
                       "--rounds", "150", "--fuzz", "300")  # fmt: skip
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    assert (
        "SKIP  §5            messages in pieces: this carrier keeps messages apart" in done.stdout
    )
    assert len(re.findall("^PASS", done.stdout, re.MULTILINE)) > 100


def test_a_worker_that_is_killed_breaks_the_link_at_once() -> None:
    with running_worker("--drafter", "scripted", *O1) as worker:
        link = dial(worker.data, Deadline(5))
        link.exchange((PING,), Deadline(5))
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        with pytest.raises(Broken, match=r"closed the connection|connection was lost"):
            link.exchange((PING,), Deadline(5))
        with pytest.raises(Broken, match="nobody listens there"):
            dial(worker.data, Deadline(5))


def test_a_worker_that_is_stopped_costs_one_deadline_and_serves_on_when_it_goes_on() -> None:
    with running_worker("--drafter", "scripted", *O1) as worker:
        dial_again = dialler(worker.data)
        link = dial_again(Deadline(5))
        link.exchange((PING,), Deadline(5))
        os.kill(worker.process.pid, signal.SIGSTOP)
        began_at = time.monotonic()
        with pytest.raises(TimedOut):
            link.exchange((PING, bytes(0)), Deadline(0.05))
        with pytest.raises(TimedOut):
            dial_again(Deadline(0.25))
        assert time.monotonic() - began_at < 2
        os.kill(worker.process.pid, signal.SIGCONT)
        with contextlib.closing(dial_again(Deadline(5))) as link:
            assert link.exchange((PING,), Deadline(5))[:32] == PING


def test_an_engine_that_is_killed_in_the_middle_of_a_request_takes_no_worker_along() -> None:
    sender = (
        "import os, sys; from dsparkctl.net.dial import dial;"
        "from dsparkctl.contract.endpoint import parse_endpoint;"
        "from dsparkctl.net.transport import Deadline;"
        "from dsparkctl.contract.messages import frame;"
        "import threading, time;"
        "link = dial(parse_endpoint(sys.argv[1]), Deadline(5));"
        "threading.Timer(0.3, os._exit, (9,)).start();"
        "message = frame(5, 1, 0, bytes(15 << 20))\n"
        "while True: link.exchange((message,), Deadline(5))"
    )
    with running_worker("--drafter", "scripted", *O1) as worker:
        before = worker.n_descriptors()
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, "-c", sender, str(worker.data)],
                check=False, capture_output=True, timeout=60,
            )  # fmt: skip
            assert done.returncode == 9, done.stderr
        with contextlib.closing(dial(worker.data, Deadline(5))) as link:
            link.exchange((PING,), Deadline(5))
        end_s = time.monotonic() + 10
        while worker.n_descriptors() > before and time.monotonic() < end_s:
            time.sleep(0.1)
        assert worker.n_descriptors() <= before


def test_reconnects_leak_neither_descriptors_nor_memory_on_either_side() -> None:
    def rss(pid: int) -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    pid = os.getpid()
    with running_worker("--drafter", "scripted", *O1) as worker:
        dial_again = dialler(worker.data)

        def reconnect(n: int) -> tuple[int, int, int, int]:
            for _ in range(n):
                with contextlib.closing(dial_again(Deadline(5))) as link:
                    link.exchange((PING,), Deadline(5))
            time.sleep(0.2)
            ours = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            return ours, worker.n_descriptors(), rss(pid), rss(worker.process.pid)

        before, after = reconnect(200), reconnect(800)
    assert after[0] <= before[0]
    assert after[1] <= before[1]
    assert after[2] - before[2] < 4 << 20
    assert after[3] - before[3] < 4 << 20


def test_the_shim_has_no_memory_error_and_no_leak_under_sanitizers(tmp_path: Path) -> None:
    """Issue 7: 10,000 reconnects were run once, under both; here 300."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    program, source = tmp_path / "reconnects", Path(__file__).with_name("reconnects.c")
    flags = ("-std=gnu11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g")
    built = subprocess.run(
        ["cc", *flags, f"-I{HERE}", str(source), str(HERE / "shim.c"), "-lfabric", "-lpthread",
         "-o", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "cannot find" in built.stderr and "asan" in built.stderr:
        pytest.skip("no libasan")
    assert not built.returncode, built.stderr
    done = subprocess.run(
        [program, "300"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == (
        "300 connections, 3 timed out, 3 given up by the listener, 3 turned away\n"
    ), done.stderr
    assert not done.returncode


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("probe", "o1rdma://127.0.0.1:1"), "no RDMA device: libfabric's provider verbs"),
        (("conform", "o1tcp://127.0.0.1:1", "--checkpoint", EMBEDDED, "--yes", "--via", "h"),
         "--via: only for tcp://"),
        (("demo", "--transport", "o1tcp", "--endpoint", "tcp://127.0.0.1:1"),
         "--transport: not with"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line_and_exit_2(words: tuple[object, ...], said: str) -> None:
    done = command(*words)
    assert done.returncode == Exit.USAGE
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_endpoint_of_a_worker_that_is_asked_for_any_port_is_its_ready_line() -> None:
    with running_worker("--drafter", "scripted", *O1) as worker:
        assert worker.data.scheme == "o1tcp"
        assert worker.data.port
        assert parse_endpoint(str(worker.data)) == worker.data


@pytest.mark.parametrize(
    ("number", "ends_with"), [(signal.SIGINT, 7), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_libfabric_takes_no_signal_from_the_process(number: signal.Signals, ends_with: int) -> None:
    """Debian's brings libpsm2, which takes them as it is loaded, and ends the process with 1."""
    program = f"""
import os, time
from dsparkctl.net.fabric.library import load
load()
try:
    os.kill(os.getpid(), {int(number)})
    time.sleep(5)
except KeyboardInterrupt:
    raise SystemExit(7)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == ends_with


def test_a_client_in_a_reference_cycle_is_collected() -> None:
    """CPython before 3.11.8 and 3.12.2 crashes on a view in a cycle whose buffer is held
    (gh-77894)."""
    program = """
import gc
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.fabric.link import _Side
for _ in range(20):
    side = _Side(Endpoint("o1tcp", "127.0.0.1", 9), memoryview(bytearray(4096)))
    side.cycle = side, dict(side.__dict__)
    del side
    gc.collect()
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
