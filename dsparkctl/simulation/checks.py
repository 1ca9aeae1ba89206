"""The invariants, held against every round of one life of the Spark.

Decides what must be true, from the trace, the engine's own knowledge and naive recounts. It reads
the client's and the worker's state only to compare it. The first thing that is not true is raised.
"""

from collections import Counter
from collections.abc import Sequence

from dsparkctl.client.fallback import Outcome
from dsparkctl.client.rounds import Answer
from dsparkctl.net.transport import TimedOut
from dsparkctl.simulation import judge, sides
from dsparkctl.simulation.engine import Step
from dsparkctl.simulation.invariant import InvariantBroken, require
from dsparkctl.simulation.judge import HEADER, Entry, Kind, Ruling
from dsparkctl.simulation.links import Event, Seen
from dsparkctl.simulation.network import Network
from dsparkctl.simulation.recount import BackoffRecount, BreakerRecount, SlotRecount
from dsparkctl.simulation.spark import Spark
from dsparkctl.simulation.world import Terms

_EPS_S = 1e-9
LOOK_S = 1.0
"""The switch file is looked at once a second."""

_NEW_GEN, _NEED_DRAFT, _RESYNC = 1, 2, 4
_STATUS_COUNTERS = ("", "partial_windows", "stale_generation", "bad_entries", "internal_entries")


class Checker:
    """One life of the Spark: from its start to its restart."""

    def __init__(self, terms: Terms, spark: Spark, network: Network) -> None:
        self.breaker = BreakerRecount(terms.trip, terms.cooldown)
        self.backoff = BackoffRecount()
        self.slots = [SlotRecount(terms.first_generation) for _ in range(terms.max_slots)]
        self.is_disabled = False
        self.n_round = 0
        """Engine rounds of this life."""
        self._terms = terms
        self._spark = spark
        self._network = network
        self._counts: Counter[str] = Counter()
        self._has_link = False
        self._must_greet = True
        self._must_renew = False
        self._was_stale = False
        """The last STEP reply was STALE_SEQ: another one needs a new session."""
        self._session = spark.link.session
        self._seq = 0

    # --- a round ----------------------------------------------------------------------------------

    def round_done(
        self, step: Step, answer: Answer, trace: Sequence[Event], started_s: float, off_for_s: float
    ) -> None:
        """Everything that holds after a round.

        `off_for_s` is how long the switch file has been there before it, negative: been away.
        """
        self.n_round += 1
        self._counts["rounds"] += 1
        took_s = self._network.clock.now_s - started_s
        budget_s = self._terms.timeout_s + max(self._terms.timeout_s, 0.25)
        require(took_s <= budget_s + _EPS_S, "a round ends in time", took_s)
        is_open = self.breaker.is_open(self.n_round)
        waits = not self._has_link and started_s < self.backoff.next_at_s + _EPS_S
        has_trouble = False
        sent: Event | None = None
        for event in trace:
            require(sent is None or event.seen is Seen.ENDED, "no STEP is ever retried", event.seen)
            if event.seen is Seen.ASKED and event.request[6] == 2:
                sent = event
            else:
                has_trouble |= self._connected(event)
            self._end(event)
        for scheduled in step.scheduled:
            self.slots[scheduled.slot].taken_by(scheduled.request_id)
        if sent is None:
            excused = waits or has_trouble or not step.requests
            self._silent(step, answer, excused, is_open, off_for_s)
        else:
            require(not is_open, "the breaker keeps silent", self.n_round)
            require(off_for_s < LOOK_S, "the switch keeps silent")
            self._sent(step, answer, sent)
        sides.same_book(self.slots, self._spark)
        sides.same_breaker(self.breaker, self.n_round, self._spark)
        sides.same_rings(step, self._spark)
        sides.same_windows(self._session, self._spark, self._network)

    def _connected(self, event: Event) -> bool:
        """Connecting and HELLO; whether it went wrong."""
        require(not self.is_disabled or event.seen is Seen.ENDED, "disabled is for good", event)
        match event.seen:
            case Seen.DIAL:
                early_s = self.backoff.next_at_s - event.at_s
                require(early_s <= _EPS_S, "the backoff is kept", early_s)
                self._has_link = self._must_greet = True
                return False
            case Seen.ASKED:
                return not self._greeted(event)
        return True

    def _end(self, event: Event) -> None:
        if event.seen in (Seen.ENDED, Seen.DIAL_FAILED):
            self._has_link = False
            self.backoff.ended(event.at_s)

    def _greeted(self, event: Event) -> bool:
        self._numbered(event.request)
        if event.reply is None:
            return False
        ruling = judge.hello_ruling(event.request, event.reply, self._terms)
        if ruling is Kind.FATAL:
            self.is_disabled = True
        if ruling is not Kind.ACCEPTED:
            return False
        self.backoff.greeted()
        self._must_greet = False
        for slot in self.slots:
            slot.is_dirty = True
        return True

    def _numbered(self, request: bytes) -> None:
        """C8: +1 for each message; a new session only where §9.2 asks for one, and at 1 again."""
        fields = HEADER.unpack_from(request)
        seq, session = fields[3], fields[4]
        if self._must_renew:
            require(session not in (0, self._session), "the session is renewed", session)
            self._session, self._seq, self._must_renew = session, 0, False
        require(session == self._session, "the session lasts", session)
        require(seq == self._seq + 1, "seq rises", seq)
        self._seq = seq

    # --- a STEP -----------------------------------------------------------------------------------

    def _sent(self, step: Step, answer: Answer, sent: Event) -> None:
        require(not self.is_disabled, "disabled is for good", "a STEP was sent")
        require(not self._must_greet, "HELLO comes before STEP")
        self._numbered(sent.request)
        asked = judge.asked(sent.request)
        self._entries(step, asked)
        self._counts["steps_sent"] += 1
        self._counts["rows_sent"] += sum(entry[6] for entry in asked.entries)
        self._counts["resyncs"] += sum(entry[1] >> 2 & 1 for entry in asked.entries)
        ruling = None
        if sent.reply is not None:
            ruling = judge.step_ruling(sent.request, asked, sent.reply, self._terms)
        if ruling is not None and ruling.kind is Kind.ACCEPTED:
            self._accepted(asked.entries, ruling, answer)
        else:
            self._failed(asked.entries, sent, ruling, answer)
        if sent.reply is not None and judge.answers(sent.request, sent.reply):
            self._was_stale = ruling is not None and ruling.statuses == [5]

    def _entries(self, step: Step, asked: judge.Asked) -> None:
        """The STEP says what the engine knows, and re-sends what is dirty, and only that."""
        require(asked.step_id == self.n_round, "step_id counts engine rounds", asked.step_id)
        require(len(asked.entries) == len(step.requests), "every request has its entry")
        at, n_out, width = 0, self._n_out(len(step.requests)), self._terms.window
        for entry, request, scheduled, sampled in zip(
            asked.entries, step.requests, step.scheduled, step.sampled, strict=True
        ):
            anchor_pos, n_rows, first_pos = request.n_computed, entry[6], entry[5]
            book = self.slots[request.slot]
            flags = _NEED_DRAFT if sampled.needs_draft else 0
            if book.is_dirty:
                flags |= _NEW_GEN | _RESYNC
            elif book.is_new:
                flags |= _NEW_GEN
            expected = (
                *(request.slot, flags, scheduled.k_window, n_out if sampled.needs_draft else 0),
                *(book.generation, first_pos, n_rows, request.tokens[anchor_pos], anchor_pos),
            )
            if entry != expected:
                raise InvariantBroken("the entry is the request's", f"{entry}, expected {expected}")
            if not book.is_dirty:
                n_expected = min(scheduled.n_rows, width) - sampled.n_rejected
            elif sampled.needs_draft:
                n_expected = min(width, anchor_pos)
            else:
                n_expected = n_rows
            if n_rows != n_expected:
                name = "a resync sends the window" if book.is_dirty else "new rows only"
                raise InvariantBroken(name, f"{n_rows}, expected {n_expected}")
            if n_rows:
                end = at + n_rows * self._terms.row_bytes
                if asked.rows[at:end] != b"".join(request.rows[first_pos:anchor_pos]):
                    raise InvariantBroken("rows are the request's", str(entry))
                at = end
        require(at == len(asked.rows), "rows are the request's", "bytes behind them")

    def _n_out(self, n_requests: int) -> int:
        return next(k for lo, hi, k in self._terms.schedule if lo <= n_requests <= hi)

    def _accepted(self, entries: Sequence[Entry], ruling: Ruling, answer: Answer) -> None:
        needed: list[bool] = []
        for entry, status in zip(entries, ruling.statuses, strict=True):
            self.slots[entry[0]].is_dirty = status != 0
            if status:
                has_cause = self._network.is_tampered or entry[0] in self._network.suspects
                require(has_cause, "a sound worker is content", status)
                self._counts[_STATUS_COUNTERS[status]] += 1
            if entry[1] & _NEED_DRAFT:
                needed.append(status <= 1)
            self._must_renew |= status == 2
        self._must_greet |= self._must_renew
        self._counts["drafted_requests"] += sum(needed)
        if not needed:
            outcome = Outcome.APPENDED
        elif any(needed):
            outcome = Outcome.DRAFTED
            self.breaker.succeeded()
        else:
            outcome = Outcome.ENTRY_ERRORS
            self.breaker.failed(self.n_round)
        n = self._terms.num_spec
        n_drafts = [
            (entry[3] or n) * (status <= 1) if entry[1] & _NEED_DRAFT else None
            for entry, status in zip(entries, ruling.statuses, strict=True)
        ]
        require(answer.n_drafts == n_drafts, "drafts are the reply's", answer.n_drafts)
        self._answered(answer, outcome, ruling)

    def _failed(
        self, entries: Sequence[Entry], sent: Event, ruling: Ruling | None, answer: Answer
    ) -> None:
        self.breaker.failed(self.n_round)
        outcome = Outcome.FRAME_ERROR
        soils_all = True
        if ruling is None:
            outcome = Outcome.TIMEOUT if sent.error is TimedOut else Outcome.TRANSPORT
        elif ruling.kind is Kind.REFUSED:
            outcome = Outcome.BAD_REPLY
        elif ruling.kind is Kind.HELLO_AGAIN:
            self._must_greet = True
            self._must_renew |= self._was_stale and ruling.statuses == [5]
        else:
            soils_all = False
            self.is_disabled |= ruling.kind is Kind.FATAL
        for slot in self.slots:
            slot.is_dirty |= soils_all
        for entry in entries:
            self.slots[entry[0]].is_dirty = True
        self._answered(answer, outcome, None, len(entries))
        if ruling is None or ruling.kind is Kind.REFUSED:
            require(not self._has_link, "a failed connection is dropped", outcome.name)
        if ruling is not None and ruling.kind is not Kind.HELLO_AGAIN:
            require(self._network.is_tampered, "a sound worker is understood", outcome.name)

    def _silent(
        self, step: Step, answer: Answer, excused: bool, is_open: bool, off_for_s: float
    ) -> None:
        must_be_off, may_be_off = off_for_s >= LOOK_S, off_for_s > -LOOK_S
        excused = excused or is_open or may_be_off or self.is_disabled
        require(excused, "nothing is silent without a reason", answer.outcome.name)
        for request in step.requests:
            self.slots[request.slot].is_dirty = True
        outcome = answer.outcome
        if must_be_off or outcome is Outcome.SWITCHED_OFF:
            require(may_be_off, "the switch is looked at")
            outcome = Outcome.SWITCHED_OFF
        elif self.is_disabled:
            outcome = Outcome.DISABLED
        elif is_open:
            outcome = Outcome.COOLDOWN
        elif step.requests or outcome is not Outcome.APPENDED:
            outcome = Outcome.NO_CONNECTION
        self._answered(answer, outcome, None, len(step.requests))

    def _answered(
        self, answer: Answer, outcome: Outcome, ruling: Ruling | None, n_requests: int = 0
    ) -> None:
        """What the engine is given: the reply's drafts, or zeros (§10)."""
        require(answer.outcome is outcome, "outcome", answer.outcome)
        self._counts[outcome.counter] += 1
        if ruling is None:
            n = n_requests * self._terms.num_spec
            require([*answer.draft_ids] == [0] * n, "no draft of a failed round", outcome.name)
            require([*answer.confidence] == [0.0] * n, "no confidence of a failed round")
            require(answer.margin is None, "no margin of a failed round")
            require(not any(answer.n_drafts), "no draft of a failed round", answer.n_drafts)
        else:
            require(answer.draft_ids == ruling.draft_ids, "drafts are the reply's")
            require(answer.confidence == ruling.confidence, "confidences are the reply's")
            require(answer.margin == ruling.margin, "margins are the reply's")

    # --- the end ----------------------------------------------------------------------------------

    def life_over(self, n_accepted: int) -> Counter[str]:
        """The counters of this life, recounted (§6.3, §10). `n_accepted`: drafts in this life."""
        snapshot = self._spark.rounds.counters.snapshot()
        for name, value in snapshot.items():
            if isinstance(value, int):
                require(value == self._counts[name], "counters", f"{name} {value}")
        require(sum(snapshot["accepted"]) == n_accepted, "counters", "accepted")
        return self._counts
