"""Messages to bytes and back (§6). A row block is always a view, never copied here.

Decides whether a body's sizes agree with each other and with the limits (R9 to R14), and which
frame status a contradiction deserves. Refuses to know positions, generations and sessions: those
are rules of `dsparkctl.state`.

One `struct` is compiled per number of entries, so that a whole STEP head is built and taken apart
in one call: this runs in every engine round on both sides.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from dsparkctl.contract.codes import HAS_MARGIN, MAGIC, VERSION, FrameStatus, Op
from dsparkctl.contract.errors import WireError, malformed
from dsparkctl.contract.framing import HEADER_BYTES, ROW_ALIGN, aligned
from dsparkctl.contract.layout import Buffer, layout_of, pack, unpack
from dsparkctl.contract.records import (
    AppHeader,
    Hello,
    HelloReply,
    ReplyHeader,
    ReqEntry,
    ReqStatus,
    Reset,
    StepHeader,
)

_HEADER: Final = layout_of(AppHeader).struct
_ENTRY_CODES: Final = layout_of(ReqEntry).codes
_ENTRY_FIELDS: Final = len(ReqEntry._fields)
_N_ROWS: Final = ReqEntry._fields.index("n_rows")
_STEP_HEAD: Final = layout_of(StepHeader).size
_ENTRY: Final = layout_of(ReqEntry).size
_REPLY_HEAD: Final = layout_of(ReplyHeader).size
_STATUS: Final = layout_of(ReqStatus).size
_STEP_VALUES: Final = len(layout_of(StepHeader).codes)
_REPLY_VALUES: Final = len(layout_of(ReplyHeader).codes)

_new: Final = tuple.__new__
"""Builds a NamedTuple of a tuple of the right length: half the cost of its own constructor."""


class Limits(NamedTuple):
    """What a STEP may hold (§6.2): the worker's own slots, rows and row size."""

    max_slots: int
    max_rows_per_step: int
    row_bytes: int


class Step(NamedTuple):
    """§6.3: one round's request. `rows` is the row block, entries' rows in entry order."""

    head: StepHeader
    entries: Sequence[ReqEntry]
    rows: memoryview


class StepReply(NamedTuple):
    """§6.3: one round's reply; the arrays are `[n_req * N]`, an entry's N values side by side."""

    head: ReplyHeader
    statuses: Sequence[ReqStatus]
    draft_ids: tuple[int, ...]
    confidence: tuple[float, ...]
    margin: tuple[float, ...] | None


@lru_cache(maxsize=256)
def _step_struct(n_req: int) -> struct.Struct:
    return struct.Struct("<" + layout_of(StepHeader).codes + _ENTRY_CODES * n_req)


@lru_cache(maxsize=256)
def _step_frame_struct(n_req: int) -> struct.Struct:
    codes = layout_of(AppHeader).codes + layout_of(StepHeader).codes + _ENTRY_CODES * n_req
    size = struct.calcsize("<" + codes)
    return struct.Struct(f"<{codes}{aligned(size - HEADER_BYTES) + HEADER_BYTES - size}x")


@lru_cache(maxsize=256)
def _reply_struct(n_req: int, num_spec: int, with_margin: bool) -> struct.Struct:
    n = n_req * num_spec
    arrays = f"{n}i{n}f" + (f"{n}f" if with_margin else "")
    return struct.Struct(
        "<" + layout_of(ReplyHeader).codes + layout_of(ReqStatus).codes * n_req + arrays
    )


# --- frames ---------------------------------------------------------------------------------------


def frame(op: int, seq: int, session: int, body: Buffer = b"", status: int = 0) -> bytes:
    """AppHeader and body (§6.1) of a request, or of a reply with its `status`."""
    return _HEADER.pack(MAGIC, VERSION, op, seq, session, len(body), status, 0) + body


def parse_header(message: Buffer, n_bytes: int | None = None) -> AppHeader:
    """The AppHeader of a message; WireError without a status when the framing is lost (R32).

    `n_bytes` is the whole message's length where only its beginning is at hand.
    """
    if n_bytes is None:
        n_bytes = len(message)
    if n_bytes < HEADER_BYTES:
        raise WireError(None, "AppHeader", 0, f"{n_bytes} bytes, expected {HEADER_BYTES} or more")
    header = _new(AppHeader, _HEADER.unpack_from(message))
    if header.magic != MAGIC:
        raise WireError(None, "magic", 0, f"0x{header.magic:08x}, expected 0x{MAGIC:08x} (DSP1)")
    if header.body_len != n_bytes - HEADER_BYTES:
        follow = n_bytes - HEADER_BYTES
        raise WireError(None, "body_len", 20, f"{header.body_len}, but {follow} bytes follow")
    return header


def _sized(record: type[Any], body: Buffer, name: str) -> None:
    size = layout_of(record).size
    if len(body) != size:
        raise malformed(name, HEADER_BYTES, f"{len(body)} bytes, expected {size}")


def parse_hello(body: Buffer) -> Hello:
    _sized(Hello, body, "HELLO body")
    return unpack(Hello, body)


def parse_hello_reply(body: Buffer) -> HelloReply:
    _sized(HelloReply, body, "HELLO reply body")
    return unpack(HelloReply, body)


def parse_reset(body: Buffer) -> Reset:
    _sized(Reset, body, "RESET body")
    return unpack(Reset, body)


# --- STEP -----------------------------------------------------------------------------------------


def rows_offset(n_req: int) -> int:
    """Where the row block of a STEP with `n_req` entries starts, from the start of the body."""
    return aligned(_STEP_HEAD + _ENTRY * n_req)


def step_head(
    *,
    seq: int,
    session: int,
    step_id: int,
    step_flags: int,
    row_bytes: int,
    entries: Sequence[ReqEntry],
) -> bytes:
    """AppHeader, StepHeader, entries and padding of a STEP: all that stands before its rows."""
    n_req = len(entries)
    n_rows = 0
    for entry in entries:
        n_rows += entry[_N_ROWS]
    start = (_STEP_HEAD + _ENTRY * n_req + ROW_ALIGN - 1) // ROW_ALIGN * ROW_ALIGN
    return _step_frame_struct(n_req).pack(
        *(MAGIC, VERSION, Op.STEP, seq, session, start + n_rows * row_bytes, 0, 0),
        *(step_id, n_req, step_flags, n_rows, row_bytes, start, 0, 0),
        *chain.from_iterable(entries),
    )


def parse_step(body: memoryview, limits: Limits) -> Step:
    """A STEP body as views, with every check that needs no state (R10 to R14).

    Sizes come first (MALFORMED), then capacity (CAPACITY), then the slots (MALFORMED). Whether an
    entry's positions and row count are allowed is the window rule's business (§7.2.2).
    """
    n_bytes = len(body)
    if n_bytes < _STEP_HEAD:
        raise malformed("StepHeader", HEADER_BYTES, f"{n_bytes} bytes, expected {_STEP_HEAD}")
    n_req = body[8] | body[9] << 8
    head_bytes = _STEP_HEAD + _ENTRY * n_req
    if not n_req:
        raise malformed("n_req", HEADER_BYTES + 8, "0, a STEP carries at least one entry")
    if n_bytes < head_bytes:
        raise malformed(
            "entries", HEADER_BYTES + _STEP_HEAD, f"{n_req} entries do not fit {n_bytes} bytes"
        )
    if n_req > limits.max_slots:
        raise WireError(
            FrameStatus.CAPACITY, "n_req", HEADER_BYTES + 8, f"{n_req} of {limits.max_slots} slots"
        )
    values = _step_struct(n_req).unpack_from(body)
    head = _new(StepHeader, (*values[:6], values[6:8]))
    n_rows = sum(values[_STEP_VALUES + _N_ROWS :: _ENTRY_FIELDS])
    if n_rows != head.n_rows:
        raise malformed("n_rows", HEADER_BYTES + 12, f"{head.n_rows}, entries hold {n_rows} (R12)")
    start = _row_block(head, head_bytes, n_bytes, limits.row_bytes)
    if n_rows > limits.max_rows_per_step:
        raise WireError(
            FrameStatus.CAPACITY,
            "n_rows",
            HEADER_BYTES + 12,
            f"{n_rows} of {limits.max_rows_per_step} rows",
        )
    slots = values[_STEP_VALUES::_ENTRY_FIELDS]
    if len({*slots}) != n_req or max(slots) >= limits.max_slots:
        raise malformed(
            "slot",
            HEADER_BYTES + _STEP_HEAD,
            f"{[*slots]}, expected different ones below {limits.max_slots} (R10)",
        )
    entries = [
        _new(ReqEntry, values[at : at + _ENTRY_FIELDS])
        for at in range(_STEP_VALUES, len(values), _ENTRY_FIELDS)
    ]
    return _new(Step, (head, entries, body[start : start + n_rows * limits.row_bytes]))


def _row_block(head: StepHeader, head_bytes: int, n_bytes: int, row_bytes: int) -> int:
    """Where the row block starts; MALFORMED unless it fills the rest of the body exactly (R13)."""
    start = head.rows_offset
    if not head.n_rows:
        # R14: without rows, rows_offset and row_bytes say nothing. Padding may be there or not.
        if n_bytes > aligned(head_bytes) and n_bytes != start:
            raise malformed("body_len", 20, f"{n_bytes} bytes, but there are no rows (R13)")
        return n_bytes
    if head.row_bytes != row_bytes:
        raise malformed("row_bytes", HEADER_BYTES + 16, f"{head.row_bytes}, HELLO said {row_bytes}")
    if start % ROW_ALIGN or start < head_bytes:
        raise malformed(
            "rows_offset",
            HEADER_BYTES + 20,
            f"{start}, expected a multiple of {ROW_ALIGN} from {aligned(head_bytes)} on",
        )
    if start + head.n_rows * row_bytes != n_bytes:
        raise malformed(
            "row block",
            HEADER_BYTES + start,
            f"{head.n_rows} rows of {row_bytes} bytes end at {start + head.n_rows * row_bytes}, "
            f"the body at {n_bytes}",
        )
    return start


def step_reply_frame(
    *,
    seq: int,
    session: int,
    head: ReplyHeader,
    statuses: Sequence[ReqStatus],
    draft_ids: Sequence[int],
    confidence: Sequence[float],
    margin: Sequence[float] | None,
) -> bytes:
    """A whole STEP reply; the arrays hold N values for each entry in turn."""
    body = _reply_struct(len(statuses), head.num_spec, margin is not None).pack(
        *head[:6],
        0,
        0,
        *chain.from_iterable(statuses),
        *draft_ids,
        *confidence,
        *(margin or ()),
    )
    return frame(Op.STEP, seq, session, body)


def parse_step_reply(body: Buffer) -> StepReply:
    """A STEP reply whose length agrees with its own header; its values are not judged here."""
    if len(body) < _REPLY_HEAD:
        raise malformed("ReplyHeader", HEADER_BYTES, f"{len(body)} bytes, expected {_REPLY_HEAD}")
    head = unpack(ReplyHeader, body)
    with_margin = bool(head.reply_flags & HAS_MARGIN)
    n = head.n_req * head.num_spec
    expected = _REPLY_HEAD + _STATUS * head.n_req + 4 * n * (3 if with_margin else 2)
    if len(body) != expected:
        raise malformed(
            "STEP reply body",
            HEADER_BYTES,
            f"{len(body)} bytes, {head.n_req} entries of {head.num_spec} drafts need {expected}",
        )
    values = _reply_struct(head.n_req, head.num_spec, with_margin).unpack_from(body)
    at = _REPLY_VALUES + 3 * head.n_req
    statuses = [_new(ReqStatus, values[i : i + 3]) for i in range(_REPLY_VALUES, at, 3)]
    return StepReply(
        head,
        statuses,
        values[at : at + n],
        values[at + n : at + 2 * n],
        values[at + 2 * n :] if with_margin else None,
    )


def hello_frame(seq: int, session: int, hello: Hello) -> bytes:
    return frame(Op.HELLO, seq, session, pack(hello))
