"""The worker: the real desk, over a drafter that continues the text if its rows are right.

Decides nothing about messages: whatever comes is the desk's business. Keeps what a check wants to
read: rows, slots, the session, and whether the seqs of applied frames rise.
"""

from collections.abc import Sequence

from dspark_worker.desk import Desk
from dspark_worker.drafter import Append, Draft, DraftRequest, Fault
from dsparkctl.contract.codes import FrameStatus, Op
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import HEADER_BYTES, MAX_MESSAGE_BYTES, PREFIX_BYTES, message_bytes
from dsparkctl.contract.messages import frame, parse_header
from dsparkctl.contract.records import Reset
from dsparkctl.simulation.text import START, following, next_token, state_of
from dsparkctl.simulation.world import Clock, Terms
from dsparkctl.state.session import Session
from dsparkctl.state.window import Slot

_WRONG_ONE_IN: int = 8


class KnowingDrafter:
    """Drafts the text itself, with a mistake now and then; `rows[slot][pos mod W]` are kept."""

    backend = "simulated"

    def __init__(self, terms: Terms) -> None:
        self.rows = [[b""] * terms.window for _ in range(terms.max_slots + 1)]
        self.trouble = ""
        """How drafting fails at the moment: `raises`, `faults`, or not at all."""
        self._terms = terms

    def append(self, parts: Sequence[Append]) -> list[Fault | None]:
        row_bytes, width = self._terms.row_bytes, self._terms.window
        for slot, first_pos, n_rows, view in parts:
            data, kept = bytes(view), self.rows[slot]
            for i in range(n_rows):
                kept[(first_pos + i) % width] = data[i * row_bytes : (i + 1) * row_bytes]
        return [None] * len(parts)

    def draft(
        self, requests: Sequence[DraftRequest], *, max_model_len: int, want_margin: bool
    ) -> Sequence[Draft | Fault]:
        if self.trouble == "raises":
            raise RuntimeError("simulated")
        if self.trouble == "faults":
            return [Fault("simulated")] * len(requests)
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        slot, lo_pos, anchor_pos, token, n_out = request
        state = START
        if anchor_pos > lo_pos:
            state = state_of(self.rows[slot][(anchor_pos - 1) % self._terms.window])
        ids: list[int] = []
        confidence: list[float] = []
        for _ in range(n_out):
            state = following(state, token)
            token = next_token(state)
            is_wrong = not state % _WRONG_ONE_IN
            token ^= is_wrong
            ids.append(token)
            confidence.append(((state & 0x3F) + (8 if is_wrong else 64)) / 128)
        zeros = [0] * (self._terms.num_spec - n_out)
        margin = [*confidence, *zeros]
        return Draft(ids + zeros, margin, margin)


class Worker:
    """One worker process; a restart is a new one."""

    def __init__(self, terms: Terms, clock: Clock) -> None:
        self.drafter = KnowingDrafter(terms)
        self.desk = Desk(terms.hello(), self.drafter, worker_name="simulated", clock=clock)
        self.flaw = ""
        """What no fault explains: a failure of the desk, or a seq that did not rise (§7.5)."""
        self._clock = clock
        self._session_id = 0
        self._last_seq = 0
        """Of the last STEP that was applied in this session."""

    @property
    def session(self) -> Session | None:
        return self.desk._session

    @property
    def slots(self) -> list[Slot]:
        return self.desk._rounds.slots

    def answer(self, request: bytes) -> bytes:
        """The reply to a whole, well-framed request."""
        header = parse_header(request)
        reply = self.desk.answer(header, memoryview(request)[HEADER_BYTES:], self._clock.now_s)
        status = parse_header(reply).status
        if self.session is not None and self.session.id != self._session_id:
            self._session_id, self._last_seq = self.session.id, 0
        if header.op == Op.STEP and not status:
            if header.seq <= self._last_seq:
                self.flaw = f"seq {header.seq} applied after {self._last_seq}"
            self._last_seq = header.seq
        if status == FrameStatus.INTERNAL:
            self.flaw = f"the desk failed on {request[:64].hex()}"
        return reply

    def receive(self, stream: bytes) -> bytes | None:
        """The reply to prefix and message as they came; None when the framing is lost (R32)."""
        try:
            length = message_bytes(stream, limit=MAX_MESSAGE_BYTES)
            message = stream[PREFIX_BYTES : PREFIX_BYTES + length]
            parse_header(message, length)
        except WireError:
            return None
        return self.answer(message)

    def reset(self, slot_mask: int) -> None:
        """By the admin listener (R39)."""
        request = frame(Op.RESET, 1, 0, Reset(slot_mask)[0].to_bytes(4, "little"))
        self.desk.answer_admin(parse_header(request), memoryview(request)[HEADER_BYTES:], 0.0)

    def get_ahead(self, slot: int, by: int) -> bool:
        """The slot's generation moves on without rank 0; False when it never had one."""
        found = self.slots[slot]
        if found.generation is None:
            return False
        self.slots[slot] = found._replace(generation=(found.generation + by) & 0xFFFFFFFF)
        return True
