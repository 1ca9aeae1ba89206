"""Messages to bytes and back (§6), and what a body's sizes must agree on (R9 to R14)."""

import struct
from typing import Any

import pytest

from dsparkctl.contract.codes import HAS_MARGIN, MAGIC, NEED_DRAFT, WANT_MARGIN, FrameStatus, Op
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import (
    Limits,
    Step,
    frame,
    parse_header,
    parse_hello,
    parse_hello_reply,
    parse_reset,
    parse_step,
    parse_step_reply,
    rows_offset,
    step_head,
    step_reply_frame,
)
from dsparkctl.contract.records import ReplyHeader, ReqEntry, ReqStatus, StepHeader

LIMITS = Limits(max_slots=4, max_rows_per_step=8, row_bytes=32)
"""Rows as wide as an entry, so that a wrong offset finds something to read."""


def entry(slot: int, n_rows: int, **changed: int) -> ReqEntry:
    return ReqEntry(slot, NEED_DRAFT, 0, 0, 7, 10, n_rows, 3, 10 + n_rows)._replace(**changed)


def body(
    entries: list[ReqEntry],
    *,
    rows: bytes | None = None,
    padded: bool = True,
    behind: bytes = b"",
    **changed: Any,
) -> memoryview:
    """A STEP body written by hand; `changed` are fields of its StepHeader."""
    n_rows = sum(e.n_rows for e in entries)
    head = StepHeader(1, len(entries), 0, n_rows, 32, rows_offset(len(entries)), (0, 0))
    head = head._replace(**changed)
    front = pack(head) + b"".join(map(pack, entries))
    if padded:
        front = front.ljust(head.rows_offset, b"\0")
    block = bytes(range(32)) * n_rows if rows is None else rows
    return memoryview(front + block + behind)


def refused(data: memoryview, limits: Limits = LIMITS) -> WireError:
    with pytest.raises(WireError) as caught:
        parse_step(data, limits)
    return caught.value


# --- frames ---


def test_a_frame_is_the_header_of_its_body_and_the_body() -> None:
    """§6.1."""
    message = frame(Op.RESET, 5, 9, b"\xff" * 4, FrameStatus.INTERNAL)
    assert message == struct.pack("<IHHQIIiI", MAGIC, 1, 3, 5, 9, 4, 8, 0) + b"\xff" * 4
    header = parse_header(message)
    assert (header.op, header.seq, header.session, header.body_len) == (3, 5, 9, 4)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (b"", "AppHeader"),
        (frame(Op.PING, 1, 1)[:31], "AppHeader"),
        (b"X" + frame(Op.PING, 1, 1)[1:], "magic"),
        (frame(Op.PING, 1, 1) + b"x", "body_len"),
        (frame(Op.RESET, 1, 1, bytes(4))[:-1], "body_len"),
    ],
    ids=["empty", "cut header", "magic", "stray byte", "cut body"],
)
def test_a_message_that_is_not_whole_has_lost_its_framing(message: bytes, field: str) -> None:
    """R32: no status, only closing helps."""
    with pytest.raises(WireError) as caught:
        parse_header(message)
    assert (caught.value.status, caught.value.field) == (None, field)


@pytest.mark.parametrize(
    ("parse", "size"), [(parse_hello, 192), (parse_hello_reply, 128), (parse_reset, 4)]
)
@pytest.mark.parametrize("more", [-1, 1])
def test_a_body_of_another_size_is_malformed(parse: Any, size: int, more: int) -> None:
    """§6.2, §6.4."""
    assert parse(bytes(size))
    with pytest.raises(WireError) as caught:
        parse(bytes(size + more))
    assert caught.value.status is FrameStatus.MALFORMED
    with pytest.raises(WireError):
        parse(b"")


# --- STEP ---


@pytest.mark.parametrize(("n_req", "offset"), [(1, 64), (2, 128), (3, 128), (4, 192)])
def test_rows_start_at_the_next_multiple_of_64_behind_the_entries(n_req: int, offset: int) -> None:
    """§6.3, §5: 192 for four requests."""
    assert rows_offset(n_req) == offset


def test_a_step_head_announces_its_rows_and_is_padded_up_to_them() -> None:
    """§6.3; and parse_step takes it apart again."""
    entries = [entry(2, 3), entry(0, 0), entry(3, 2)]
    head = step_head(
        seq=5, session=9, step_id=77, step_flags=WANT_MARGIN, row_bytes=32, entries=entries
    )
    rows = bytes(range(160))
    message = head + rows
    assert len(head) == 32 + 128
    assert parse_header(message).op == Op.STEP
    step = parse_step(memoryview(message)[32:], LIMITS)
    assert step.head == StepHeader(77, 3, WANT_MARGIN, 5, 32, 128, (0, 0))
    assert step.entries == entries
    assert step.rows == rows


def test_rows_are_a_view_of_the_message() -> None:
    """§6.3: never copied by the codec."""
    buffer = bytearray(body([entry(0, 1)]))
    step = parse_step(memoryview(buffer), LIMITS)
    buffer[-32:] = b"\xee" * 32
    assert step.rows == b"\xee" * 32


def test_a_step_without_rows_may_be_padded_or_not() -> None:
    """R14: the worker ignores rows_offset and row_bytes then."""
    bare = [entry(1, 0), entry(0, 0)]
    for data in (
        body(bare),
        body(bare, padded=False),
        body(bare, padded=False, rows_offset=0, row_bytes=0),
        body(bare, padded=False, rows_offset=77, row_bytes=1),
        body(bare, rows_offset=256),
    ):
        step = parse_step(data, LIMITS)
        assert (step.entries, bytes(step.rows)) == (bare, b"")


def test_our_own_step_without_rows_is_padded_and_says_both() -> None:
    """R14: the client should still pad to 64 and send both."""
    head = step_head(seq=1, session=1, step_id=1, step_flags=0, row_bytes=32, entries=[entry(0, 0)])
    step = parse_step(memoryview(head)[32:], LIMITS)
    assert (len(head), step.head.rows_offset, step.head.row_bytes) == (96, 64, 32)


def test_rows_may_start_later_than_they_could() -> None:
    """§6.3: rows_offset says where; any multiple of 64 behind the entries."""
    step = parse_step(body([entry(0, 1)], rows_offset=192), LIMITS)
    assert step.rows == bytes(range(32))


@pytest.mark.parametrize(
    ("data", "field"),
    [
        pytest.param(memoryview(b""), "StepHeader", id="no body"),
        pytest.param(body([entry(0, 0)])[:31], "StepHeader", id="cut StepHeader"),
        pytest.param(body([]), "n_req", id="no entries (R11)"),
        pytest.param(body([entry(0, 0)])[:63], "entries", id="cut entry"),
        pytest.param(body([entry(0, 0)], n_req=0xFFFF), "entries", id="entries that are not there"),
        pytest.param(body([entry(0, 2)], n_rows=3), "n_rows", id="entries hold less (R12)"),
        pytest.param(body([entry(0, 2)], n_rows=1), "n_rows", id="entries hold more (R12)"),
        pytest.param(body([entry(0, 1)], row_bytes=33), "row_bytes", id="row_bytes"),
        pytest.param(
            body([entry(0, 2), entry(1, 0), entry(2, 0)], rows=b"", padded=False, rows_offset=64),
            "rows_offset",
            id="in the entries",
        ),
        pytest.param(body([entry(0, 1)], rows_offset=96), "rows_offset", id="not aligned"),
        pytest.param(body([entry(0, 1)], rows_offset=1 << 30, padded=False), "row block", id="far"),
        pytest.param(body([entry(0, 2)])[:-1], "row block", id="cut rows"),
        pytest.param(body([entry(0, 2)], behind=b"x"), "row block", id="behind the rows (R13)"),
        pytest.param(body([entry(0, 0)], behind=b"x"), "body_len", id="behind no rows (R13)"),
        pytest.param(body([entry(1, 1), entry(1, 1)]), "slot", id="duplicate slot (R10)"),
        pytest.param(body([entry(4, 1)]), "slot", id="slot beyond the last (R10)"),
        pytest.param(body([entry(255, 0)]), "slot", id="the greatest slot (R10)"),
    ],
)
def test_a_step_that_contradicts_itself_is_malformed(data: memoryview, field: str) -> None:
    """R10 to R13; the error names the field and its place."""
    error = refused(data)
    assert (error.status, error.field) == (FrameStatus.MALFORMED, field)
    assert f"{field} at offset {error.offset}: " in str(error)


def test_more_entries_than_slots_are_beyond_capacity() -> None:
    """R11."""
    error = refused(body([entry(i, 0) for i in range(5)]))
    assert (error.status, error.field) == (FrameStatus.CAPACITY, "n_req")


def test_more_rows_than_a_step_may_hold_are_beyond_capacity() -> None:
    """R11: "too many rows or slots"."""
    assert parse_step(body([entry(0, 4), entry(1, 4)]), LIMITS).head.n_rows == 8
    error = refused(body([entry(0, 4), entry(1, 5)]))
    assert (error.status, error.field) == (FrameStatus.CAPACITY, "n_rows")


def test_a_body_is_judged_before_its_capacity() -> None:
    """R36: body, then capacity."""
    cut = body([entry(0, 9)])[:-1]
    assert refused(cut).status is FrameStatus.MALFORMED


def test_rows_that_overflow_32_bits_in_sum_are_no_small_number() -> None:
    """R12: the sum is not taken modulo 2**32."""
    data = body([entry(0, 0xFFFFFFFF), entry(1, 2)], rows=bytes(32), n_rows=1)
    assert refused(data).field == "n_rows"


@pytest.mark.parametrize("changed", [{"step_flags": 0xFFFE}, {"step_id": (1 << 64) - 1}])
def test_unknown_flags_and_reserved_words_are_let_through(changed: dict[str, Any]) -> None:
    """R27."""
    data = bytearray(body([entry(0, 1, req_flags=0xFF)], **changed))
    data[24:32] = b"\xff" * 8
    step: Step = parse_step(memoryview(data), LIMITS)
    assert step.head.reserved == (0xFFFFFFFF, 0xFFFFFFFF)
    assert step.entries[0].req_flags == 0xFF


# --- STEP reply ---

HEAD = ReplyHeader(77, 2, 3, HAS_MARGIN, 10, 20, (0, 0))
STATUSES = [ReqStatus(0, 3, 1), ReqStatus(1, 2, 0xFFFFFFFF)]
IDS = (1, 2, 3, -1, 5, 2_000_000_000)
CONFIDENCE = (0.5, 0.25, 0.125, 1.0, 0.0, 0.75)
MARGIN = (1.5, 0.0, 2.0, 0.25, 8.0, 3.0)


def reply(margin: tuple[float, ...] | None) -> bytes:
    head = HEAD._replace(reply_flags=HAS_MARGIN if margin else 0)
    return step_reply_frame(
        seq=5,
        session=9,
        head=head,
        statuses=STATUSES,
        draft_ids=IDS,
        confidence=CONFIDENCE,
        margin=margin,
    )


@pytest.mark.parametrize("margin", [MARGIN, None])
def test_a_step_reply_comes_back_as_it_was_written(margin: tuple[float, ...] | None) -> None:
    """§6.3."""
    message = reply(margin)
    header = parse_header(message)
    assert (header.op, header.seq, header.session, header.status) == (Op.STEP, 5, 9, 0)
    found = parse_step_reply(message[32:])
    assert found.head.n_req == 2
    assert found[1:] == (STATUSES, IDS, CONFIDENCE, margin)


@pytest.mark.parametrize(("n_req", "n_bytes"), [(1, 80), (2, 128), (3, 176), (4, 224)])
def test_replies_are_as_long_as_the_budget_says(n_req: int, n_bytes: int) -> None:
    """§8.1."""
    n = 5 * n_req
    message = step_reply_frame(
        seq=1,
        session=1,
        head=ReplyHeader(1, n_req, 5, 0, 0, 0, (0, 0)),
        statuses=[ReqStatus(0, 0, 0)] * n_req,
        draft_ids=[0] * n,
        confidence=[0.0] * n,
        margin=None,
    )
    assert len(message) == 32 + n_bytes


@pytest.mark.parametrize("margin", [MARGIN, None])
@pytest.mark.parametrize("more", [-4, -1, 1, 4, 24])
def test_a_reply_whose_length_denies_its_header_is_malformed(
    margin: tuple[float, ...] | None, more: int
) -> None:
    """§6.3: shape."""
    data = reply(margin)[32:]
    data = data[:more] if more < 0 else data + bytes(more)
    with pytest.raises(WireError) as caught:
        parse_step_reply(data)
    assert caught.value.status is FrameStatus.MALFORMED


@pytest.mark.parametrize("n_bytes", [0, 31])
def test_a_reply_without_its_header_is_malformed(n_bytes: int) -> None:
    """§6.3, R9: an empty body belongs to an error status only."""
    with pytest.raises(WireError, match="ReplyHeader"):
        parse_step_reply(bytes(n_bytes))


def test_a_reply_that_claims_four_billion_drafts_allocates_nothing() -> None:
    """§6.3: the length is checked before anything is made of it."""
    head = HEAD._replace(n_req=0xFFFF, num_spec=0xFFFF)
    with pytest.raises(WireError, match="STEP reply body"):
        parse_step_reply(pack(head))
