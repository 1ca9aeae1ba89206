"""`dsparkctl demo` as a person runs it: a real worker process, a real checkpoint (issue §6)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsparkctl.demo.terms import EMBEDDED
from tests.e2e.running import GOLDEN, WAIT_S, running_worker


def demo(*flags: str) -> subprocess.CompletedProcess[str]:
    code = "from dsparkctl.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "demo", *flags],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_demo_drafts_and_sums_up_in_a_table() -> None:
    done = demo()
    assert done.returncode == 0, done.stderr
    counts = dict(line.rsplit(None, 1) for line in done.stdout.splitlines() if line[-1:].isdigit())
    for name in ("decodes", "prefill chunks", "rollbacks", "requests started", "resyncs"):
        assert int(counts[name]) > 0
    assert counts["rounds"] == "100"
    assert counts["reconnects"] == "1"
    assert int(counts["status OK"]) > 100
    assert [line.split()[0] for line in done.stdout.splitlines()[-3:]] == [
        "round",
        "worker",
        "wire",
    ]


def test_json_is_one_line() -> None:
    done = demo("--json", "--rounds", "20", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    facts = json.loads(done.stdout)
    assert facts["rounds"] == 20
    assert facts["drafts"] > 0
    assert set(facts["round_trip_us"]) == {"min", "p50", "p99", "max"}


def test_a_running_worker_is_used_and_left_running() -> None:
    with running_worker("--drafter", "scripted", checkpoint=EMBEDDED) as worker:
        first = demo("--endpoint", str(worker.data), "--json")
        again = demo("--endpoint", str(worker.data), "--json")
        assert worker.process.poll() is None
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert json.loads(first.stdout)["endpoint"] == str(worker.data)
    assert json.loads(first.stdout)["statuses"] == json.loads(again.stdout)["statuses"]


def test_a_worker_with_another_checkpoint_is_exit_10_with_both_digests() -> None:
    with running_worker("--drafter", "scripted") as worker:
        done = demo("--endpoint", str(worker.data))
        same = demo("--endpoint", str(worker.data), "--checkpoint", str(GOLDEN), "--rounds", "3")
    assert done.returncode == 10
    last = done.stderr.splitlines()[-1]
    assert worker.ready["drafter_identity"] in last
    assert "46999072efc2e3daeec9c6a2512cc3099cd4b2afe25241b42bcbfede6117b433" in last
    assert same.returncode == 0, same.stderr


def test_the_admin_listener_is_named_as_the_wrong_one() -> None:
    with running_worker("--drafter", "scripted", checkpoint=EMBEDDED) as worker:
        done = demo("--endpoint", str(worker.admin))
    assert done.returncode == 10
    assert "UNSUPPORTED_OP" in done.stderr
    assert "Traceback" not in done.stderr


def test_nobody_at_the_endpoint_is_exit_1() -> None:
    done = demo("--endpoint", "tcp://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("tcp://127.0.0.1:1: connection refused")


@pytest.mark.parametrize("text", ["nonsense", "o1tcp://h:1", "o1rdma://h:1"])
def test_an_endpoint_that_cannot_be_used_is_exit_2(text: str) -> None:
    done = demo("--endpoint", text)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_worker_that_cannot_load_is_exit_1_with_its_last_words(tmp_path: Path) -> None:
    for name in ("config.json", "inference_config.json"):
        (tmp_path / name).write_bytes((EMBEDDED / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    done = demo("--checkpoint", str(tmp_path))
    assert done.returncode == 1
    assert "the worker did not start: it ended with exit code" in done.stderr.splitlines()[-1]
    assert str(tmp_path) in done.stderr.splitlines()[-2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_is_exit_130_and_leaves_no_worker(number: signal.Signals) -> None:
    code = "from dsparkctl.cli.app import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "demo", "--rounds", "100000"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("playing"):
            assert process.poll() is None
        (worker,) = children_of(process.pid)
        process.send_signal(number)
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert "Traceback" not in said
    time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
