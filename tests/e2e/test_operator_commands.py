"""probe, stats and reset against a real worker, as a person or a script runs them (R37 to R39)."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from dsparkctl.contract.codes import NEED_DRAFT, Op
from dsparkctl.contract.messages import frame, step_head
from dsparkctl.contract.records import ReqEntry
from tests.e2e.running import WAIT_S, Client, Worker, running_worker

PROGRAM = [sys.executable, "-c", "from dsparkctl.cli.app import main; main()"]

PLAIN = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
PLAIN.pop("NO_COLOR", None)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with running_worker("--drafter", "scripted") as started:
        yield started


def command(*args: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """One command without a terminal, in a folder without dspark.yaml."""
    return subprocess.run(
        [*PROGRAM, *map(str, args)],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=folder or "/",
    )


def on_a_terminal(
    *args: object, typed: str = "", until: str = "", **environment: str
) -> tuple[int, str]:
    """The exit code, and all that reached the terminal; Ctrl-C once `until` has appeared."""
    pid, screen = pty.fork()
    if not pid:
        os.chdir("/")
        os.execve(sys.executable, [*PROGRAM, *map(str, args)], {**PLAIN, **environment})
    shown = b""
    if typed:
        os.write(screen, typed.encode())
    is_interrupted = False
    while True:
        try:
            data = os.read(screen, 4096)
        except OSError:  # Linux says EIO when the other end is closed
            break
        shown += data
        if until and not is_interrupted and until.encode() in shown:
            is_interrupted = True
            os.write(screen, b"\x03")
        if not data:
            break
    os.close(screen)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def one_round(client: Client, seq: int, row_bytes: int, first_pos: int) -> None:
    """Three rows to slot 1, which needs drafts."""
    entry = ReqEntry(1, NEED_DRAFT, 5, 0, 9, first_pos, 3, 7, first_pos + 3)
    head = step_head(
        seq=seq, session=1, step_id=seq, step_flags=0, row_bytes=row_bytes, entries=[entry]
    )
    assert client.ask(head + bytes(3 * row_bytes))[0].status == 0


# --- probe ----------------------------------------------------------------------------------------


def test_probe_answers_with_percentiles_and_no_histogram_in_a_pipe(worker: Worker) -> None:
    done = command("probe", worker.admin, "--count", 5, "--interval", 0)
    assert done.returncode == 0, done.stderr
    heading, row = done.stdout.splitlines()
    assert heading.split()[:4] == ["endpoint", "sent", "answered", "loss"]
    assert row.split()[:4] == [str(worker.admin), "5", "5", "0.0%"]


def test_probe_rtt_as_json_is_one_line_with_rising_percentiles(worker: Worker) -> None:
    done = command("probe", worker.admin, "--rtt", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    facts = json.loads(done.stdout)
    assert (facts["sent"], facts["answered"], facts["lost"]) == (1000, 1000, 0)
    spread = [facts["rtt_us"][name] for name in ("min", "p50", "p90", "p99", "max")]
    assert spread == sorted(spread)
    assert spread[0] > 0


def test_probe_draws_a_histogram_on_a_terminal(worker: Worker) -> None:
    code, shown = on_a_terminal("probe", worker.admin, "--count", 50, "--interval", 0)
    assert code == 0
    bars = re.findall(r"us +(\d+)  #*\r", shown)
    assert sum(map(int, bars)) == 50


@pytest.mark.parametrize("n_bytes", [1, 1025, (16 << 20) - 32])
def test_probe_carries_a_payload_up_to_the_longest_message_section_5(
    worker: Worker, n_bytes: int
) -> None:
    flags = ("--payload", n_bytes, "--count", 2, "--interval", 0, "--timeout", 20, "--json")
    done = command("probe", worker.admin, *flags)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["payload_bytes"] == n_bytes
    assert json.loads(done.stdout)["answered"] == 2


def test_the_configured_data_listener_needs_take_over_and_then_hears_no_hello_r37(
    tmp_path: Path,
) -> None:
    with running_worker("--drafter", "scripted") as worker, Client(worker.data) as engine:
        assert engine.hello(worker.own).status == 0
        one_round(engine, 2, worker.own.row_bytes, 0)
        (tmp_path / "dspark.yaml").write_text(
            f"version: 1\nworker:\n  checkpoint: x\n  receipt: y\n  listen: {worker.data}\n"
        )
        for verb in (("probe",), ("stats",), ("reset", "--all", "--yes")):
            done = command(*verb, worker.data, folder=tmp_path)
            assert done.returncode == 2
            assert len(done.stderr.splitlines()) == 1
            assert "--take-over" in done.stderr
        assert engine.ping().status == 0  # nobody took the connection so far
        done = command("probe", worker.data, "--take-over", "--count", 1, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert engine.is_closed()
        with Client(worker.admin) as admin:
            found = admin.stats()
    assert found["hellos"] == 1
    assert found["session"] == 1
    assert found["slots"][1]["hi_pos"] == 2


@pytest.mark.parametrize("port", [18620, 18621])
@pytest.mark.parametrize("verb", [("probe",), ("stats",), ("reset", "--all", "--yes")])
def test_the_contracts_own_ports_are_refused_wherever_they_are(
    port: int, verb: tuple[str, ...]
) -> None:
    done = command(*verb, f"tcp://192.0.2.1:{port}")
    assert done.returncode == 2
    assert "newest wins" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "verb", [("probe",), ("stats",), ("stats", "--watch"), ("reset", "--all", "--yes")]
)
def test_a_dead_port_is_one_line_and_exit_1(verb: tuple[str, ...]) -> None:
    done = command(*verb, "tcp://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr == "tcp://127.0.0.1:1: connection refused: nobody listens there\n"


def test_a_probe_whose_worker_ends_meanwhile_is_exit_6() -> None:
    with running_worker("--drafter", "scripted") as worker:
        flags = ("--count", "12", "--interval", "0.1", "--json")
        with subprocess.Popen(
            [*PROGRAM, "probe", str(worker.admin), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            with Client(worker.admin) as admin:
                while not admin.stats()["pings"]:
                    time.sleep(0.02)
            worker.process.send_signal(signal.SIGTERM)
            out, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 6
    assert json.loads(out)["answered"] > 0
    assert json.loads(out)["lost"] > 0
    assert "were lost" in said


def test_ctrl_c_ends_a_probe_with_what_was_measured_so_far(worker: Worker) -> None:
    with Client(worker.admin) as admin:
        before = admin.stats()["pings"]
        with subprocess.Popen(
            [
                *PROGRAM,
                "probe",
                str(worker.admin),
                "--count",
                "1000",
                "--interval",
                "0.05",
                "--json",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while admin.stats()["pings"] < before + 3:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=WAIT_S)
    assert (process.returncode, said) == (130, "")
    assert 2 <= json.loads(out)["answered"] < 1000


# --- stats ----------------------------------------------------------------------------------------


def test_stats_once_as_a_table_and_as_json(worker: Worker) -> None:
    table, line = command("stats", worker.admin), command("stats", worker.admin, "--json")
    assert (table.returncode, line.returncode) == (0, 0)
    assert line.stdout.count("\n") == 1
    facts = json.loads(line.stdout)
    assert facts["drafter_identity"] == worker.ready["drafter_identity"]
    names = [row.split()[0] for row in table.stdout.splitlines()]
    assert names == list(facts)


def test_stats_of_the_default_config_in_the_folder(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "dspark.yaml").write_text(
        f"version: 1\nworker:\n  checkpoint: x\n  receipt: y\n  admin: ['{worker.admin}']\n"
    )
    done = command("stats", "--json", folder=tmp_path)
    assert json.loads(done.stdout)["pid"] == worker.process.pid


class Watching:
    """`stats --watch` in a pipe."""

    def __init__(self, *args: object) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "stats", "--watch", "--interval", "0.05", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Watching":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def err(self) -> IO[str]:
        assert self.process.stderr is not None
        return self.process.stderr

    def interrupted(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=WAIT_S)
        return self.process.returncode


def test_watch_in_a_pipe_is_a_timestamped_line_a_look_and_ctrl_c_is_130(worker: Worker) -> None:
    with Watching(worker.admin) as watching:
        lines = [watching.out.readline() for _ in range(3)]
        assert watching.interrupted() == 130
    for line in lines:
        assert re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ steps \d+, ", line), line


def test_watch_goes_on_through_a_restart_and_says_so_on_stderr() -> None:
    with running_worker("--drafter", "scripted") as first:
        admin = first.admin
        with Watching(admin, "--json") as watching:
            before = json.loads(watching.out.readline())
            first.process.send_signal(signal.SIGTERM)
            outage = watching.err.readline()
            with running_worker("--drafter", "scripted", "--admin", str(admin)) as second:
                again = watching.err.readline()
                lines = [json.loads(watching.out.readline()) for _ in range(50)]
                pid = second.process.pid
    assert "trying again" in outage
    assert "the worker started again" in again
    after = [line for line in lines if line["pid"] == pid]
    assert before["pid"] != pid
    assert [line["started_again"] for line in after[:2]] == [True, False]
    assert after[0]["rates"]["steps_per_s"] is None
    assert after[1]["rates"]["steps_per_s"] == 0.0


def test_watch_shows_rates_and_acceptance_of_what_the_engine_does(worker: Worker) -> None:
    with Client(worker.data) as engine, Watching(worker.admin, "--json") as watching:
        assert engine.hello(worker.own, session=1).status == 0
        for seq in range(2, 8):
            one_round(engine, seq, worker.own.row_bytes, 3 * seq)
        lines = [json.loads(watching.out.readline()) for _ in range(4)]
    assert lines[-1]["steps"] == 6
    assert lines[-1]["acceptance_per_position"] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert set(lines[-1]["rates"]) == {"steps_per_s", "rows_per_s", "drafts_per_s"}


def test_watch_on_a_terminal_is_a_live_table(worker: Worker) -> None:
    code, shown = on_a_terminal("stats", worker.admin, "--watch", until="uptime")
    assert code == 130
    for name in ("steps", "acceptance by position", "draft p50 / p99", "last step", "self-test"):
        assert name in shown
    assert "\x1b[" in shown


def test_an_error_is_red_on_a_terminal_but_not_with_no_color() -> None:
    code, red = on_a_terminal("stats", "tcp://127.0.0.1:1")
    _, plain = on_a_terminal("stats", "tcp://127.0.0.1:1", NO_COLOR="1")
    assert code == 1
    assert red.startswith("\x1b[31mtcp://127.0.0.1:1: ")
    assert "\x1b" not in plain
    assert plain.startswith("tcp://127.0.0.1:1: ")


def test_a_reader_that_goes_away_is_no_noise(worker: Worker) -> None:
    with Watching(worker.admin) as watching:
        watching.out.readline()
        watching.out.close()
        said = watching.err.read()
        watching.process.wait(WAIT_S)
        watching.process.stdout = None
    assert said == ""


# --- reset ----------------------------------------------------------------------------------------


def held(worker: Worker) -> list[int]:
    with Client(worker.admin) as admin:
        return [one["slot"] for one in admin.stats()["slots"] if one["hi_pos"] is not None]


def fill(worker: Worker, session: int) -> None:
    """Slots 0, 1 and 2 hold a row each."""
    with Client(worker.data) as engine:
        assert engine.hello(worker.own, session=session).status == 0
        entries = [ReqEntry(slot, 0, 0, 0, 1, 0, 1, 0, 1) for slot in range(3)]
        head = step_head(
            seq=2, session=session, step_id=1, step_flags=0,
            row_bytes=worker.own.row_bytes, entries=entries,
        )  # fmt: skip
        assert engine.ask(head + bytes(3 * worker.own.row_bytes))[0].status == 0


def test_reset_discards_the_slots_that_are_named_and_no_other_section_6_4(worker: Worker) -> None:
    fill(worker, session=21)
    done = command("reset", worker.admin, "--slots", "0,2", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["slot_mask"] == 5
    assert held(worker) == [1]
    assert command("reset", worker.admin, "--all", "--yes").returncode == 0
    assert held(worker) == []


def test_reset_without_a_terminal_needs_yes(worker: Worker) -> None:
    fill(worker, session=22)
    done = command("reset", worker.admin, "--all")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--yes" in done.stderr
    assert held(worker) == [0, 1, 2]


@pytest.mark.parametrize(("typed", "code", "left"), [("y\n", 0, [0, 2]), ("n\n", 1, [0, 1, 2])])
def test_reset_asks_on_a_terminal(worker: Worker, typed: str, code: int, left: list[int]) -> None:
    fill(worker, session=23 + code)
    got, shown = on_a_terminal("reset", worker.admin, "--slots", "1", typed=typed)
    assert "Discard the windows of slots 1" in shown
    assert got == code
    assert held(worker) == left


def test_ctrl_c_at_the_question_discards_nothing(worker: Worker) -> None:
    fill(worker, session=26)
    code, _ = on_a_terminal("reset", worker.admin, "--all", until="[y/N]")
    assert code == 130
    assert held(worker) == [0, 1, 2]


def test_reset_on_the_data_listener_has_no_session_and_says_what_to_do(worker: Worker) -> None:
    done = command("reset", worker.data, "--all", "--yes")
    assert done.returncode == 1
    assert "NO_SESSION" in done.stderr
    assert "use the admin listener" in done.stderr


def test_none_of_the_commands_said_hello(worker: Worker) -> None:
    with Client(worker.admin) as admin:
        before = admin.stats()["hellos"]
        for verb in (("probe", "--count", "1"), ("stats",), ("reset", "--all", "--yes")):
            assert command(*verb, worker.admin).returncode == 0
        assert admin.stats()["hellos"] == before
        assert admin.ask(frame(Op.HELLO, 1, 1))[0].status == 9


def test_a_worker_is_compared_with_a_good_state_that_was_saved(
    worker: Worker, tmp_path: Path
) -> None:
    """Issue 6, part 3: `stats --baseline`."""
    good = tmp_path / "good.json"
    good.write_text(command("stats", worker.admin, "--json").stdout)
    same = command("stats", worker.admin, "--baseline", good)
    assert same.returncode == 0, same.stderr
    assert "drafter_identity" in same.stdout
    other = json.loads(good.read_text()) | {"drafter_identity": "ab" * 32}
    good.write_text(json.dumps(other))
    told = command("stats", worker.admin, "--baseline", good, "--json")
    assert told.returncode == 5
    rows = {row["key"]: row["verdict"] for row in json.loads(told.stdout)["baseline"]}
    assert rows["drafter_identity"] == "other"
    assert rows["backend"] == ""
    good.write_text("no json")
    spoilt = command("stats", worker.admin, "--baseline", good)
    assert (spoilt.returncode, len(spoilt.stderr.splitlines())) == (2, 1)
    assert "expected what stats --json prints" in spoilt.stderr
