"""One STEP on the worker: window rule, storing, drafting, entry by entry (§6.3, §7.2).

Decides what each entry is answered with, and keeps the slots. Refuses to know sessions and frames,
and what a drafter does with rows. Time comes from the clock it is given.

One entry's fault never reaches another entry (R29): where a batch of the drafter fails as a whole,
the entries are asked again one by one, and a draft that rank 0 would refuse never leaves.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from dspark_worker.drafter import Append, Draft, Drafter, DraftRequest, Fault
from dsparkctl.contract.codes import NEED_DRAFT, WANT_MARGIN, EntryStatus
from dsparkctl.contract.messages import Step
from dsparkctl.contract.records import Hello, ReqEntry, ReqStatus
from dsparkctl.state.window import EMPTY, VACANT, Bounds, Outcome, Slot, apply_entry

log = logging.getLogger(__name__)

_MAX_F32 = (2 - 2**-23) * 2.0**127

Part = TypeVar("Part", Append, DraftRequest)
Answer = TypeVar("Answer")


class Round(NamedTuple):
    """What a STEP came to, as its reply says it; the arrays hold N values an entry."""

    statuses: list[ReqStatus]
    draft_ids: list[int]
    confidence: list[float]
    margin: list[float] | None
    """None when nobody asked (R31)."""
    apply_s: float
    draft_s: float


class Rounds:
    """The slots, and what STEPs do to them. `own` are the worker's terms (§6.2)."""

    def __init__(self, own: Hello, drafter: Drafter, clock: Callable[[], float]) -> None:
        self.slots: list[Slot] = [VACANT] * own.max_slots
        self._own = own
        self._drafter = drafter
        self._clock = clock
        self._bounds = Bounds(own.window, own.vocab_size, own.max_model_len)

    def begin_session(self) -> None:
        """A new session: every window and every generation is forgotten (§6.2, R23)."""
        self.slots = [VACANT] * len(self.slots)

    def clamp(self, max_model_len: int) -> None:
        """The client's max_model_len is what query positions are clamped by (R6)."""
        self._bounds = self._bounds._replace(max_model_len=max_model_len)

    def reset(self, slot_mask: int) -> None:
        """§6.4: the windows go, the generations stay (R24)."""
        for i in range(len(self.slots)):
            if slot_mask >> i & 1:
                self._empty(i)

    def run(self, step: Step) -> Round:
        """One STEP that passed frame validation, top to bottom."""
        started_at = self._clock()
        outcomes = [self._apply(entry) for entry in step.entries]
        faults = self._store(step, outcomes)
        stored_at = self._clock()
        want_margin = bool(step.head.step_flags & WANT_MARGIN)
        drafts = self._draft(step, outcomes, faults, want_margin)
        drafted_at = self._clock()

        statuses: list[ReqStatus] = []
        ids: list[int] = []
        confidence: list[float] = []
        margin: list[float] = []
        zeros = [0] * self._own.num_spec
        for entry, outcome, fault, draft in zip(
            step.entries, outcomes, faults, drafts, strict=True
        ):
            status, rows = int(outcome.status), outcome.window_rows
            if fault is not None or isinstance(draft, Fault):
                status, rows, draft = EntryStatus.INTERNAL.value, 0, None  # R20
            statuses.append(ReqStatus(status, rows, entry.generation))  # R21: an echo
            ids.extend(draft.ids if draft else zeros)
            confidence.extend(draft.confidence if draft else zeros)
            margin.extend(draft.margin if draft and want_margin else zeros)
        return Round(
            statuses,
            ids,
            confidence,
            margin if want_margin else None,
            stored_at - started_at,
            drafted_at - stored_at,
        )

    def _empty(self, slot: int) -> None:
        self.slots[slot] = self.slots[slot]._replace(window=EMPTY)

    def _apply(self, entry: ReqEntry) -> Outcome:
        outcome = apply_entry(self.slots[entry.slot], entry, self._bounds)
        self.slots[entry.slot] = outcome.slot
        if outcome.refusal:
            log.info("slot %d: %s: %s", entry.slot, outcome.status.name, outcome.refusal)
        return outcome

    def _store(self, step: Step, outcomes: Sequence[Outcome]) -> list[Fault | None]:
        """Hands the rows of every applied entry to the drafter; a fault per entry, or None."""
        faults: list[Fault | None] = [None] * len(outcomes)
        parts: list[tuple[int, Append]] = []
        row_bytes, at = self._own.row_bytes, 0
        for i, (entry, outcome) in enumerate(zip(step.entries, outcomes, strict=True)):
            end = at + entry.n_rows * row_bytes
            if entry.n_rows and outcome.status <= EntryStatus.PARTIAL_WINDOW:
                rows = step.rows[at:end]
                parts.append((i, Append(entry.slot, entry.first_pos, entry.n_rows, rows)))
            at = end
        if not parts:
            return faults
        answers = _each([part for _, part in parts], self._drafter.append)
        for (i, part), answer in zip(parts, answers, strict=True):
            if isinstance(answer, Exception):
                # Nobody knows what was stored: the window starts over and rank 0 resyncs it.
                self._empty(part.slot)
                answer = Fault(f"storing failed: {answer!r}")
            if answer is not None:
                log.warning("slot %d: INTERNAL: %s", part.slot, answer.reason)
            faults[i] = answer
        return faults

    def _draft(
        self,
        step: Step,
        outcomes: Sequence[Outcome],
        faults: Sequence[Fault | None],
        want_margin: bool,
    ) -> list[Draft | Fault | None]:
        """A draft or a fault for every entry that may have one, None for the others."""
        found: list[Draft | Fault | None] = [None] * len(outcomes)
        n = self._own.num_spec
        asked: list[tuple[int, DraftRequest]] = []
        for i, (entry, outcome) in enumerate(zip(step.entries, outcomes, strict=True)):
            wanted = entry.req_flags & NEED_DRAFT and faults[i] is None
            if wanted and outcome.status <= EntryStatus.PARTIAL_WINDOW:
                lo_pos = entry.anchor_pos - outcome.window_rows
                n_out = min(entry.n_out or n, n)  # R26
                request = (entry.slot, lo_pos, entry.anchor_pos, entry.anchor_token, n_out)
                asked.append((i, DraftRequest(*request)))
        if not asked:
            return found

        def draft(requests: Sequence[DraftRequest]) -> Sequence[Draft | Fault]:
            return self._drafter.draft(
                requests, max_model_len=self._bounds.max_model_len, want_margin=want_margin
            )

        answers = _each([request for _, request in asked], draft)
        for (i, request), answer in zip(asked, answers, strict=True):
            if isinstance(answer, Exception):
                answer = Fault(f"drafting failed: {answer!r}")
            elif isinstance(answer, Draft) and (flaw := self._flaw(answer, request, want_margin)):
                answer = Fault(flaw)
            if isinstance(answer, Fault):
                log.warning("slot %d: INTERNAL: %s", request.slot, answer.reason)
            found[i] = answer
        return found

    def _flaw(self, draft: Draft, request: DraftRequest, want_margin: bool) -> str:
        """Why rank 0 would refuse the whole reply for this draft (§6.3, v1.4), or nothing."""
        arrays = draft if want_margin else draft[:2]
        if any(len(values) != self._own.num_spec for values in arrays):
            return f"the draft has not {self._own.num_spec} positions"
        if min(draft.ids) < 0 or max(draft.ids) >= self._own.vocab_size:
            return f"draft ids {[*draft.ids]} outside the vocabulary"
        # NaN fails every comparison. Loops, not `all`: this runs for every draft.
        for value in draft.confidence:
            if not 0.0 <= value <= 1.0:
                return f"confidences {[*draft.confidence]} outside 0 to 1"
        for value in draft.margin if want_margin else ():
            if not 0.0 <= value <= _MAX_F32:
                return f"margins {[*draft.margin]}, expected finite values from 0 on"
        n_out = request.n_out
        if n_out < self._own.num_spec and any(any(values[n_out:]) for values in arrays):
            return f"the draft goes on behind its {n_out} positions"
        return ""


def _each(
    parts: Sequence[Part], ask: Callable[[Sequence[Part]], Sequence[Answer]]
) -> list[Answer | Exception]:
    """The answers to all parts at once, or, where that fails, to one part after the other."""
    try:
        answers: list[Answer | Exception] = list(ask(parts))
        if len(answers) != len(parts):
            raise ValueError(f"{len(answers)} answers to {len(parts)} entries")
        return answers
    except Exception as error:
        if len(parts) == 1:
            log.debug("the drafter raised", exc_info=True)
            return [error]
    return [answer for part in parts for answer in _each([part], ask)]
