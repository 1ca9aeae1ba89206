"""One step's drafts on every rank (§4.1, §10), on a worker in the same thread."""

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dsparkctl.client.broadcast import Alone, Drafts, Word
from dsparkctl.client.environment import OnFail, Policy, ShadowUse
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.interval import Interval
from dsparkctl.client.proposer import Choice, Proposal, Proposer, RemoteDraftingFailed
from dsparkctl.client.rows import Batch
from dsparkctl.client.shadow import ShadowReport
from dsparkctl.client.speaker import Speaker
from dsparkctl.contract.codes import EntryStatus
from dsparkctl.net.transport import TimedOut
from tests.unit.client.fakes import SLOTS, Ask, Bench, N, batch, entry_status, raising

CPU = torch.device("cpu")
CAPACITY = Choice()
RAISE = Choice(Policy.CAPACITY, OnFail.RAISE)
RESILIENCE = Choice(Policy.RESILIENCE)
SHADOW = Choice(Policy.SHADOW)
SHADOW_REMOTE = Choice(Policy.SHADOW, shadow_use=ShadowUse.REMOTE)

TIMEOUT = raising(TimedOut("no answer"))

LOCAL_ID = 55


class Local:
    """A local drafter that always says the same, and remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def propose(self) -> Drafts:
        self.calls.append("propose")
        ids = torch.full((1, N), LOCAL_ID, dtype=torch.int64)
        return Drafts(ids, torch.full((1, N), 0.25))

    def keep_context(self) -> None:
        self.calls.append("keep")


class Wire:
    """A group of two ranks in one thread: rank 1 gets what rank 0 last said."""

    def __init__(self) -> None:
        self.said: list[Tensor] = []

    def from_rank0(self, tensor: Tensor) -> Tensor:
        self.said.append(tensor.clone())
        return tensor

    def at_rank1(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(self.said[-1])


class Ranks:
    """Two ranks of one engine: rank 0 with its rounds, rank 1 without."""

    def __init__(self, choice: Choice = CAPACITY, *, trip: int = 3, cooldown: int = 4) -> None:
        is_shadow = choice.policy is Policy.SHADOW
        self.bench = Bench(want_margin=is_shadow, trip=trip, cooldown=cooldown)
        self.locals = [Local(), Local()]
        self.wire = Wire()
        first, second = (None if choice.policy is Policy.CAPACITY else x for x in self.locals)
        self.shadow = ShadowReport(N) if is_shadow else None
        rounds = self.bench.rounds
        interval = Interval(
            rounds, self.shadow, every_s=0, metrics_file=None, clock=self.bench.clock
        )
        word = Word(SLOTS, N, CPU)
        self.rank0 = Proposer(
            word,
            self.wire.from_rank0,
            choice,
            speaker=Speaker(rounds, word, choice.on_fail, interval),
            local=first,
            shadow=self.shadow,
        )
        self.rank1 = Proposer(Word(SLOTS, N, CPU), self.wire.at_rank1, choice, local=second)
        self.pos = 0

    def propose(self, n_rows: int = 1, *, wants_drafts: bool = True) -> Proposal:
        """One step of one request; both ranks come to the same."""
        step = batch(Ask("r", 0, self.pos, n_rows, needs_draft=wants_drafts))
        self.pos += n_rows
        ours = self.rank0.propose(step, wants_drafts=wants_drafts)
        theirs = self.rank1.propose(step, wants_drafts=wants_drafts)
        assert ours.outcome == theirs.outcome
        assert torch.equal(ours.draft_ids, theirs.draft_ids)
        assert torch.equal(ours.confidence, theirs.confidence)
        assert self.locals[0].calls == self.locals[1].calls
        return ours

    def fails(self) -> list[BaseException]:
        """One step; what each rank raises."""
        step = batch(Ask("r", 0, self.pos, 1))
        self.pos += 1
        found: list[BaseException] = []
        for rank in (self.rank0, self.rank1):
            with pytest.raises(RuntimeError) as caught:
                rank.propose(step)
            found.append(caught.value)
        return found


def ids(proposal: Proposal) -> list[int]:
    found: list[int] = proposal.draft_ids.flatten().tolist()
    return found


def test_both_ranks_get_the_workers_drafts() -> None:
    proposal = Ranks().propose(3)
    assert proposal.outcome is Outcome.DRAFTED
    assert ids(proposal) == [4, 5, 6]
    assert proposal.confidence.tolist() == [[0.5] * N]


def test_a_failed_round_gives_zeros_and_never_the_last_rounds_values() -> None:
    """§10: capacity; confidences 0.0."""
    ranks = Ranks()
    ranks.propose()
    ranks.bench.spoil(TIMEOUT)
    proposal = ranks.propose()
    assert proposal.outcome is Outcome.TIMEOUT
    assert not proposal.draft_ids.any()
    assert not proposal.confidence.any()


# --- policies -------------------------------------------------------------------------------------


def test_resilience_keeps_both_local_drafters_in_step_and_uses_them_when_a_round_fails() -> None:
    ranks = Ranks(RESILIENCE)
    ranks.propose()
    ranks.bench.spoil(TIMEOUT)
    assert ids(ranks.propose()) == [LOCAL_ID] * N
    assert ids(ranks.propose()) == [LOCAL_ID] * N  # backoff: no connection
    ranks.bench.clock.wait(1.0)
    assert ids(ranks.propose()) != [LOCAL_ID] * N
    assert ranks.locals[0].calls == ["keep", "propose", "propose", "keep"]


def test_shadow_uses_local_drafts_and_compares() -> None:
    ranks = Ranks(SHADOW)
    assert ids(ranks.propose()) == [LOCAL_ID] * N
    ranks.bench.spoil(TIMEOUT)
    assert ids(ranks.propose()) == [LOCAL_ID] * N
    assert ranks.shadow is not None
    found = ranks.shadow.snapshot()
    assert (found["entries_compared"], found["entries_not_compared"]) == (1, 1)
    assert found["first_mismatch"] == [1, 0, 0, 0]
    assert found["margin"]["n"] == 1


def test_shadow_compares_no_entry_that_wanted_no_drafts() -> None:
    ranks = Ranks(SHADOW)
    step = batch(Ask("r", 0, 0, 2, needs_draft=False))
    for rank in (ranks.rank0, ranks.rank1):
        rank.propose(step)
    assert ranks.shadow is not None
    found = ranks.shadow.snapshot()
    assert (found["entries_compared"], found["entries_not_compared"]) == (0, 0)


def test_shadow_use_remote_gives_the_workers_drafts() -> None:
    ranks = Ranks(SHADOW_REMOTE)
    assert ids(ranks.propose()) == [2, 3, 4]
    assert ranks.locals[0].calls == ["propose"]


@pytest.mark.parametrize("choice", [RESILIENCE, SHADOW])
def test_no_local_drafter_drafts_when_the_engine_verifies_nothing_next(choice: Choice) -> None:
    ranks = Ranks(choice)
    ranks.bench.spoil(TIMEOUT)
    ranks.propose(wants_drafts=False)
    assert ranks.locals[0].calls == ["keep"]


@pytest.mark.parametrize("policy", Policy)
def test_a_policy_with_the_wrong_number_of_drafters_is_refused(policy: Policy) -> None:
    local = Local() if policy is Policy.CAPACITY else None
    with pytest.raises(ValueError, match="local drafter"):
        Proposer(Word(SLOTS, N, CPU), Alone(), Choice(policy), local=local)


# --- ON_FAIL=raise --------------------------------------------------------------------------------


def test_raise_ends_every_rank_after_the_broadcast() -> None:
    """Field report 10: never one rank alone, or the other waits for ever."""
    ranks = Ranks(RAISE)
    ranks.propose()
    ranks.bench.spoil(TIMEOUT)
    ours, theirs = ranks.fails()
    assert isinstance(ours, RemoteDraftingFailed)
    assert isinstance(theirs, RemoteDraftingFailed)
    assert "TIMEOUT: no answer" in str(ours)
    assert "rank 0 failed" in str(theirs)
    assert Word.outcome(ranks.wire.said[-1]) is Outcome.RAISED


def test_raise_counts_entry_errors_of_every_request_as_a_failure() -> None:
    ranks = Ranks(RAISE)
    ranks.bench.spoil(entry_status(EntryStatus.INTERNAL))
    assert "ENTRY_ERRORS" in str(ranks.fails()[0])


def test_raise_goes_on_with_prefill_and_when_switched_off() -> None:
    ranks = Ranks(RAISE)
    step = batch(Ask("r", 0, 0, 2, needs_draft=False))
    assert ranks.rank0.propose(step).outcome is Outcome.APPENDED


# --- faults of our own ----------------------------------------------------------------------------


def broken(*errors: Exception) -> Callable[[], None]:
    rest = [*errors]

    def fail() -> None:
        if rest:
            raise rest.pop(0)

    return fail


@pytest.mark.parametrize("where", ["keep", "message"])
def test_a_fault_of_our_own_is_a_round_without_drafts(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Drafts can only change speed; afterwards every window is built anew."""
    ranks = Ranks()
    ranks.propose(5)
    real = getattr(ranks.bench.rows, where)
    fail = broken(ValueError("misshapen"))

    def spoilt(*args: object, **given: object) -> object:
        fail()
        return real(*args, **given)

    monkeypatch.setattr(ranks.bench.rows, where, spoilt)
    with caplog.at_level(logging.ERROR):
        proposal = ranks.propose()
    assert proposal.outcome is Outcome.OWN_FAULT
    assert not proposal.draft_ids.any()
    assert "misshapen" in caplog.text
    assert "Traceback" in caplog.text
    assert ranks.bench.counts["fallback_own_fault"] == 1
    assert ranks.bench.rounds.breaker.n_failed == 1

    ranks.bench.clock.wait(1.0)
    assert ranks.propose().outcome is Outcome.DRAFTED
    assert ranks.bench.worker.held(0) == ranks.bench.owned(0)
    assert [*ranks.bench.owned(0)] == [6], "nothing from before the fault is trusted"


def test_the_same_fault_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ranks = Ranks()
    monkeypatch.setattr(ranks.bench.rounds, "run", lambda _: broken(ValueError("x"))())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            ranks.propose()
    assert caplog.text.count("Traceback") == 1
    assert ranks.bench.counts["fallback_own_fault"] == 3


def test_under_raise_a_fault_of_our_own_ends_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(RAISE)
    monkeypatch.setattr(ranks.bench.rounds, "run", lambda _: broken(ValueError("x"))())
    ours, theirs = ranks.fails()
    assert "OWN_FAULT: ValueError: x" in str(ours)
    assert isinstance(theirs, RemoteDraftingFailed)


def test_a_cuda_error_is_raised_after_the_other_ranks_were_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks()
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(ranks.bench.rounds, "run", lambda _: broken(error)())
    ours, theirs = ranks.fails()
    assert ours is error
    assert isinstance(theirs, RemoteDraftingFailed)
    assert Word.outcome(ranks.wire.said[-1]) is Outcome.RAISED


def test_too_many_requests_are_refused_on_every_rank_before_anything_is_sent() -> None:
    ranks = Ranks()
    many = Batch([*batch(Ask("r", 0, 0, 1)).requests] * (SLOTS + 1), None)
    for rank in (ranks.rank0, ranks.rank1):
        with pytest.raises(ValueError, match="5 requests"):
            rank.propose(many)
    assert not ranks.wire.said
