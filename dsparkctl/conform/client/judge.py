"""What a client's messages must be (§4.3, §6, §7.1, §7.5), message by message. Pure.

Decides from what was sent before and what a right worker would hold. Refuses to know sockets, and
what was done to the client in between: that is `acts`.
"""

from dataclasses import dataclass, field

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC, EntryStatus, Op
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import HEADER_BYTES, ROW_ALIGN
from dsparkctl.contract.messages import Limits, Step, parse_header, parse_hello, parse_step
from dsparkctl.contract.records import AppHeader, Hello, ReqEntry
from dsparkctl.state.window import VACANT, Bounds, Outcome, Slot, apply_entry


@dataclass
class Judge:
    """One client, and the slots of a worker that has applied everything it was sent."""

    terms: Hello
    session: int = 0
    last_seq: int = 0
    is_greeted: bool = False
    """HELLO was accepted on this connection."""
    step_ids: set[int] = field(default_factory=set)
    slots: dict[int, Slot] = field(default_factory=dict)
    n_steps: int = 0
    n_short: int = 0
    """Entries that were drafted over fewer rows than expected."""

    def connected(self) -> None:
        """A new connection has no session yet (R4)."""
        self.is_greeted = False

    def forget(self) -> None:
        """The worker lost everything (§6.2: a new session)."""
        self.slots.clear()

    def header(self, message: bytes) -> tuple[AppHeader | None, str]:
        """The header, and what is wrong with it."""
        try:
            header = parse_header(message)
        except WireError as error:
            return None, str(error)
        if header.version != 1 or header.status or header.flags:
            return header, f"version {header.version}, status {header.status}, flags {header.flags}"
        if header.op in (Op.HELLO, Op.STEP, Op.RESET):
            is_new = header.op == Op.HELLO and header.session != self.session
            if not header.session:
                return header, "session 0"
            if not is_new and header.seq <= self.last_seq:
                return header, f"seq {header.seq} behind {self.last_seq} (§7.5)"
            if is_new:
                self.session = header.session
                self.forget()
            self.last_seq = header.seq
        return header, ""

    def hello(self, message: bytes) -> str:
        """What is wrong with a HELLO."""
        try:
            hello = parse_hello(message[HEADER_BYTES:])
        except WireError as error:
            return str(error)
        self.is_greeted = True
        for name in self.terms._fields:
            if name in ("client_name", "tp_size", "reserved"):
                continue
            mine, theirs = getattr(self.terms, name), getattr(hello, name)
            if name in ("max_model_len", "max_slots", "max_rows_per_step"):
                if not 0 < theirs <= mine:
                    return f"{name} {theirs}, expected 1 to {mine}"
            elif theirs != mine:
                return f"{name} {theirs!r}, expected {mine!r}"
        return ""

    def step(self, message: bytes) -> tuple[Step | None, list[Outcome], str]:
        """A STEP, what a right worker makes of each entry, and what is wrong with it."""
        if not self.is_greeted:
            return None, [], "a STEP on a connection without HELLO (§7.5)"
        terms = self.terms
        limits = Limits(terms.max_slots, terms.max_rows_per_step, terms.row_bytes)
        try:
            step = parse_step(memoryview(message)[HEADER_BYTES:], limits)
        except WireError as error:
            return None, [], str(error)
        self.n_steps += 1
        fault = self._head_fault(step, message)
        bounds = Bounds(terms.window, terms.vocab_size, terms.max_model_len)
        outcomes = []
        for entry in step.entries:
            before = self.slots.get(entry.slot, VACANT)
            outcome = apply_entry(before, entry, bounds)
            fault = fault or _entry_fault(entry, before, outcome)
            self.n_short += outcome.status == EntryStatus.PARTIAL_WINDOW
            self.slots[entry.slot] = outcome.slot
            outcomes.append(outcome)
        return step, outcomes, fault

    def _head_fault(self, step: Step, message: bytes) -> str:
        head = step.head
        if head.step_id in self.step_ids:
            return f"step_id {head.step_id} twice (C9)"
        self.step_ids.add(head.step_id)
        if head.row_bytes != self.terms.row_bytes:
            return f"row_bytes {head.row_bytes} without rows (R14)"
        if head.rows_offset % ROW_ALIGN:
            return f"rows_offset {head.rows_offset} is no multiple of 64 (R14)"
        end = 32 + 32 * head.n_req
        if any(message[HEADER_BYTES + end : HEADER_BYTES + head.rows_offset]):
            return "the padding before the rows is not zero (§6.3)"
        if head.step_flags & ~1 or any(head.reserved):
            return f"step_flags {head.step_flags:#x}, reserved {head.reserved}"
        return ""


def _entry_fault(entry: ReqEntry, before: Slot, outcome: Outcome) -> str:
    where = f"slot {entry.slot} at anchor {entry.anchor_pos}"
    if outcome.refusal:
        return f"{where}: a right worker answers {outcome.status.name}: {outcome.refusal}"
    if entry.req_flags & ~(NEW_GEN | NEED_DRAFT | RESYNC):
        return f"{where}: req_flags {entry.req_flags:#x}"
    if entry.req_flags & RESYNC and not entry.req_flags & NEW_GEN:
        return f"{where}: RESYNC without NEW_GEN (§7.4)"
    is_new = before.generation is not None and before.generation != entry.generation
    if is_new and not entry.req_flags & NEW_GEN:
        return f"{where}: a new generation without NEW_GEN (§7.1)"
    return ""
