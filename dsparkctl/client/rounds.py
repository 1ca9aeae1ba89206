"""The round (§4.2): one engine step's exchange with the worker, sent or not.

`Rounds.run` reads top to bottom as the contract does. It decides nothing that a rule of
`dsparkctl.state` decides, moves no byte and no tensor itself, and never raises for what a worker or
a network does: the engine gets drafts, or zeros and the reason.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from dsparkctl.client.counters import Counters
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.link import WorkerLink
from dsparkctl.client.rows import Batch, Rows
from dsparkctl.client.switch import Switch
from dsparkctl.contract.codes import NEED_DRAFT, WANT_MARGIN, EntryStatus
from dsparkctl.contract.layout import Buffer
from dsparkctl.contract.messages import StepReply, step_head
from dsparkctl.contract.records import ReqEntry
from dsparkctl.state.breaker import Breaker, State
from dsparkctl.state.ledger import Ledger, Part, Sampled, Scheduled
from dsparkctl.state.n_out import Caps, n_out
from dsparkctl.state.reply import Asked, n_consumed, refusal
from dsparkctl.state.verdict import Verdict, dirty_slots, verdict_of
from dsparkctl.state.window import EMPTY

log = logging.getLogger(__name__)

_SAY_AGAIN_S: Final = 10.0
"""A bad entry is logged, and then no other one for so long."""


class Answer(NamedTuple):
    """What the engine gets of a round. The arrays hold N values for each request in turn."""

    outcome: Outcome
    draft_ids: Sequence[int]
    confidence: Sequence[float]
    """Zeros wherever no draft is (§10), never those of an earlier round."""
    margin: Sequence[float] | None
    n_drafts: Sequence[int | None]
    """How many drafts each request got; None for those that wanted none."""
    reason: str
    """Why there are no drafts, for a person; empty when there are."""


class Begun(NamedTuple):
    """A round before the device has answered."""

    requests: Sequence[Scheduled]
    parts: Sequence[Part]
    silence: Outcome | None
    """Why nothing will be sent, or None: then the rows have to be staged."""


class Rounds:
    """Rank 0's rounds. `clock` counts seconds; `caps` says n_out by the number of requests (§6.3).

    `want_margin` asks for margins where the worker can send them (the shadow policy's report).
    """

    def __init__(
        self,
        link: WorkerLink,
        rows: Rows[Any],
        breaker: Breaker,
        *,
        switch: Switch,
        caps: Caps,
        clock: Callable[[], float],
        want_margin: bool = False,
    ) -> None:
        self.breaker = breaker
        self.link = link
        self.step_id = 0
        """Engine rounds, sent or not (C9)."""
        terms = link.hello
        self.counters = Counters(terms.num_spec)
        self.ledger = Ledger(terms.max_slots, terms.window)
        self._rows = rows
        self._switch = switch
        self._caps = caps
        self._clock = clock
        self._want_margin = want_margin
        self._epoch = link.epoch
        self._bad_at_s = float("-inf")
        self._trouble = ""
        self._last_failure = ""
        """Of the last failed attempt: what and why."""

    def run(self, batch: Batch) -> Answer:
        """One engine step, top to bottom."""
        begun = self.begin(batch.requests)
        sampled = self._rows.keep(begun.parts, batch.tensors, stage=begun.silence is None)
        return self.end(begun, sampled)

    def begin(self, requests: Sequence[Scheduled]) -> Begun:
        """What is settled before the device is asked; the round before has ended."""
        self.step_id += 1
        self.counters.began()
        silence = self._silence()
        return Begun(requests, self.ledger.open(requests), silence)

    def end(self, begun: Begun, sampled: Sequence[Sampled]) -> Answer:
        """What is settled once the device has said what it knew."""
        requests, parts, silence = begun
        entries = self.ledger.close(parts, sampled, n_out(self._caps, len(parts)))
        self.counters.verified(requests, sampled)
        if silence is not None or not entries:
            return self._skip(silence or Outcome.APPENDED, entries)

        started_s = self._clock()
        exchange = self.link.step(
            lambda seq, session: self._message(seq, session, entries), self._epoch
        )
        if exchange.outcome is Outcome.NEWER_CONNECTION:
            return self._skip(exchange.outcome, entries, exchange.reason)
        self.counters.sent(entries, (self._clock() - started_s) * 1e6)
        reply = exchange.reply
        if reply is None:
            return self._fail(exchange.outcome, entries, exchange.reason, exchange.soils_all)
        if reason := refusal(reply, self._asked(entries)):
            self.link.refuse(reason)
            return self._fail(Outcome.BAD_REPLY, entries, reason, soils_all=True)
        return self._settle(reply, entries)

    def _silence(self) -> Outcome | None:
        """Why this round sends nothing, or None. Connecting goes on while the breaker is open."""
        self.breaker, may_send = self.breaker.begun()
        if self._is_switched_off():
            return Outcome.SWITCHED_OFF
        is_ready = self.link.ready()
        if self.link.epoch != self._epoch:
            # Whatever the worker held before this HELLO is nothing to build on (§7.4).
            self._epoch = self.link.epoch
            self.ledger.soil_all()
        if self.link.disabled:
            return Outcome.DISABLED
        if not may_send:
            return Outcome.COOLDOWN
        return None if is_ready else Outcome.NO_CONNECTION

    def _is_switched_off(self) -> bool:
        is_off = self._switch.is_off(self._clock())
        if self._switch.trouble != self._trouble:
            self._trouble = self._switch.trouble
            log.warning("the switch file: %s", self._trouble or "it can be looked at again")
        return is_off

    def _message(self, seq: int, session: int, entries: Sequence[ReqEntry]) -> Sequence[Buffer]:
        want_margin = self._want_margin and self.link.has_margin  # R31
        head = step_head(
            seq=seq,
            session=session,
            step_id=self.step_id,
            step_flags=WANT_MARGIN if want_margin else 0,
            row_bytes=self.link.hello.row_bytes,
            entries=entries,
        )
        return [self._rows.message(head, sum(entry.n_rows for entry in entries))]

    def _asked(self, entries: Sequence[ReqEntry]) -> Asked:
        terms = self.link.hello
        return Asked(self.step_id, entries, terms.num_spec, terms.window, terms.vocab_size)

    def fault(self, requests: Sequence[Scheduled], reason: str) -> Answer:
        """This round broke off by a fault of our own: nobody knows what ring and worker hold."""
        self.link.drop(reason)
        self._last_failure = f"{Outcome.OWN_FAULT.name}: {reason}"
        self.ledger.pages[:] = [
            page._replace(window=EMPTY, is_dirty=True) for page in self.ledger.pages
        ]
        if self.breaker.state is not State.OPEN:  # a silent round is no attempt (§10)
            self.breaker = self.breaker.settled(Verdict.FAILURE)
        self.counters.ended(Outcome.OWN_FAULT)
        return self._without(Outcome.OWN_FAULT, [0] * len(requests), reason)

    # --- how a round ends -------------------------------------------------------------------------

    def _settle(self, reply: StepReply, entries: Sequence[ReqEntry]) -> Answer:
        """An accepted reply: who is in step with the worker again, and who is not (§9.2)."""
        dirty = dirty_slots(entries, reply.statuses)
        self.ledger.clean(entry.slot for entry in entries)
        self.ledger.soil(dirty)
        self.counters.answered(entries, reply.statuses)
        for entry, status in zip(entries, reply.statuses, strict=True):
            if status.status == EntryStatus.BAD_ENTRY:
                self._say_bad(entry)
            elif status.status == EntryStatus.STALE_GENERATION:
                self.link.renew_session()
        verdict = verdict_of(entries, reply.statuses)
        self.breaker = self.breaker.settled(verdict)
        outcome = _OUTCOMES[verdict]
        self.counters.ended(outcome)
        reason = ""
        if verdict is Verdict.FAILURE:
            reason = "every request got an error"
            self._last_failure = f"{outcome.name}: {reason}"
        n_drafts = [
            n_consumed(entry, status, self.link.hello.num_spec) if _wants(entry) else None
            for entry, status in zip(entries, reply.statuses, strict=True)
        ]
        return Answer(outcome, reply.draft_ids, reply.confidence, reply.margin, n_drafts, reason)

    def _say_bad(self, entry: ReqEntry) -> None:
        """§9.2: log the entry; one of many, for a worker that finds each one bad."""
        now_s = self._clock()
        if now_s >= self._bad_at_s + _SAY_AGAIN_S:
            self._bad_at_s = now_s
            log.warning("the worker found this entry bad: %s", entry)

    def _fail(
        self, outcome: Outcome, entries: Sequence[ReqEntry], reason: str, soils_all: bool
    ) -> Answer:
        """A failed attempt: nobody knows what the worker applied (§7.4). Never a retry (§7.5)."""
        if outcome is Outcome.BAD_REPLY:
            self.counters.last_bad_reply = reason
        if soils_all:
            self.ledger.soil_all()
        self._last_failure = f"{outcome.name}: {reason}"
        self.breaker = self.breaker.settled(Verdict.FAILURE)
        return self._skip(outcome, entries, reason)

    def _skip(self, outcome: Outcome, entries: Sequence[ReqEntry], reason: str = "") -> Answer:
        """No draft of this round; its rows did not arrive, or nobody knows whether they did."""
        self.ledger.soil(entry.slot for entry in entries)
        self.counters.ended(outcome)
        reason = reason or self._reason(outcome)
        return self._without(outcome, [0 if _wants(entry) else None for entry in entries], reason)

    def _reason(self, outcome: Outcome) -> str:
        match outcome:
            case Outcome.SWITCHED_OFF:
                return "the switch file is there"
            case Outcome.COOLDOWN:
                return f"the breaker is open; at last {self._last_failure}"
            case Outcome.DISABLED:
                return self.link.disabled
            case Outcome.NO_CONNECTION:
                return self.link.last_error
        return ""

    def _without(self, outcome: Outcome, n_drafts: Sequence[int | None], reason: str) -> Answer:
        n = len(n_drafts) * self.link.hello.num_spec
        return Answer(outcome, [0] * n, [0.0] * n, None, n_drafts, reason)


def _wants(entry: ReqEntry) -> bool:
    return bool(entry.req_flags & NEED_DRAFT)


_OUTCOMES: Final = {
    Verdict.SUCCESS: Outcome.DRAFTED,
    Verdict.NEUTRAL: Outcome.APPENDED,
    Verdict.FAILURE: Outcome.ENTRY_ERRORS,
}
