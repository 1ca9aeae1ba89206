"""A serving worker's life: ready line, STATS, logs, signals, and a stderr that nobody reads."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dsparkctl import CONTRACT_VERSION, __version__
from dsparkctl.contract.codes import FrameStatus, Op
from dsparkctl.contract.endpoint import parse_endpoint
from dsparkctl.contract.framing import prefix
from dsparkctl.contract.messages import frame, step_head
from dsparkctl.contract.records import ReqEntry
from tests.e2e.running import GOLDEN, WAIT_S, Client, Worker, command, running_worker

SCRIPTED = ("--drafter", "scripted")


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts scripted workers that do not outlive the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(*flags: str, stderr: int = subprocess.PIPE, before: Sequence[str] = ()) -> Any:
        given = command("--checkpoint", str(GOLDEN), "--identity-from-files", *SCRIPTED, *flags)
        processes.append(
            subprocess.Popen([*before, *given], stdout=subprocess.PIPE, stderr=stderr, text=True)
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def ready_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()
    found: dict[str, Any] = json.loads(line)
    return found


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("tcp://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with running_worker(*SCRIPTED) as worker:
        yield worker


# --- the ready line -------------------------------------------------------------------------------


def test_the_ready_line_begins_with_the_keys_that_other_tools_read(worker: Worker) -> None:
    assert list(worker.ready)[:6] == [
        *("event", "listen", "admin", "drafter_identity", "markov_identity", "pid")
    ]
    assert worker.ready["event"] == "ready"
    assert worker.ready["pid"] == worker.process.pid
    assert re.fullmatch("[0-9a-f]{64}", worker.ready["drafter_identity"])
    assert worker.ready["markov_identity"] == "0" * 64
    assert worker.ready["kv_quant"] == "none"


def test_port_0_is_a_free_port_of_its_own(worker: Worker) -> None:
    assert worker.data.host == worker.admin.host == "127.0.0.1"
    assert 0 not in (worker.data.port, worker.admin.port)
    assert worker.data.port != worker.admin.port
    assert str(worker.data).startswith("tcp://127.0.0.1:")


def test_the_text_ready_line_is_one_line_on_stdout_and_says_what_was_chosen() -> None:
    given = [flag for flag in command("--checkpoint", str(GOLDEN)) if flag != "--json"]
    process = subprocess.Popen(
        [*given, "--identity-from-files", "--kv-quant", "auto"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert re.fullmatch(
        r"ready: tcp://127\.0\.0\.1:\d+, admin tcp://127\.0\.0\.1:\d+, torch on cpu in float32, "
        r"kv_quant none, drafter [0-9a-f]{64}, markov 0{64}, pid \d+\n",
        line,
    )
    process.send_signal(signal.SIGTERM)
    assert ended(process)[:2] == (0, "")


def test_several_admin_listeners_all_answer(tmp_path: Path) -> None:
    markov = tmp_path / "markov_top_tokens.json"
    markov.write_bytes(b"{}")
    with running_worker(
        *SCRIPTED, "--admin", "tcp://127.0.0.1:0", "tcp://[::1]:0", "--markov", str(markov)
    ) as worker:
        assert len(worker.ready["admin"]) == 3
        for url in worker.ready["admin"]:
            host, port = url.removeprefix("tcp://").rsplit(":", 1)
            with socket.create_connection((host.strip("[]"), int(port)), timeout=WAIT_S) as sock:
                sock.sendall(prefix(32) + frame(Op.PING, 1, 0))
                assert len(sock.recv(36)) == 36
        assert worker.ready["markov_identity"].startswith("44136fa355b3678a")  # sha256 of {}
        with Client(worker.data) as client:  # §6.2: a client without the cache is refused
            assert client.hello(worker.own).status == FrameStatus.IDENTITY_MISMATCH


# --- STATS ----------------------------------------------------------------------------------------

INT, NUMBER, TEXT = "int", "number", "text"
COUNTS, PER_POSITION, SLOTS_KEY = "counts by status", "a number a position", "a row a slot"

STATS_KEYS = {
    **dict.fromkeys(
        (
            *("steps", "rows", "drafted_requests", "partial_windows", "stale_generation"),
            *("bad_entries", "internal_entries", "resyncs", "hellos", "resets", "pings"),
            *("connections", "admin_connections", "framing_lost", "session", "last_seq"),
            *("gpu_mem_bytes", "markov_cache_rows", "markov_cache_bytes", "rss_bytes", "pid"),
        ),
        INT,
    ),
    **dict.fromkeys(
        (
            *(f"{part}_us_p{p}" for p in (50, 99) for part in ("wire", "apply", "draft")),
            *(f"{part}_us_p{p}" for p in (50, 99) for part in ("worker", "recv_to_send")),
            *("last_step_age_s", "self_test_age_s", "uptime_s"),
        ),
        NUMBER,
    ),
    **dict.fromkeys(
        (
            *("drafter_identity", "markov_identity", "backend", "device", "dtype", "kv_quant"),
            *("contract_version", "build_version"),
        ),
        TEXT,
    ),
    **dict.fromkeys(
        (
            *("accepted_hist", "verified_per_position", "accepted_per_position"),
            "acceptance_per_position",
        ),
        PER_POSITION,
    ),
    "self_test_ok": "bool",
    "weight_cache": "null",
    "frames_refused": COUNTS,
    "slots": SLOTS_KEY,
}


def kind_of(key: str, value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int() if value >= 0 and not key.endswith(("_s", "_p50", "_p99")):
            return INT
        case int() | float() if value >= 0:
            return NUMBER
        case str() if value:
            return TEXT
        case dict() if all(type(n) is int for n in value.values()):
            return COUNTS
        case [{"slot": 0, "generation": _, "lo_pos": _, "hi_pos": _}, *_]:
            return SLOTS_KEY
        case [*items] if all(type(n) in (int, float, type(None)) for n in items):
            return PER_POSITION
    return f"unexpected: {value!r}"


def test_6_5_stats_has_every_documented_key_and_type(worker: Worker) -> None:
    with Client(worker.data) as engine, Client(worker.admin) as admin:
        engine.hello(worker.own, session=3)
        for seq, (n_rows, k) in enumerate(((4, 0), (3, 5), (1, 2)), start=2):
            first = (0, 4, 7)[seq - 2]
            entry = ReqEntry(0, 2, k, 0, 1, first, n_rows, 1, first + n_rows)
            head = step_head(
                seq=seq, session=3, step_id=1, step_flags=0, row_bytes=384, entries=[entry]
            )
            assert engine.ask(head + bytes(384 * n_rows))[0].status == 0
        assert engine.ask(frame(Op.RESET, 1, 3, bytes(4)))[0].status == FrameStatus.STALE_SEQ
        stats = admin.stats()
        # R35: the same from both listeners.
        assert set(engine.stats()) == set(stats)
    assert {key: kind_of(key, value) for key, value in stats.items()} == STATS_KEYS
    assert (stats["steps"], stats["rows"], stats["drafted_requests"]) == (3, 8, 3)
    assert stats["accepted_hist"] == [1, 0, 1, 0, 0, 0]
    assert stats["verified_per_position"] == [2, 2, 1, 1, 1]
    assert stats["accepted_per_position"] == [1, 1, 0, 0, 0]
    assert stats["acceptance_per_position"] == [0.5, 0.5, 0.0, 0.0, 0.0]
    assert stats["frames_refused"] == {"STALE_SEQ": 1}
    assert (stats["contract_version"], stats["build_version"]) == (CONTRACT_VERSION, __version__)
    assert stats["self_test_ok"] is True
    assert stats["self_test_age_s"] < WAIT_S
    assert stats["last_step_age_s"] < 5
    assert stats["pid"] == worker.process.pid
    assert 10 << 20 < stats["rss_bytes"] < 1 << 30


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_sigterm_ends_with_0_and_sigint_with_130_and_sighup_does_nothing(
    start: Start, number: signal.Signals, code: int
) -> None:
    process = start()
    ready = ready_of(process)
    process.send_signal(signal.SIGHUP)
    with connect(ready["listen"]) as sock:
        sock.sendall(prefix(32) + frame(Op.PING, 1, 0))
        assert len(sock.recv(36)) == 36
        process.send_signal(number)
        assert sock.recv(1) == b""  # closed in good order
    assert ended(process)[:2] == (code, "")


def test_sigterm_in_the_middle_of_a_message_ends_the_worker_at_once(start: Start) -> None:
    process = start("--spin-us", "2000")
    ready = ready_of(process)
    with connect(ready["listen"]) as engine, connect(ready["admin"][0]) as admin:
        message = frame(Op.PING, 1, 0, bytes(1 << 20))
        engine.sendall((prefix(len(message)) + message)[: 1 << 19])
        admin.sendall(prefix(32) + b"DSP1")
        time.sleep(0.1)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 0
        assert time.monotonic() - began < 2.0


def test_sigterm_behind_a_step_lets_its_reply_out(start: Start) -> None:
    """SIGTERM finishes the round: of many STEPs each is answered in full or not at all."""
    process = start()
    ready = ready_of(process)
    with connect(ready["listen"]) as sock:
        sock.sendall((prefix(32) + frame(Op.PING, 5, 0)) * 300)
        assert len(sock.recv(36, socket.MSG_WAITALL)) == 36
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 0
        rest = b""
        try:
            while data := sock.recv(65536):
                rest += data
        except ConnectionResetError:
            pass
        assert len(rest) % 36 == 0


# --- spinning -------------------------------------------------------------------------------------


def test_a_busy_engine_of_a_spinning_worker_starves_neither_admin_nor_a_newer_connection() -> None:
    with running_worker(*SCRIPTED, "--spin-us", "200000") as worker, Client(worker.data) as engine:
        with Client(worker.admin) as admin:
            admin.send(frame(Op.PING, 1, 0))
            deadline = time.monotonic() + 2.0
            while not select.select([admin.sock], [], [], 0)[0]:
                engine.ping()  # never a pause of spin_us
                assert time.monotonic() < deadline
            assert admin.receive()[0].status == FrameStatus.OK
        with Client(worker.data) as newest:
            assert newest.ping().status == FrameStatus.OK
            assert engine.is_closed()


# --- logs -----------------------------------------------------------------------------------------


def refuse_1000_steps(url: str) -> None:
    message = frame(Op.STEP, 1, 1)
    with connect(url) as sock:
        for _ in range(10):
            sock.sendall((prefix(len(message)) + message) * 100)
            n_bytes = 100 * 36
            while n_bytes:
                n_bytes -= len(sock.recv(n_bytes))


def test_a_thousand_refused_steps_are_few_lines_and_log_json_lines_parse(start: Start) -> None:
    process = start("--log-json")
    ready = ready_of(process)
    refuse_1000_steps(ready["listen"])
    refuse_1000_steps(ready["listen"])
    process.send_signal(signal.SIGTERM)
    code, _, err = ended(process)
    assert code == 0
    lines = [json.loads(line) for line in err.splitlines()]
    assert 1 <= len(lines) <= 8
    for line in lines:
        assert list(line)[:4] == ["time", "level", "logger", "message"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert any("NO_SESSION" in line["message"] for line in lines)


def test_rounds_are_not_logged_at_all(start: Start, worker: Worker) -> None:
    process = start()
    with Client(parse_endpoint(ready_of(process)["listen"])) as client:
        client.hello(worker.own)
        for seq in range(2, 300):
            entry = ReqEntry(0, 2, 0, 0, 1, seq - 2, 1, 1, seq - 1)
            head = step_head(
                seq=seq, session=1, step_id=seq, step_flags=0, row_bytes=384, entries=[entry]
            )
            assert client.ask(head + bytes(384))[0].status == FrameStatus.OK
    process.send_signal(signal.SIGTERM)
    assert len(ended(process)[2].splitlines()) <= 4


def answers(ready: dict[str, Any]) -> bool:
    with connect(ready["admin"][0]) as sock:
        sock.settimeout(5.0)
        sock.sendall(prefix(32) + frame(Op.PING, 1, 0))
        return len(sock.recv(36)) == 36


def test_a_worker_whose_stderr_pipe_is_broken_goes_on_and_ends_with_0(start: Start) -> None:
    reader, writer = os.pipe()
    process = start(stderr=writer)
    os.close(writer)
    ready = ready_of(process)
    os.close(reader)
    refuse_1000_steps(ready["listen"])
    assert answers(ready)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=WAIT_S) == 0


def test_a_worker_whose_stderr_pipe_is_full_goes_on_and_ends_with_0(start: Start) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 65536)
    except BlockingIOError:
        os.set_blocking(writer, True)
    process = start(stderr=writer)
    ready = ready_of(process)
    refuse_1000_steps(ready["listen"])
    assert answers(ready)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=WAIT_S) == 0
    os.close(writer)
    os.close(reader)


def test_a_worker_without_any_stderr_serves(start: Start) -> None:
    """`2>&-`: descriptor 2 must not become a socket's number."""
    process = start(before=["sh", "-c", 'exec "$@" 2>&-', "sh"])
    ready = ready_of(process)
    refuse_1000_steps(ready["listen"])
    assert answers(ready)
    assert not str(Path(f"/proc/{process.pid}/fd/2").readlink()).startswith("socket")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=WAIT_S) == 0
