"""`dsparkctl demo --endpoint` with whatever may be there; the engine goes on (§9, §10, C25)."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.contract.codes import FrameStatus, Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import parse_header, parse_hello
from dsparkctl.contract.records import HelloReply
from dsparkctl.demo.terms import EMBEDDED
from dsparkctl.exits import Exit
from tests.e2e.demo_runs import relay, report_of
from tests.e2e.running import GOLDEN, running_worker
from tests.unit.net.peers import peer, receive, reply

Demo = Callable[..., tuple[int, str, str]]
Report = Callable[..., dict[str, Any]]
SMALL = ("--requests", "3", "--tokens", "24")


@pytest.fixture
def target_only(demo: Demo) -> Callable[..., dict[str, Any]]:
    """The report of a run without a usable draft: the target's own tokens, and exit 0, or 10 where
    the worker is another engine's."""

    def call(endpoint: Endpoint | str, *flags: object) -> dict[str, Any]:
        code, said, why = demo("--json", "--endpoint", endpoint, *SMALL, *flags)
        found = report_of(said)
        is_another = found["remote"].partition(":")[0] in FrameStatus.__members__
        assert code == (Exit.MISMATCH if is_another else Exit.OK), why
        assert found["outputs_match_reference"] is True
        assert found["tokens_per_step"] == 1.0
        assert found["drafted_requests"] == found["accepted"] == 0
        assert found["acceptance_per_position"] == [0.0] * 5
        assert sum(found["fallbacks"].values()) == found["rounds"]
        return found

    return call


TargetOnly = Callable[..., dict[str, Any]]


def test_nobody_there_is_no_error(target_only: TargetOnly) -> None:
    report = target_only("tcp://127.0.0.1:1")
    assert report["fallbacks"] == {"fallback_no_connection": report["rounds"]}
    assert "127.0.0.1:1" in report["remote"]
    assert report["steps_sent"] == 0


def test_it_keeps_trying_while_nobody_answers(target_only: TargetOnly) -> None:
    """§10, C1: after 1 s, then 2 s later; here the connections are closed at once."""
    dialled: list[socket.socket] = []
    with peer(dialled.append) as endpoint:
        report = target_only(endpoint, "--step-ms", "60")
    assert len(dialled) == report["connections"]
    assert report["connections"] in (2, 3), "the third one if this machine is very busy"


def test_another_identity_disables_drafting_for_good(target_only: TargetOnly) -> None:
    """§9.1, C25: both digests are in the reason."""
    with running_worker("--drafter", "scripted") as other, relay(other.data, other.own) as wire:
        report = target_only(wire.endpoint)
    assert report["remote"].startswith("IDENTITY_MISMATCH: drafter_identity is ")
    assert other.own.drafter_identity.hex() in report["remote"]
    assert report["fallbacks"] == {"fallback_disabled": report["rounds"]}
    assert [said.header.op for said in wire.asked] == [Op.HELLO]
    assert wire.n_connections == 1


@pytest.mark.parametrize(
    "status", [FrameStatus.BAD_VERSION, FrameStatus.CONFIG_MISMATCH, FrameStatus.UNSUPPORTED_OP]
)
def test_other_terms_and_another_version_disable_it_too(
    target_only: TargetOnly, status: FrameStatus
) -> None:
    with peer(lambda sock: reply(sock, receive(sock), b"", status)) as endpoint:
        report = target_only(endpoint)
    assert report["remote"].startswith(f"{status.name}: ")
    assert report["connections"] == 1


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64, b"\xff" * 64])
def test_garbage_is_no_worker(target_only: TargetOnly, garbage: bytes) -> None:
    with peer(lambda sock: sock.sendall(garbage)) as endpoint:
        report = target_only(endpoint)
    assert set(report["fallbacks"]) == {"fallback_no_connection"}
    assert report["remote"] != "on"


def test_silence_costs_a_deadline_a_second_and_no_more(target_only: TargetOnly) -> None:
    """C6: a HELLO that nobody answers takes 250 ms, then the backoff."""
    with peer(_swallow) as endpoint:
        report = target_only(endpoint, "--timeout-ms", "50")
    assert report["steps_sent"] == 0
    assert report["connections"] in (1, 2), "the second one if this machine is very busy"


def test_a_worker_that_keeps_failing_meets_the_breaker(target_only: TargetOnly) -> None:
    """§10: three failed attempts in a row, then silence; the connection stays (C4)."""
    steps: list[int] = []
    with peer(lambda sock: _answer_internal(sock, steps)) as endpoint:
        report = target_only(endpoint)
    assert report["fallbacks"] == {
        "fallback_cooldown": report["rounds"] - 3,
        "fallback_frame_error": 3,
    }
    assert report["breaker"] == {"state": "open", "failed_in_a_row": 0, "opened": 1}
    assert steps == [1, 2, 3]
    assert report["remote"].startswith("cooldown: ")


def test_the_clients_own_variables_are_read(
    target_only: TargetOnly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R40: a cooldown of 5 rounds, then a probe; C9: its step_id tells how many were silent."""
    monkeypatch.setenv("VLLM_DSPARK_REMOTE_TRIP", "1")
    monkeypatch.setenv("VLLM_DSPARK_REMOTE_COOLDOWN", "5")
    steps: list[int] = []
    with peer(lambda sock: _answer_internal(sock, steps)) as endpoint:
        report = target_only(endpoint)
    assert steps[:3] == [1, 7, 13]
    assert report["breaker"]["opened"] == len(steps)


def test_the_kill_switch_works_without_a_restart(
    target_only: TargetOnly, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    switch = tmp_path / "off"
    switch.touch()
    monkeypatch.setenv("VLLM_DSPARK_REMOTE_SWITCH_FILE", str(switch))
    report = target_only("tcp://127.0.0.1:1")
    assert report["fallbacks"] == {"fallback_switched_off": report["rounds"]}
    assert report["remote"].startswith("switched off")


def test_on_fail_raise_ends_the_run(demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    """§10: for benchmarks."""
    monkeypatch.setenv("VLLM_DSPARK_REMOTE_ON_FAIL", "raise")
    code, _, said = demo("--endpoint", "tcp://127.0.0.1:1", *SMALL)
    assert code == 1
    assert "NO_CONNECTION" in said.splitlines()[-1]


def test_resilience_drafts_here_when_nobody_is_there(report: Report) -> None:
    """§10: the local drafter has the same weights, and the same drafts."""
    flags = ("--policy", "resilience", "--requests", "2", "--tokens", "48")
    found = report("--endpoint", "tcp://127.0.0.1:1", *flags)
    assert found["outputs_match_reference"] is True
    assert found["fallbacks"] == {"fallback_no_connection": found["rounds"]}
    assert found["tokens_per_step"] > 2.5


def test_shadow_finds_that_both_drafters_agree(report: Report) -> None:
    """§10: drafts of the same model on the same rows."""
    with running_worker(checkpoint=EMBEDDED) as worker:
        found = report("--policy", "shadow", "--endpoint", worker.data, *SMALL)
    shadow = found["shadow"]
    assert shadow["entries_compared"] == found["drafted_requests"] > 10
    # §7.4: at a near-tie another batch shape may decide otherwise.
    assert shadow["agreed"][0] >= 0.95 * shadow["compared"][0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--endpoint", "nonsense"), "nonsense"),
        (("--endpoint", "o1rdma://h:1"), "not usable here"),
        (("--endpoint", "tcp://0.0.0.0:1"), "host and port"),
        (("--endpoint", "tcp://127.0.0.1:0"), "host and port"),
        (("--endpoint", "tcp://127.0.0.1:1", "--show-outage"), "--show-outage"),
        (("--requests", "0"), "--requests"),
        (("--concurrency", "5"), "--concurrency"),
        (("--tokens", "5000"), "--tokens"),
        (("--timeout-ms", "0"), "--timeout-ms"),
        (("--timeout-ms", "nan"), "--timeout-ms"),
        (("--max-seconds", "nan"), "--max-seconds"),
        (("--policy", "hope"), "--policy"),
        (("--seed", "x"), "--seed"),
    ],
)
def test_options_that_cannot_be_meant_are_one_line_and_exit_2(
    demo: Demo, flags: tuple[str, ...], words: str
) -> None:
    code, said, why = demo(*flags)
    assert (code, said) == (2, "")
    assert why.count("\n") == 1
    assert words in why


def test_a_variable_that_does_not_exist_is_one_line_and_exit_2(
    demo: Demo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_DSPARK_REMOTE_TRIPP", "3")
    code, _, why = demo("--endpoint", "tcp://127.0.0.1:1")
    assert code == 2
    assert "VLLM_DSPARK_REMOTE_TRIP?" in why.splitlines()[-1]


def test_the_endpoint_comes_from_the_command_line_alone(
    target_only: TargetOnly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A demo on a Spark must not throw out the engine that serves there."""
    with peer(_swallow) as engines_own:
        monkeypatch.setenv("VLLM_DSPARK_REMOTE_ENDPOINT", str(engines_own))
        assert "127.0.0.1:1:" in target_only("tcp://127.0.0.1:1")["remote"]


def test_a_folder_without_a_target_is_one_line(demo: Demo) -> None:
    code, _, why = demo("--checkpoint", GOLDEN, "--endpoint", "tcp://127.0.0.1:1")
    assert code == 1
    assert "no target to draft for" in why.splitlines()[-1]


def test_a_worker_that_cannot_load_is_told_with_its_last_words(demo: Demo, tmp_path: Path) -> None:
    for name in ("config.json", "inference_config.json"):
        (tmp_path / name).write_bytes((EMBEDDED / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    code, _, why = demo("--checkpoint", tmp_path)
    assert code == 1
    assert "the worker did not start: it ended with exit code" in why.splitlines()[-1]
    assert str(tmp_path) in why.splitlines()[-2]


def _swallow(sock: socket.socket) -> None:
    while sock.recv(1 << 16):
        pass


def _answer_internal(sock: socket.socket, steps: list[int]) -> None:
    """A worker that is glad to meet anyone, and fails on every STEP (§9.1)."""
    while True:
        message = receive(sock)
        body = message[32:]
        if parse_header(message).op == Op.HELLO:
            own = parse_hello(body)
            answer = HelloReply(
                proto=1,
                max_slots=own.max_slots,
                max_rows_per_step=own.max_rows_per_step,
                capabilities=1,
                window=own.window,
                num_spec=own.num_spec,
                drafter_identity=own.drafter_identity,
                markov_identity=own.markov_identity,
                worker_name=b"fails",
            )
            reply(sock, message, pack(answer))
        else:
            steps.append(int.from_bytes(body[:8], "little"))
            reply(sock, message, b"", 8)
