"""What a healthy worker is (issue 5, part 2): asked of a real one, through a host's port."""

from collections.abc import Iterator
from typing import Any

import pytest

from dsparkctl import __version__
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.rollout.gate import Gate, GateError, NotAnswering, ShowJournal, fault_of, stats_of
from dsparkctl.rollout.host import Ran
from dsparkctl.rollout.plan import Tell
from tests.e2e.running import Worker, running_worker
from tests.unit.rollout.doubles import RecordingHost

IDENTITY = "ab" * 32
WELL: dict[str, Any] = {
    "drafter_identity": IDENTITY,
    "self_test_ok": True,
    "self_test_age_s": 5.0,
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"drafter_identity": "cd" * 32}, "the receipt's is abab"),
        ({"self_test_ok": False}, "self-test draft did not come out right"),
        ({"self_test_ok": None}, "self-test draft did not come out right"),
        ({"self_test_age_s": 4000}, "last self-test is 4000 s ago"),
        ({"self_test_age_s": None}, "last self-test is None s ago"),
    ],
)
def test_identity_and_self_test_decide(changed: dict[str, Any], words: str) -> None:
    fault = fault_of(WELL | changed, IDENTITY)
    assert words in fault
    assert bool(fault) == bool(words)


def test_without_a_receipt_any_identity_will_do() -> None:
    assert fault_of(WELL | {"drafter_identity": "x"}, None) == ""


def running(pid: int) -> RecordingHost:
    """A host whose unit's process is this one."""

    def answer(argv: tuple[str, ...]) -> Ran:
        return Ran(argv, 0, b"active\n" if "is-active" in argv else f"{pid}\n".encode(), b"")

    return RecordingHost(answer=answer)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with running_worker("--drafter", "scripted") as found:
        yield found


def test_a_worker_that_drafts_passes_and_stays_the_same_process(worker: Worker) -> None:
    said: list[str] = []
    gate = Gate(worker.admin, worker.ready["drafter_identity"], __version__, 10.0, 0.05)
    gate.apply(running(worker.process.pid), Tell(said.append))
    assert said[-1] == "x86host: it drafts; looking again in 0.05 s"
    assert stats_of(RecordingHost(), worker.admin)["pid"] == worker.process.pid


def test_another_identity_ends_the_gate_at_once(worker: Worker) -> None:
    with pytest.raises(GateError, match=r"x86host: the worker answers, but its drafter_identity"):
        Gate(worker.admin, IDENTITY, __version__, 60.0, 0.0).apply(
            running(worker.process.pid), Tell()
        )


def test_the_version_is_the_releases(worker: Worker) -> None:
    with pytest.raises(GateError, match=r"its version is \S+, the release's is 9.9"):
        Gate(worker.admin, None, "9.9", 60.0, 0.0).apply(running(worker.process.pid), Tell())


def test_a_worker_that_is_not_the_units_process_proves_nothing(worker: Worker) -> None:
    """One that somebody started by hand may hold the address."""
    gate = Gate(worker.admin, None, __version__, 0.1, 0.0)
    with pytest.raises(GateError, match="the unit's is 77: another worker holds the address"):
        gate.apply(running(77), Tell())


def test_a_unit_that_failed_is_not_waited_for() -> None:
    def answer(argv: tuple[str, ...]) -> Ran:
        return Ran(argv, 3, b"failed\n", b"")

    nobody = Endpoint("tcp", "127.0.0.1", 1)
    with pytest.raises(GateError, match="the worker's unit is failed"):
        Gate(nobody, None, __version__, 60.0, 0.0).apply(_Deaf(answer=answer), Tell())


def test_a_worker_that_never_answers_is_given_up_with_what_was_seen_last() -> None:
    def answer(argv: tuple[str, ...]) -> Ran:
        return Ran(argv, 0, b"activating\n", b"")

    nobody = Endpoint("tcp", "127.0.0.1", 1)
    with pytest.raises(GateError, match=r"no healthy worker within 0.1 s: .*refused"):
        Gate(nobody, None, __version__, 0.1, 0.0).apply(_Deaf(answer=answer), Tell())


class _Deaf(RecordingHost):
    """A host on which nobody listens, said as a host says it."""

    def connect(self, address: str, port: int, *, timeout_s: float) -> Any:
        raise NotAnswering(f"{self.name}: {address} port {port}: refused")


def test_the_journal_is_shown_with_what_there_is_to_say_beside_it() -> None:
    said: list[str] = []

    def answer(argv: tuple[str, ...]) -> Ran:
        return Ran(argv, 0, b"one\ntwo\n", b"")

    ShowJournal("no previous release").apply(RecordingHost(answer=answer), Tell(said.append))
    assert said == [
        "x86host: journal: one", "x86host: journal: two", "x86host: no previous release"
    ]  # fmt: skip
