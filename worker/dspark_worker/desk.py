"""The heart of the worker, without a socket: one message in, one reply out (§6, §7).

Decides what every well-framed message is answered with, in the order of R36, and keeps the session.
Refuses to know how bytes arrive, and what a STEP does to the slots: that is `rounds`. Time comes
from the clock it is given.
"""

import json
import logging
from collections.abc import Callable
from typing import Any

from dspark_worker.drafter import Drafter
from dspark_worker.rounds import Rounds
from dspark_worker.stats import Stats
from dsparkctl.contract.codes import (
    CAN_MARGIN,
    CAN_TAPS_BF16,
    HAS_MARGIN,
    VERSION,
    FrameStatus,
    Op,
)
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import (
    Limits,
    frame,
    parse_hello,
    parse_reset,
    parse_step,
    step_reply_frame,
)
from dsparkctl.contract.records import AppHeader, Hello, HelloReply, ReplyHeader
from dsparkctl.state.session import PROTO, Session, judge_frame, judge_hello, opened
from dsparkctl.state.window import EMPTY

log = logging.getLogger(__name__)


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
        self._rounds = Rounds(own, drafter, clock)
        self._clock = clock
        self._about = about
        self._started_at = clock()
        self._limits = Limits(own.max_slots, own.max_rows_per_step, own.row_bytes)
        self._session: Session | None = None
        self._bound = False
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
            self._rounds.begin_session()
        self._bound = True
        self._rounds.clamp(hello.max_model_len)
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
        mask = parse_reset(body).slot_mask
        self._rounds.reset(mask)
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
                for i, slot in enumerate(self._rounds.slots)
            ],
            "drafter_identity": self._own.drafter_identity.hex(),
            "markov_identity": self._own.markov_identity.hex(),
            "uptime_s": round(now - self._started_at, 3),
            **self._about(),
        }

    # --- STEP -------------------------------------------------------------------------------------

    def _step(self, header: AppHeader, body: memoryview, received_at: float) -> bytes:
        started_at = self._clock()
        self._check_session(header)
        step = parse_step(body, self._limits)
        self._applied(header.seq)
        checked_at = self._clock()
        done = self._rounds.run(step)
        apply_s = checked_at - started_at + done.apply_s
        now = self._clock()
        self.stats.stepped(step.entries, [s.status for s in done.statuses], now)
        self.stats.took("apply", apply_s)
        self.stats.took("draft", done.draft_s)
        self.stats.took("worker", apply_s + done.draft_s)
        self.stats.took("recv_to_send", now - received_at)
        return step_reply_frame(
            seq=header.seq,
            session=header.session,
            head=ReplyHeader(
                step_id=step.head.step_id,
                n_req=len(done.statuses),
                num_spec=self._own.num_spec,
                reply_flags=0 if done.margin is None else HAS_MARGIN,
                worker_us=_us(apply_s + done.draft_s),
                recv_to_send_us=_us(now - received_at),
                reserved=(0, 0),
            ),
            statuses=done.statuses,
            draft_ids=done.draft_ids,
            confidence=done.confidence,
            margin=done.margin,
        )


def _reply(header: AppHeader, body: bytes = b"", status: FrameStatus = FrameStatus.OK) -> bytes:
    return frame(header.op, header.seq, header.session, body, status)


def _us(seconds: float) -> int:
    """Whole µs for a u32 field: never negative, never above its range."""
    return min(max(0, round(seconds * 1e6)), 0xFFFFFFFF)


def _op_name(op: int) -> str:
    return Op(op).name if op in Op._value2member_map_ else f"op {op}"
