"""Rounds in two threads (§4.2): the same bytes in the same order, and a gate that always opens."""

import random
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

from dsparkctl.client.broadcast import Alone, Word
from dsparkctl.client.environment import OnFail, Policy
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.interval import Interval
from dsparkctl.client.link import WorkerLink
from dsparkctl.client.proposer import Choice, Proposer, RemoteDraftingFailed
from dsparkctl.client.proxy import (
    Gate,
    ProxyLost,
    ProxySpeaker,
    ProxyThread,
    StreamGate,
    ThreadGate,
)
from dsparkctl.client.rounds import Rounds
from dsparkctl.client.rows import Batch
from dsparkctl.client.speaker import Speaker
from dsparkctl.client.staging import StagedRows
from dsparkctl.client.switch import Switch
from dsparkctl.contract.codes import EntryStatus, FrameStatus, Op
from dsparkctl.contract.layout import Buffer
from dsparkctl.net.transport import Deadline, TimedOut
from dsparkctl.state.breaker import Breaker
from dsparkctl.state.ledger import Scheduled
from dsparkctl.state.n_out import Caps
from tests.unit.client import tiny
from tests.unit.client.fakes import (
    HELLO,
    SLOTS,
    Clock,
    FakeDial,
    FakeLink,
    GoodWorker,
    N,
    entry_status,
    raising,
    status,
)

CPU = torch.device("cpu")
WAIT_S = 20.0


class Wiretap(FakeDial):
    """Keeps every message as it went out."""

    def __init__(self, worker: GoodWorker) -> None:
        super().__init__(worker)
        self.messages: list[bytes] = []

    def __call__(self, deadline: Deadline) -> FakeLink:
        link = super().__call__(deadline)
        exchange = link.exchange

        def tapped(parts: Sequence[Buffer], deadline: Deadline) -> memoryview:
            self.messages.append(b"".join(bytes(part) for part in parts))
            return exchange(parts, deadline)

        link.exchange = tapped  # type: ignore[method-assign]
        return link


class Rig:
    """Rank 0 alone with real tensors, in one thread or in two."""

    def __init__(self, *, is_async: bool, on_fail: OnFail = OnFail.FALLBACK) -> None:
        self.clock = Clock()
        self.dial = Wiretap(GoodWorker())
        link = WorkerLink(HELLO, self.dial, timeout_s=0.05, clock=self.clock, new_session=lambda: 7)
        self.rows = StagedRows(HELLO, CPU)
        self.rounds = Rounds(
            link,
            self.rows,
            Breaker(3, 4),
            switch=Switch(None),
            caps=Caps((), ""),
            clock=self.clock,
        )
        interval = Interval(self.rounds, None, every_s=0, metrics_file=None, clock=self.clock)
        word = Word(SLOTS, N, CPU)
        parts = (self.rounds, word, on_fail, interval)
        self.gate = ThreadGate()
        self.speaker = (
            ProxySpeaker(*parts, rows=self.rows, gate=self.gate) if is_async else Speaker(*parts)
        )
        self.proposer = Proposer(
            word, Alone(), Choice(Policy.CAPACITY, on_fail), speaker=self.speaker
        )
        self.rng = random.Random(1)
        self.pos = [0] * SLOTS

    def batch(self, *slots: int) -> Batch:
        """A prefill of 5 rows, then decode steps of 3 rows with one rejected."""
        requests = []
        for i, slot in enumerate(slots):
            is_first = self.pos[slot] == 0
            n_rows, k = (5, 0) if is_first else (3, 2)
            requests.append(Scheduled(f"r{slot}", slot, 5 * i, self.pos[slot], n_rows, k))
            self.pos[slot] += 5 if is_first else 2
        rejected = [int(request.k_window > 0) for request in requests]
        step = tiny.step(self.rng, requests, rejected, [1] * len(slots), n_taps=1)
        return Batch(step.requests, step.tensors)

    def propose(self, *slots: int) -> tuple[Outcome | None, list[int], list[float]]:
        outcome, ids, confidence = self.proposer.propose(self.batch(*slots or (0,)))
        return outcome, ids.flatten().tolist(), confidence.flatten().tolist()


@contextmanager
def rig(*, is_async: bool = True, on_fail: OnFail = OnFail.FALLBACK) -> Iterator[Rig]:
    made = Rig(is_async=is_async, on_fail=on_fail)
    yield made
    made.proposer.close()


def played(is_async: bool) -> tuple[list[bytes], list[Any], dict[str, Any]]:
    """A script with every kind of round: messages, answers, counts."""
    with rig(is_async=is_async) as made:
        steps = made.dial.faults[Op.STEP]
        answers = []
        for i in range(40):
            if i == 5:
                steps.append(raising(TimedOut("late")))
            if i in (8, 12, 13, 14):
                steps.append(status(FrameStatus.INTERNAL))
            if i == 21:
                steps.append(entry_status(EntryStatus.BAD_ENTRY, 0))
            if i == 23:
                steps.append(lambda reply: reply[:-1])
            made.clock.wait(0.5)
            answers.append(made.propose(*sorted(made.rng.sample(range(SLOTS), 1 + i % SLOTS))))
        counts = made.rounds.counters.snapshot()
        return made.dial.messages, answers, counts


def test_both_modes_send_the_same_bytes_and_come_to_the_same() -> None:
    """§4.2: the same messages, the same order."""
    ours, theirs = played(True), played(False)
    assert ours == theirs
    messages, answers, _ = ours
    assert len(messages) > 30
    outcomes = {outcome for outcome, _, _ in answers}
    assert outcomes >= {
        Outcome.DRAFTED,
        Outcome.TIMEOUT,
        Outcome.FRAME_ERROR,
        Outcome.COOLDOWN,
        Outcome.BAD_REPLY,
    }


def test_the_exchange_runs_in_the_proxys_thread_and_connecting_in_the_engines() -> None:
    names: list[str] = []

    def noted(reply: bytes) -> bytes:
        names.append(threading.current_thread().name)
        return reply

    with rig() as made:
        made.dial.takes_s = lambda: names.append(threading.current_thread().name)
        made.dial.faults[Op.STEP] += [noted] * 2
        made.propose()
        made.propose()
    main = threading.current_thread().name
    assert names == [main, "dspark-proxy", "dspark-proxy"]


def test_a_round_begins_only_when_the_one_before_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Round n + 1 joins round n before it opens the ledger."""
    order: list[str] = []
    with rig() as made:
        made.propose()
        begin, end = made.rounds.begin, made.rounds.end
        made.gate.hold = lambda n: None  # type: ignore[method-assign]  # as on a device
        may_end = threading.Event()

        def noted_begin(*args: Any) -> Any:
            order.append("begin")
            return begin(*args)

        def noted_end(*args: Any) -> Any:
            assert may_end.wait(WAIT_S)
            order.append("end")
            return end(*args)

        monkeypatch.setattr(made.rounds, "begin", noted_begin)
        monkeypatch.setattr(made.rounds, "end", noted_end)
        made.speaker.ask(made.batch(0))
        assert order == ["begin"], "the engine's thread does not wait"
        threading.Timer(0.05, may_end.set).start()
        made.speaker.ask(made.batch(0))
    assert order == ["begin", "end", "begin", "end"]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["end", "packed", "landed"])
def test_the_gate_opens_on_zeros_whatever_breaks_in_the_thread(
    error: BaseException, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the engine's stream would wait for ever."""
    with rig() as made:
        assert made.propose()[0] is Outcome.DRAFTED
        owner = {"end": made.rounds, "packed": made.speaker, "landed": made.rows}[where]

        def breaks(*args: object) -> object:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(owner, where, breaks)
            outcome, ids, confidence = made.propose()
        assert outcome is Outcome.OWN_FAULT
        assert not any(ids)
        assert not any(confidence)
        made.clock.wait(1.0)
        assert made.propose()[0] in (Outcome.DRAFTED, Outcome.NO_CONNECTION)
        made.clock.wait(1.0)
        assert made.propose()[0] is Outcome.DRAFTED
        lo, hi = made.rounds.ledger.pages[0].window
        held = made.dial.worker.held(0)
        assert [*held] == [*range(lo, hi + 1)]


@pytest.mark.parametrize("where", ["begin", "launch"])
def test_a_fault_before_the_thread_is_asked_is_a_round_without_drafts(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig() as made:
        made.propose()

        def breaks(*args: object, **given: object) -> object:
            raise ValueError("x")

        with monkeypatch.context() as patch:
            patch.setattr(made.rounds if where == "begin" else made.rows, where, breaks)
            assert made.propose()[0] is Outcome.OWN_FAULT
        made.clock.wait(1.0)
        assert made.propose()[0] is Outcome.DRAFTED


def test_a_round_is_done_at_once_when_the_thread_is_gone() -> None:
    with rig() as made:
        made.propose()
        assert isinstance(made.speaker, ProxySpeaker)
        made.speaker._thread.close()
        assert made.propose()[0] is Outcome.DRAFTED


def test_raise_ends_the_engine_in_two_threads_too() -> None:
    with rig(on_fail=OnFail.RAISE) as made:
        made.dial.faults[Op.STEP].append(raising(TimedOut("late")))
        with pytest.raises(RemoteDraftingFailed, match="TIMEOUT: late"):
            made.propose()


def test_what_is_told_between_rounds_comes_after_the_gate() -> None:
    order: list[str] = []

    class Noted(ThreadGate):
        def open(self, n: int) -> None:
            order.append(f"open {n}")
            super().open(n)

    gate = Noted()
    thread = ProxyThread(gate, lambda: order.append("rest"))
    thread.post(lambda: order.append("job"), 1)
    thread.join()
    thread.close()
    assert order == ["job", "open 1", "rest"]


def test_a_thread_that_never_ends_its_round_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsparkctl.client.proxy._JOIN_S", 0.05)
    may_end = threading.Event()
    thread = ProxyThread(ThreadGate(), lambda: None)

    def job() -> None:
        may_end.wait(WAIT_S)

    thread.post(job, 1)
    with pytest.raises(RuntimeError, match="has not ended its round"):
        thread.join()
    may_end.set()
    thread.close()


def test_a_round_that_cannot_join_the_last_one_ends_every_rank_and_no_rank_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """§4.1: the others wait for the tensor, so the end must come in it."""
    with rig() as one:
        one.propose(0)
        assert isinstance(one.speaker, ProxySpeaker)

        def lost() -> None:
            raise ProxyLost("still at it")

        monkeypatch.setattr(one.speaker._thread, "join", lost)
        tensor = one.speaker.ask(one.batch(0))
        assert Word.outcome(tensor) is Outcome.RAISED
        monkeypatch.undo()


# --- CUDA, as far as it goes without one ----------------------------------------------------------


class Driver(ModuleType):
    """`cuda.bindings.driver`, with a log instead of a device."""

    def __init__(self) -> None:
        super().__init__("cuda.bindings.driver")
        self.calls: list[tuple[Any, ...]] = []
        self.result = "success"
        self.CUdeviceptr = lambda address: ("address", address)
        self.CUstream = lambda handle: ("stream", handle)
        self.CUresult = type("CUresult", (), {"CUDA_SUCCESS": "success"})
        self.CUstreamWaitValue_flags = type("W", (), {"CU_STREAM_WAIT_VALUE_GEQ": "geq"})
        self.CUstreamWriteValue_flags = type("X", (), {"CU_STREAM_WRITE_VALUE_DEFAULT": "default"})

    def cuStreamWaitValue32(self, *args: Any) -> tuple[str]:  # noqa: N802 -- CUDA's name
        self.calls.append(("wait", *args))
        return (self.result,)

    def cuStreamWriteValue32(self, *args: Any) -> tuple[str]:  # noqa: N802
        self.calls.append(("write", *args))
        return (self.result,)


class Stream:
    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", ModuleType("cuda.bindings"))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", made)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream(22))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream(11))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: made.calls.append(("synchronize",)))
    return made


def test_the_engines_stream_waits_and_the_side_stream_writes(driver: Driver) -> None:
    gate: Gate = StreamGate(CPU)
    assert [call[0] for call in driver.calls] == ["wait", "write", "synchronize"]
    driver.calls.clear()
    gate.hold((1 << 32) + 5)
    gate.open((1 << 32) + 5)
    (waits, *waited), (writes, *written) = driver.calls
    assert (waits, waited[0], waited[2:]) == ("wait", ("stream", 11), [5, "geq"])
    assert (writes, written[0], written[2:]) == ("write", ("stream", 22), [5, "default"])
    assert waited[1] == written[1]


def test_a_device_that_cannot_wait_is_found_at_start(driver: Driver) -> None:
    driver.result = "not supported"
    with pytest.raises(RuntimeError, match="cuStreamWaitValue32: not supported"):
        StreamGate(CPU)
