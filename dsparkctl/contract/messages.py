"""Messages to bytes and back (§6). A row block is always a view, never copied here.

Decides whether a body's sizes agree with each other and with the limits (R9 to R14), and which
frame status a contradiction deserves. Refuses to know positions, generations and sessions: those
are rules of `dsparkctl.state`.

One `struct` is compiled per number of entries, so that a whole STEP head is built and taken apart
in one call: this runs in every engine round on both sides.
"""

import struct
from collections.abc import Callable, Sequence
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
_unpack_step_header: Final = layout_of(StepHeader).struct.unpack_from
_REPLY_HEADER: Final = layout_of(ReplyHeader).struct
_ENTRY_CODES: Final = layout_of(ReqEntry).codes
_ENTRY_FIELDS: Final = len(ReqEntry._fields)
_N_ROWS: Final = ReqEntry._fields.index("n_rows")
_STEP_HEAD: Final = layout_of(StepHeader).size
_ENTRY: Final = layout_of(ReqEntry).size
_REPLY_HEAD: Final = layout_of(ReplyHeader).size
_STATUS: Final = layout_of(ReqStatus).size
_SLOT_PART: Final = slice(0, None, _ENTRY_FIELDS)
_N_ROWS_PART: Final = slice(_N_ROWS, None, _ENTRY_FIELDS)
_REPLY_VALUES: Final = len(layout_of(ReplyHeader).codes)

_STEP: Final = int(Op.STEP)

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


class _EntriesShape(NamedTuple):
    """How a STEP's entries lie: what unpacks them, each one's values, and which slots exist."""

    unpack_from: Callable[[Buffer, int], tuple[int, ...]]
    spans: tuple[slice, ...]
    slots: frozenset[int]


@lru_cache(maxsize=256)
def _entries_shape(n_req: int, max_slots: int) -> _EntriesShape:
    starts = range(0, _ENTRY_FIELDS * n_req, _ENTRY_FIELDS)
    return _EntriesShape(
        struct.Struct("<" + _ENTRY_CODES * n_req).unpack_from,
        tuple(slice(start, start + _ENTRY_FIELDS) for start in starts),
        frozenset(range(min(max_slots, 0x100))),
    )


@lru_cache(maxsize=256)
def _step_head(n_req: int) -> tuple[Callable[..., bytes], int]:
    """What packs AppHeader, StepHeader, entries and padding; and where the row block starts."""
    codes = layout_of(AppHeader).codes + layout_of(StepHeader).codes + _ENTRY_CODES * n_req
    start = rows_offset(n_req)
    n_padding = HEADER_BYTES + start - struct.calcsize("<" + codes)
    return struct.Struct(f"<{codes}{n_padding}x").pack, start


@lru_cache(maxsize=64)
def _reply_struct(n_req: int, n_drafts: int, n_arrays: int) -> struct.Struct:
    """A whole STEP reply: header, statuses, draft ids, and one or two arrays of floats."""
    floats = f"{n_drafts}f" * (n_arrays - 1)
    codes = layout_of(ReplyHeader).codes + layout_of(ReqStatus).codes * n_req
    return struct.Struct(f"<{codes}{n_drafts}i{floats}")


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
    pack_head, start = _step_head(n_req)
    values = (*chain.from_iterable(entries),)
    n_rows = sum(values[_N_ROWS_PART])
    n_bytes = start + n_rows * row_bytes
    return pack_head(
        *(MAGIC, VERSION, _STEP, seq, session, n_bytes, 0, 0),
        *(step_id, n_req, step_flags, n_rows, row_bytes, start, 0, 0),
        *values,
    )


def parse_step(body: memoryview, limits: Limits) -> Step:
    """A STEP body as views, with every check that needs no state (R10 to R14).

    Sizes come first (MALFORMED), then capacity (CAPACITY), then the slots (MALFORMED). Whether an
    entry's positions and row count are allowed is the window rule's business (§7.2.2).
    """
    n_bytes = len(body)
    if n_bytes < _STEP_HEAD:
        raise malformed("StepHeader", HEADER_BYTES, f"{n_bytes} bytes, expected {_STEP_HEAD}")
    step_id, n_req, flags, n_rows, said_bytes, start, a, b = _unpack_step_header(body)
    head_bytes = _STEP_HEAD + _ENTRY * n_req
    max_slots, max_rows, row_bytes = limits
    if not n_req:
        raise malformed("n_req", HEADER_BYTES + 8, "0, a STEP carries at least one entry")
    if n_bytes < head_bytes:
        raise malformed(
            "entries", HEADER_BYTES + _STEP_HEAD, f"{n_req} entries do not fit {n_bytes} bytes"
        )
    if n_req > max_slots:
        raise WireError(
            FrameStatus.CAPACITY, "n_req", HEADER_BYTES + 8, f"{n_req} of {max_slots} slots"
        )
    unpack_from, spans, slots = _entries_shape(n_req, max_slots)
    values = unpack_from(body, _STEP_HEAD)
    n_held = sum(values[_N_ROWS_PART])
    if n_held != n_rows:
        raise malformed("n_rows", HEADER_BYTES + 12, f"{n_rows}, entries hold {n_held} (R12)")
    if n_rows:
        if said_bytes != row_bytes:
            raise malformed("row_bytes", HEADER_BYTES + 16, f"{said_bytes}, HELLO said {row_bytes}")
        if start % ROW_ALIGN or start < head_bytes:
            raise _bad_start(start, head_bytes)
        if start + n_rows * row_bytes != n_bytes:
            raise _bad_end(start, n_rows, row_bytes, n_bytes)
    elif n_bytes > aligned(head_bytes) and n_bytes != start:
        # R14: without rows, rows_offset and row_bytes say nothing. Padding may be there or not.
        raise malformed("body_len", 20, f"{n_bytes} bytes, but there are no rows (R13)")
    if n_rows > max_rows:
        raise WireError(
            FrameStatus.CAPACITY, "n_rows", HEADER_BYTES + 12, f"{n_rows} of {max_rows} rows"
        )
    if len(slots.intersection(values[_SLOT_PART])) != n_req:
        raise malformed(
            "slot",
            HEADER_BYTES + _STEP_HEAD,
            f"{[*values[_SLOT_PART]]}, expected different ones below {max_slots} (R10)",
        )
    head = _new(StepHeader, (step_id, n_req, flags, n_rows, said_bytes, start, (a, b)))
    entries = []
    for span in spans:  # a comprehension is a call of its own, and costs a third more here
        entries.append(_new(ReqEntry, values[span]))
    return _new(Step, (head, entries, body[start if n_rows else n_bytes :]))


def _bad_start(start: int, head_bytes: int) -> WireError:
    reason = f"{start}, expected a multiple of {ROW_ALIGN} from {aligned(head_bytes)} on"
    return malformed("rows_offset", HEADER_BYTES + 20, reason)


def _bad_end(start: int, n_rows: int, row_bytes: int, n_bytes: int) -> WireError:
    end = start + n_rows * row_bytes
    reason = f"{n_rows} rows of {row_bytes} bytes end at {end}, the body at {n_bytes}"
    return malformed("row block", HEADER_BYTES + start, reason)


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
    n_arrays = 2 if margin is None else 3
    body = _reply_struct(len(statuses), len(draft_ids), n_arrays).pack(
        *head[:6],
        *head.reserved,
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
    step_id, n_req, num_spec, flags, worker_us, total_us, a, b = _REPLY_HEADER.unpack_from(body)
    n = n_req * num_spec
    n_arrays = 3 if flags & HAS_MARGIN else 2
    expected = _REPLY_HEAD + _STATUS * n_req + 4 * n * n_arrays
    if len(body) != expected:
        raise malformed(
            "STEP reply body",
            HEADER_BYTES,
            f"{len(body)} bytes, {n_req} entries of {num_spec} drafts need {expected}",
        )
    values = _reply_struct(n_req, n, n_arrays).unpack_from(body)
    at = _REPLY_VALUES + 3 * n_req
    return StepReply(
        _new(ReplyHeader, (step_id, n_req, num_spec, flags, worker_us, total_us, (a, b))),
        [_new(ReqStatus, values[i : i + 3]) for i in range(_REPLY_VALUES, at, 3)],
        values[at : at + n],
        values[at + n : at + 2 * n],
        values[at + 2 * n :] if n_arrays == 3 else None,
    )


def hello_frame(seq: int, session: int, hello: Hello) -> bytes:
    return frame(Op.HELLO, seq, session, pack(hello))
