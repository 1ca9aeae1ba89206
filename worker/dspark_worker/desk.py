"""The heart of the worker, without a socket: one message in, one reply out (§6, §7).

Decides what every well-framed message is answered with, in the order of R36, and keeps the session
and the slots. Refuses to know how bytes arrive, and what a drafter does with rows. Time comes from
the clock it is given.

One entry's fault never reaches another entry (R29): where a batch of the drafter fails as a whole,
the entries are asked again one by one.
"""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dspark_worker.drafter import Append, Draft, Drafter, DraftRequest, Fault
from dspark_worker.stats import Stats
from dsparkctl.contract.codes import (
    CAN_MARGIN,
    CAN_TAPS_BF16,
    HAS_MARGIN,
    NEED_DRAFT,
    VERSION,
    WANT_MARGIN,
    EntryStatus,
    FrameStatus,
    Op,
)
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import (
    Limits,
    Step,
    frame,
    parse_hello,
    parse_reset,
    parse_step,
    step_reply_frame,
)
from dsparkctl.contract.records import AppHeader, Hello, HelloReply, ReplyHeader, ReqStatus
from dsparkctl.state.session import PROTO, Session, judge_frame, judge_hello, opened
from dsparkctl.state.window import EMPTY, VACANT, Bounds, Outcome, Slot, apply_entry

log = logging.getLogger(__name__)

_MAX_F32 = (2 - 2**-23) * 2.0**127

Part = TypeVar("Part", Append, DraftRequest)
Answer = TypeVar("Answer")


class Desk:
    """Answers the messages of one client. `own` are the worker's terms, as it would say HELLO.

    `clock` counts seconds from anywhere; `about` adds the facts of this process to STATS.
    """

    def __init__(
        self,
        own: Hello,
        drafter: Drafter,
        *,
        worker_name: str,
        clock: Callable[[], float],
        about: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.stats = Stats(own.num_spec)
        self._own = own
        self._drafter = drafter
        self._clock = clock
        self._about = about
        self._started_at = clock()
        self._limits = Limits(own.max_slots, own.max_rows_per_step, own.row_bytes)
        self._bounds = Bounds(own.window, own.vocab_size, own.max_model_len)
        self._session: Session | None = None
        self._bound = False
        self._slots: list[Slot] = [VACANT] * own.max_slots
        self._hello_reply = pack(
            HelloReply(
                proto=PROTO,
                max_slots=own.max_slots,
                max_rows_per_step=own.max_rows_per_step,
                capabilities=CAN_TAPS_BF16 | CAN_MARGIN,
                window=own.window,
                num_spec=own.num_spec,
                drafter_identity=own.drafter_identity,
                markov_identity=own.markov_identity,
                worker_name=worker_name.encode("ascii", "replace")[:40],
            )
        )

    def connected(self) -> None:
        """A new data connection took the place of the last one; it has no session yet (R4)."""
        self._bound = False
        self.stats.count("connections")

    def answer(self, header: AppHeader, body: memoryview, received_at: float) -> bytes:
        """The reply to a message of the data listener that was there in full at `received_at`."""
        return self._answer(header, body, received_at, self._on_data)

    def answer_admin(self, header: AppHeader, body: memoryview, received_at: float) -> bytes:
        """The reply on the admin listener: PING, STATS, RESET, outside any session (R37, R39)."""
        return self._answer(header, body, received_at, self._on_admin)

    # --- routes -----------------------------------------------------------------------------------

    def _answer(
        self,
        header: AppHeader,
        body: memoryview,
        received_at: float,
        route: Callable[[AppHeader, memoryview, float], bytes],
    ) -> bytes:
        try:
            if header.version != VERSION:
                raise WireError(
                    FrameStatus.BAD_VERSION, "version", 4, f"{header.version}, expected {VERSION}"
                )
            return route(header, body, received_at)
        except WireError as error:
            status = error.status or FrameStatus.MALFORMED
            log.warning("%s refused: %s: %s", _op_name(header.op), status.name, error)
        except Exception:
            status = FrameStatus.INTERNAL
            log.exception("%s failed", _op_name(header.op))
        self.stats.refused(status)
        return _reply(header, self._hello_reply if header.op == Op.HELLO else b"", status)

    def _on_data(self, header: AppHeader, body: memoryview, received_at: float) -> bytes:
        match header.op:
            case Op.STEP:
                return self._step(header, body, received_at)
            case Op.HELLO:
                return self._hello(header, body)
            case Op.RESET:
                self._check_session(header)
                reply = self._reset(header, body)
                self._applied(header.seq)
                return reply
            case _:
                return self._on_any(header)

    def _on_admin(self, header: AppHeader, body: memoryview, received_at: float) -> bytes:
        if header.op == Op.RESET:
            return self._reset(header, body)
        return self._on_any(header)

    def _on_any(self, header: AppHeader) -> bytes:
        """PING and STATS: fine before HELLO, never checked, never recorded (R1, R2, R13, R35)."""
        if header.op == Op.PING:
            self.stats.count("pings")
            return _reply(header)
        if header.op == Op.STATS:
            return _reply(header, json.dumps(self.snapshot()).encode())
        raise WireError(FrameStatus.UNSUPPORTED_OP, "op", 6, f"{header.op} is not served here")

    # --- HELLO, RESET, STATS ----------------------------------------------------------------------

    def _hello(self, header: AppHeader, body: memoryview) -> bytes:
        self._bound = False  # R5: after a refused HELLO this connection has no session
        hello = parse_hello(body)
        verdict = judge_hello(hello, header.session, self._own)
        if verdict.status:
            raise WireError(verdict.status, "HELLO", 32, verdict.reason)
        self._session, is_new = opened(self._session, header.session, hello)
        if is_new:
            self._slots = [VACANT] * len(self._slots)
        self._bound = True
        self._bounds = self._bounds._replace(max_model_len=hello.max_model_len)
        self.stats.count("hellos")
        log.info(
            "HELLO of %s: %s session %08x",
            ascii(hello.client_name.decode("ascii", "replace")),
            "new" if is_new else "known",
            header.session,
        )
        return _reply(header, self._hello_reply)

    def _check_session(self, header: AppHeader) -> None:
        verdict = judge_frame(self._session, self._bound, header.session, header.seq)
        if verdict.status:
            raise WireError(verdict.status, "session", 16, verdict.reason)

    def _applied(self, seq: int) -> None:
        """§7.5: the frame passed validation, so its seq is the last applied one (R2)."""
        assert self._session is not None
        self._session = self._session._replace(last_seq=seq)

    def _reset(self, header: AppHeader, body: memoryview) -> bytes:
        """§6.4: the windows go, the generations stay (R24)."""
        mask = parse_reset(body).slot_mask
        for i, slot in enumerate(self._slots):
            if mask >> i & 1:
                self._slots[i] = slot._replace(window=EMPTY)
        self.stats.count("resets")
        log.info("RESET of slots 0x%x", mask)
        return _reply(header)

    def snapshot(self) -> dict[str, Any]:
        """The STATS object (§6.5)."""
        now = self._clock()
        return {
            **self.stats.snapshot(now),
            "session": self._session.id if self._session else 0,
            "last_seq": self._session.last_seq if self._session else 0,
            "slots": [
                {
                    "slot": i,
                    "generation": slot.generation,
                    "lo_pos": slot.window.lo if slot.window != EMPTY else None,
                    "hi_pos": slot.window.hi if slot.window != EMPTY else None,
                }
                for i, slot in enumerate(self._slots)
            ],
            "drafter_identity": self._own.drafter_identity.hex(),
            "markov_identity": self._own.markov_identity.hex(),
            "uptime_s": round(now - self._started_at, 3),
            **self._about(),
        }

    # --- STEP -------------------------------------------------------------------------------------

    def _step(self, header: AppHeader, body: memoryview, received_at: float) -> bytes:
        """§6.3: one round, top to bottom."""
        started_at = self._clock()
        self._check_session(header)
        step = parse_step(body, self._limits)
        self._applied(header.seq)
        outcomes = [self._apply(entry) for entry in step.entries]
        faults = self._store(step, outcomes)
        stored_at = self._clock()
        want_margin = bool(step.head.step_flags & WANT_MARGIN)
        drafts = self._draft(step, outcomes, faults, want_margin)
        drafted_at = self._clock()

        statuses = []
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

        stats = self.stats
        stats.stepped(step.entries, [s.status for s in statuses], drafted_at)
        stats.took("apply", stored_at - started_at)
        stats.took("draft", drafted_at - stored_at)
        stats.took("worker", drafted_at - started_at)
        now = self._clock()
        stats.took("recv_to_send", now - received_at)
        return step_reply_frame(
            seq=header.seq,
            session=header.session,
            head=ReplyHeader(
                step_id=step.head.step_id,
                n_req=len(statuses),
                num_spec=self._own.num_spec,
                reply_flags=HAS_MARGIN if want_margin else 0,
                worker_us=_us(drafted_at - started_at),
                recv_to_send_us=_us(now - received_at),
                reserved=(0, 0),
            ),
            statuses=statuses,
            draft_ids=ids,
            confidence=confidence,
            margin=margin if want_margin else None,
        )

    def _apply(self, entry: Any) -> Outcome:
        outcome = apply_entry(self._slots[entry.slot], entry, self._bounds)
        self._slots[entry.slot] = outcome.slot
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
                self._slots[part.slot] = self._slots[part.slot]._replace(window=EMPTY)
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
        # NaN fails every comparison.
        if not all(0 <= token < self._own.vocab_size for token in draft.ids):
            return f"draft ids {[*draft.ids]} outside the vocabulary"
        if not all(0.0 <= value <= 1.0 for value in draft.confidence):
            return f"confidences {[*draft.confidence]} outside 0 to 1"
        if want_margin and not all(0.0 <= value <= _MAX_F32 for value in draft.margin):
            return f"margins {[*draft.margin]}, expected finite values from 0 on"
        if any(value for values in arrays for value in values[request.n_out :]):
            return f"the draft goes on behind its {request.n_out} positions"
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


def _reply(header: AppHeader, body: bytes = b"", status: FrameStatus = FrameStatus.OK) -> bytes:
    return frame(header.op, header.seq, header.session, body, status)


def _us(seconds: float) -> int:
    """Whole µs for a u32 field: never negative, never above its range."""
    return min(max(0, round(seconds * 1e6)), 0xFFFFFFFF)


def _op_name(op: int) -> str:
    return Op(op).name if op in Op._value2member_map_ else f"op {op}"
