"""`dsparkctl demo` as a person runs it: a real worker, a real engine, real drafts (issue 3, §2)."""

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, Op
from dsparkctl.demo.options import MAX_MODEL_LEN
from dsparkctl.demo.terms import EMBEDDED
from tests.e2e.demo_runs import (
    PROGRAM,
    children_of,
    demo_process,
    drafted_and_accepted,
    relay,
    report_of,
)
from tests.e2e.running import WAIT_S, Worker, running_worker

Demo = Callable[..., tuple[int, str, str]]
Report = Callable[..., dict[str, Any]]

RECEIPT = EMBEDDED / "DSPARK_COPY_DONE"
SMALL = ("--requests", "3", "--tokens", "24")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One for the whole module: each demo throws out the one before (§7.5, newest wins)."""
    with running_worker(checkpoint=EMBEDDED) as found:
        yield found


@pytest.fixture(scope="module")
def scripted() -> Iterator[Worker]:
    """It accepts the same HELLO, and its drafts are hashes."""
    with running_worker("--drafter", "scripted", checkpoint=EMBEDDED) as found:
        yield found


def test_the_default_run_drafts_well_and_changes_nothing() -> None:
    began_s = time.monotonic()
    done = demo_process("--json")
    assert time.monotonic() - began_s < 30 * _busy()
    assert done.returncode == 0, done.stderr
    report = report_of(done.stdout)
    assert report["outputs_match_reference"] is True
    assert report["remote"] == "on"
    assert report["fallbacks"] == {}
    assert report["breaker"] == {"state": "closed", "failed_in_a_row": 0, "opened": 0}
    assert report["requests_done"] == report["requests"] == 8
    assert report["tokens"] == 8 * 128
    assert report["steps_sent"] == report["rounds"]
    assert report["connections"] == 1
    assert report["resyncs"] == 0
    mean = report["accepted"] / report["drafted_requests"]
    assert sum(report["acceptance_per_position"]) == pytest.approx(mean, abs=1e-4)
    assert mean >= 2.5
    assert report["tokens_per_step"] > 3
    # What a real engine does, too.
    assert report["preempted"] > 0
    assert report["prefix_hits"] > 0
    assert report["chunked"] > 0
    assert set(report["ms_per_round"]) == {"round", "engine", "propose", "exchange"}


def test_on_the_wire_it_is_one_connection_and_one_step_in_every_round(
    report: Report, worker: Worker
) -> None:
    """C9: `step_id` counts them. And what the report says of drafts, the wire says too."""
    began_s = time.monotonic()
    with relay(worker.data, worker.own) as wire:
        found = report("--endpoint", str(wire.endpoint))
    first = next(said for said in wire.asked if said.header.op == Op.STEP)
    assert first.at_s - began_s < 5 * _busy()
    assert wire.n_connections == 1
    ops = [said.header.op for said in wire.asked]
    assert ops == [Op.HELLO] + [Op.STEP] * found["rounds"]
    steps = wire.steps()
    assert [step.head.step_id for step in steps] == [*range(1, found["rounds"] + 1)]
    assert found["fallbacks"] == {}
    n_drafted, accepted = drafted_and_accepted(wire)
    assert (n_drafted, sum(accepted)) == (found["drafted_requests"], found["accepted"])
    shares = [n / n_drafted for n in accepted]
    assert found["acceptance_per_position"] == pytest.approx(shares, abs=1e-5)

    entries = [entry for step in steps for entry in step.entries]
    assert max(entry.n_rows for entry in entries) == worker.own.window
    assert {entry.slot for entry in entries} == {0, 1, 2, 3}
    n_owners = sum(bool(entry.req_flags & NEW_GEN) for entry in entries)
    assert n_owners > 8, "slots are reused, and preempted requests come back"
    assert any(not entry.req_flags & NEED_DRAFT for entry in entries), "prefill in chunks"
    assert all(status.status == 0 for reply in wire.replies() for status in reply.statuses)
    sent = {
        entry.n_out: len(step.entries)
        for step in steps
        for entry in step.entries
        if entry.req_flags & NEED_DRAFT
    }
    assert set(sent) == {4, 5}, "§6.3: n_out is the schedule's cap"


def test_the_hello_is_the_one_that_a_client_of_the_checkpoint_sends(
    report: Report, worker: Worker
) -> None:
    with relay(worker.data, worker.own) as wire:
        report("--endpoint", str(wire.endpoint), "--requests", "1", "--tokens", "4")
    (hello,) = (said.body for said in wire.asked if said.header.op == Op.HELLO)
    assert int.from_bytes(hello[56:60], "little") == MAX_MODEL_LEN >= 2048
    assert hello[80:112] == worker.own.drafter_identity


def test_the_same_seed_gives_the_same_steps_byte_for_byte(report: Report, worker: Worker) -> None:
    told = []
    for seed in ("5", "5", "6"):
        with relay(worker.data, worker.own) as wire:
            report("--endpoint", str(wire.endpoint), "--seed", seed, *SMALL)
        told.append([said.body for said in wire.asked if said.header.op == Op.STEP])
    assert told[0] == told[1]
    assert told[0] != told[2]


def test_the_worker_sees_no_difference_when_a_proxy_thread_asks_it(
    report: Report, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§4.2: `VLLM_DSPARK_REMOTE_ASYNC=1` sends the same messages in the same order."""
    told = []
    for is_async in ("0", "1"):
        monkeypatch.setenv("VLLM_DSPARK_REMOTE_ASYNC", is_async)
        with relay(worker.data, worker.own) as wire:
            report("--endpoint", str(wire.endpoint), *SMALL)
        told.append([said.body for said in wire.asked])
    assert told[0] == told[1]


def test_taps_and_tokens_are_the_same_whoever_drafts(
    report: Report, worker: Worker, scripted: Worker
) -> None:
    """Good drafts or bad ones: the same positions have the same rows, and the same anchors."""
    rows, anchors, n_rounds = [], [], []
    for drafter in (worker, scripted):
        taps: dict[int, bytes] = {}
        tokens: dict[int, int] = {}
        with relay(drafter.data, drafter.own) as wire:
            found = report("--endpoint", str(wire.endpoint), "--requests", "1")
        for step in wire.steps():
            (entry,) = step.entries
            size = step.head.row_bytes
            for i in range(entry.n_rows):
                taps[entry.first_pos + i] = bytes(step.rows[i * size : (i + 1) * size])
            tokens[entry.anchor_pos] = entry.anchor_token
        rows.append(taps)
        anchors.append(tokens)
        n_rounds.append(found["rounds"])
        assert found["outputs_match_reference"] is True
    both = rows[0].keys() & rows[1].keys()
    assert len(both) > 100
    assert all(rows[0][pos] == rows[1][pos] for pos in both)
    shared = anchors[0].keys() & anchors[1].keys()
    assert all(anchors[0][pos] == anchors[1][pos] for pos in shared)
    assert n_rounds[0] < n_rounds[1] / 2


def test_rounds_are_paced(report: Report, scripted: Worker) -> None:
    with relay(scripted.data, scripted.own) as wire:
        flags = ("--requests", "1", "--tokens", "8", "--step-ms", "80")
        report("--endpoint", str(wire.endpoint), *flags)
    at_s = [said.at_s for said in wire.asked if said.header.op == Op.STEP]
    gaps = [b - a for a, b in itertools.pairwise(at_s)]
    assert sum(gaps) / len(gaps) > 0.075


def test_max_seconds_ends_the_rounds_and_compares_what_was_said(
    report: Report, scripted: Worker
) -> None:
    flags = ("--requests", "100", "--tokens", "1000", "--max-seconds", "0.5")
    found = report("--endpoint", str(scripted.data), *flags)
    assert found["requests_done"] < 100
    assert 0 < found["tokens"] < 100_000
    assert found["outputs_match_reference"] is True


def test_an_outage_shows_what_the_drafter_is_worth(report: Report) -> None:
    """Its own worker is killed and comes back; the engine goes on meanwhile (§10)."""
    found = report("--show-outage")
    assert found["outputs_match_reference"] is True
    on, out, back = found["phases"].values()
    assert list(found["phases"]) == ["worker on", "worker killed", "worker back"]
    assert on["rounds"] == 40
    assert on["fallbacks"] == back["fallbacks"] == {}
    assert sum(out["fallbacks"].values()) == out["rounds"] > 30
    assert on["tokens_per_step"] > 3
    assert out["tokens_per_step"] < 1.1
    assert back["tokens_per_step"] > 3
    assert found["connections"] == 2
    assert 1 <= found["resyncs"] <= 4
    assert found["remote"] == "on"


def test_a_person_sees_tokens_per_step_with_and_without_the_drafter(
    demo: Demo, worker: Worker
) -> None:
    code, said, _ = demo("--endpoint", worker.data, *SMALL)
    assert code == 0
    lines = said.splitlines()
    assert "tokens per target step" in lines[0]
    assert lines[1].startswith("with the drafter")
    assert lines[2].split() == ["the", "target", "by", "itself", "1.00"]
    assert any(line.split() == ["outputs_match_reference", "True"] for line in lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_is_exit_130_and_leaves_no_worker(number: signal.Signals) -> None:
    flags = ("--requests", "1000", "--step-ms", "20")
    with subprocess.Popen(
        [*PROGRAM, *flags], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("1000 requests"):
            assert process.poll() is None
        (worker,) = children_of(process.pid)
        process.send_signal(number)
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_the_readmes_worker_accepts_the_demo(report: Report) -> None:
    """The worker that the README starts: with the receipt, without a Markov file."""
    flags = ("--receipt", str(RECEIPT), "--drafter", "scripted")
    command = [PROGRAM[0], "-P", "-m", "dspark_worker", "serve", "--checkpoint", str(EMBEDDED)]
    listeners = ["--listen", "tcp://127.0.0.1:0", "--admin", "tcp://127.0.0.1:0", "--json"]
    with subprocess.Popen([*command, *listeners, *flags], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            listen = json.loads(process.stdout.readline())["listen"]
            assert report("--endpoint", listen, *SMALL)["remote"] == "on"
        finally:
            process.terminate()


def _busy() -> float:
    """How much longer things may take where other work runs: load for each processor."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
