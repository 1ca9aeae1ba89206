"""One-line faults planted into the real rules: the simulation must find every one of them.

Each plant changes one thing that the contract asks for, and one of a few seeds has to break an
invariant (or raise) because of it. Without a plant the same seeds are sound: `test_simulation`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dspark_worker import desk
from dspark_worker import rounds as worker_rounds
from dsparkctl.client import link, rounds
from dsparkctl.client.counters import Counters
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.link import Exchange, WorkerLink
from dsparkctl.client.rounds import Answer, Rounds
from dsparkctl.client.switch import Switch
from dsparkctl.contract.codes import NEW_GEN, RESYNC
from dsparkctl.contract.records import ReqEntry
from dsparkctl.net.transport import Deadline
from dsparkctl.simulation.rows import ByteRows
from dsparkctl.simulation.run import run_seed
from dsparkctl.state import ledger, window
from dsparkctl.state.backoff import FIRST_S, Backoff
from dsparkctl.state.breaker import Breaker, State
from dsparkctl.state.ledger import Ledger, Part
from dsparkctl.state.session import ACCEPTED
from dsparkctl.state.verdict import Verdict
from dsparkctl.state.window import Window
from tests.simulation.seeds import FIXED

Wrapper = Callable[..., Any]
Plant = tuple[object, str, Callable[[Wrapper], Wrapper]]
"""An owner, the name of what it owns, and what is put in its place, made of what was there."""


def instead(value: Any) -> Callable[[Wrapper], Wrapper]:
    """A function that returns `value` whatever it is asked."""
    return lambda real: lambda *args, **kwargs: value


def idle(real: Wrapper) -> Wrapper:
    return lambda *args, **kwargs: None


# --- the ledger -----------------------------------------------------------------------------------


def rejected_rows_are_sent(real: Wrapper) -> Wrapper:
    return lambda part, n_rejected, width: real(part, 0, width)


def ring_keeps_rejected_rows(real: Wrapper) -> Wrapper:
    def keep(self: ByteRows, parts: Sequence[Part], tensors: Any, *, stage: bool) -> Any:
        found = real(self, parts, tensors, stage=stage)
        staged = self._staged
        kept = tensors._replace(sampled=[one._replace(n_rejected=0) for one in tensors.sampled])
        real(self, parts, kept, stage=False)
        self._staged = staged
        return found

    return keep


def resync_without(flag: int) -> Callable[[Wrapper], Wrapper]:
    def changed(entry: ReqEntry) -> ReqEntry:
        resyncs = entry.req_flags & RESYNC
        return entry._replace(req_flags=entry.req_flags & ~flag) if resyncs else entry

    def made(real: Wrapper) -> Wrapper:
        return lambda *args: [changed(entry) for entry in real(*args)]

    return made


def resync_of_new_rows_only(real: Wrapper) -> Wrapper:
    return lambda part, n_rejected, width: real(part._replace(resyncs=False), n_rejected, width)


def generation_moves_with_a_resync(real: Wrapper) -> Wrapper:
    def opened(self: Ledger, request: Any) -> Part:
        part: Part = real(self, request)
        page = self.pages[part.slot]
        self.pages[part.slot] = page._replace(generation=page.generation + part.resyncs)
        return part

    return opened


def new_owner_keeps_the_window(real: Wrapper) -> Wrapper:
    def opened(self: Ledger, request: Any) -> Part:
        before = self.pages[request.slot].window
        part: Part = real(self, request)
        if part.is_new:
            self.pages[part.slot] = self.pages[part.slot]._replace(window=before)
        return part

    return opened


def lo_is_not_cut(real: Wrapper) -> Wrapper:
    def extended(held: Window, first_pos: int, n_rows: int, width: int) -> Window:
        return real(held, first_pos, n_rows, 1 << 40)  # type: ignore[no-any-return]

    return extended


def lo_never_falls(real: Wrapper) -> Wrapper:
    def extended(held: Window, first_pos: int, n_rows: int, width: int) -> Window:
        new: Window = real(held, first_pos, n_rows, width)
        return Window(max(held.lo, new.lo), new.hi)

    return extended


def hi_never_falls(real: Wrapper) -> Wrapper:
    def extended(held: Window, first_pos: int, n_rows: int, width: int) -> Window:
        new: Window = real(held, first_pos, n_rows, width)
        return Window(new.lo, max(held.hi, new.hi))

    return extended


def only_errors_are_dirty(real: Wrapper) -> Wrapper:
    return lambda entries, statuses: [
        entry.slot for entry, one in zip(entries, statuses, strict=True) if one.status > 1
    ]


# --- breaker and backoff --------------------------------------------------------------------------


def cooldown_off_by(n: int) -> Callable[[Wrapper], Wrapper]:
    def made(real: Wrapper) -> Wrapper:
        def settled(self: Breaker, verdict: Verdict) -> Breaker:
            after: Breaker = real(self, verdict)
            opens = after.state is State.OPEN and verdict is Verdict.FAILURE
            return after._replace(n_silent=after.n_silent + n) if opens else after

        return settled

    return made


def failed_probe_closes(real: Wrapper) -> Wrapper:
    def settled(self: Breaker, verdict: Verdict) -> Breaker:
        if self.state is State.PROBING and verdict is Verdict.FAILURE:
            return Breaker(self.trip, self.cooldown)
        return real(self, verdict)  # type: ignore[no-any-return]

    return settled


def neutral_is_success(real: Wrapper) -> Wrapper:
    def verdict_of(entries: Any, statuses: Any) -> Verdict:
        verdict: Verdict = real(entries, statuses)
        return Verdict.SUCCESS if verdict is Verdict.NEUTRAL else verdict

    return verdict_of


def one_error_is_failure(real: Wrapper) -> Wrapper:
    def verdict_of(entries: Any, statuses: Any) -> Verdict:
        if any(status.status > 1 for status in statuses):
            return Verdict.FAILURE
        return real(entries, statuses)  # type: ignore[no-any-return]

    return verdict_of


def backoff_never_doubles(real: Wrapper) -> Wrapper:
    return lambda self, now_s: Backoff(now_s + FIRST_S, FIRST_S)


# --- the link -------------------------------------------------------------------------------------


def retried(real: Wrapper) -> Wrapper:
    def step(self: WorkerLink, build: Any, epoch: int) -> Exchange:
        exchange: Exchange = real(self, build, epoch)
        if exchange.outcome is Outcome.FRAME_ERROR:
            exchange = real(self, build, epoch)
        return exchange

    return step


def epoch_stands_still(real: Wrapper) -> Wrapper:
    def greet(self: WorkerLink, *args: Any) -> None:
        real(self, *args)
        self.epoch = min(self.epoch, 1)

    return greet


def disabled_is_forgotten(real: Wrapper) -> Wrapper:
    def disable(self: WorkerLink, *args: Any) -> None:
        real(self, *args)
        self.disabled = ""

    return disable


def never_twice_stale(real: Wrapper) -> Wrapper:
    def answered(self: WorkerLink, reply: Any) -> Exchange:
        self._was_stale = False
        return real(self, reply)  # type: ignore[no-any-return]

    return answered


def long_deadline(real: Wrapper) -> Wrapper:
    return lambda timeout_s, clock: Deadline(3 * timeout_s, clock)


# --- the round ------------------------------------------------------------------------------------


def unrefused(reason: str) -> Callable[[Wrapper], Wrapper]:
    """One of the checks of §6.3 is left out."""

    def made(real: Wrapper) -> Wrapper:
        def refusal(reply: Any, asked: Any) -> str:
            found: str = real(reply, asked)
            return "" if reason in found else found

        return refusal

    return made


def drafts_without_a_reply(real: Wrapper) -> Wrapper:
    def without(*args: Any) -> Answer:
        answer: Answer = real(*args)
        return answer._replace(draft_ids=[1] * len(answer.draft_ids))

    return without


def confidences_of_the_last_reply(real: Wrapper) -> Wrapper:
    def without(*args: Any) -> Answer:
        answer: Answer = real(*args)
        return answer._replace(confidence=[0.9] * len(answer.confidence))

    return without


def step_id_of_sent_rounds(real: Wrapper) -> Wrapper:
    def begin(self: Rounds, requests: Any) -> Any:
        begun = real(self, requests)
        self.step_id -= begun.silence is not None
        return begun

    return begin


def failure_is_not_counted(real: Wrapper) -> Wrapper:
    def fail(self: Rounds, *args: Any, **kwargs: Any) -> Answer:
        before = self.breaker
        answer: Answer = real(self, *args, **kwargs)
        self.breaker = before
        return answer

    return fail


def soils_only_the_batch(real: Wrapper) -> Wrapper:
    def fail(self: Rounds, outcome: Any, entries: Any, reason: str, soils_all: bool) -> Answer:
        return real(self, outcome, entries, reason, soils_all=False)  # type: ignore[no-any-return]

    return fail


# --- the worker -----------------------------------------------------------------------------------


def stale_seq_is_accepted(real: Wrapper) -> Wrapper:
    def judged(session: Any, bound: bool, session_id: int, seq: int) -> Any:
        verdict = real(session, bound, session_id, seq)
        return ACCEPTED if verdict.status == 5 else verdict

    return judged


def short_window_is_ok(real: Wrapper) -> Wrapper:
    def applied(slot: Any, entry: Any, bounds: Any) -> Any:
        outcome = real(slot, entry, bounds)
        return outcome._replace(status=0) if outcome.status == 1 else outcome

    return applied


PLANTS: dict[str, Plant] = {
    "rejected rows are sent": (Part, "sent", rejected_rows_are_sent),
    "the ring keeps rejected rows": (ByteRows, "keep", ring_keeps_rejected_rows),
    "NEW_GEN is missing on a resync": (Ledger, "close", resync_without(NEW_GEN)),
    "RESYNC is missing on a resync": (Ledger, "close", resync_without(RESYNC)),
    "a resync sends new rows only": (Part, "sent", resync_of_new_rows_only),
    "a resync moves the generation": (Ledger, "_open", generation_moves_with_a_resync),
    "a new owner keeps the generation": (ledger, "following", lambda real: lambda value: value),
    "a new owner keeps the window": (Ledger, "_open", new_owner_keeps_the_window),
    "rank 0's lo is not cut": (ledger, "extended", lo_is_not_cut),
    "the worker's lo is not cut": (window, "extended", lo_is_not_cut),
    "rank 0's lo never falls": (ledger, "extended", lo_never_falls),
    "the worker's lo never falls": (window, "extended", lo_never_falls),
    "rank 0 does not roll back": (ledger, "extended", hi_never_falls),
    "the worker does not roll back": (window, "extended", hi_never_falls),
    "skipped slots stay clean": (Ledger, "soil", idle),
    "nothing is dirty after a reconnect": (Ledger, "soil_all", idle),
    "slots never get clean": (Ledger, "clean", idle),
    "PARTIAL_WINDOW leaves a slot clean": (rounds, "dirty_slots", only_errors_are_dirty),
    "a timeout soils only the batch": (Rounds, "_fail", soils_only_the_batch),
    "the cooldown is one too short": (Breaker, "settled", cooldown_off_by(-1)),
    "the cooldown is one too long": (Breaker, "settled", cooldown_off_by(1)),
    "a failed probe closes": (Breaker, "settled", failed_probe_closes),
    "neutral counts as success": (rounds, "verdict_of", neutral_is_success),
    "one bad entry is a failure": (rounds, "verdict_of", one_error_is_failure),
    "failures are not counted": (Rounds, "_fail", failure_is_not_counted),
    "the backoff is ignored": (Backoff, "allows", instead(True)),
    "the backoff never doubles": (Backoff, "failed", backoff_never_doubles),
    "HELLO does not reset the backoff": (Backoff, "succeeded", lambda real: lambda self: self),
    "seq does not rise": (WorkerLink, "_next_seq", lambda real: lambda self: self.seq + 1),
    "a failed STEP is sent again": (WorkerLink, "step", retried),
    "the epoch is not counted": (WorkerLink, "_greet", epoch_stands_still),
    "a refused reply keeps the connection": (WorkerLink, "refuse", idle),
    "STALE_GENERATION renews nothing": (WorkerLink, "renew_session", idle),
    "STALE_SEQ for ever": (WorkerLink, "_answered", never_twice_stale),
    "a fatal status disables nothing": (WorkerLink, "_disable", disabled_is_forgotten),
    "the deadline is three times too long": (link, "Deadline", long_deadline),
    "the kill switch is not looked at": (Switch, "is_off", instead(False)),
    "fallback has drafts": (Rounds, "_without", drafts_without_a_reply),
    "fallback has confidences": (Rounds, "_without", confidences_of_the_last_reply),
    "step_id counts sent rounds": (Rounds, "begin", step_id_of_sent_rounds),
    "n_out is never sent": (rounds, "n_out", instead(0)),
    "sent STEPs are not counted": (Counters, "sent", idle),
    **{
        f"unrefused: {reason}": (rounds, "refusal", unrefused(reason))
        for reason in (
            "step_id",
            "generation",
            "code of §9.2",
            "of at most",
            "OK with window_rows",
            "PARTIAL_WINDOW with",
            "vocabulary",
            "expected 0 to 1",
            "finite",
            "draft id 1 where none",
            "where none is consumed",
        )
    },
    "the worker takes a stale seq": (desk, "judge_frame", stale_seq_is_accepted),
    "the worker keeps windows of an old session": (worker_rounds.Rounds, "begin_session", idle),
    "the worker calls a short window OK": (worker_rounds, "apply_entry", short_window_is_ok),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_breaks_an_invariant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, made = PLANTS[name]
    monkeypatch.setattr(owner, attribute, made(getattr(owner, attribute)))
    found = (run_seed(seed).failure for seed in FIXED)
    assert next(filter(None, found), None) is not None, f"no seed of {FIXED} noticed: {name}"
