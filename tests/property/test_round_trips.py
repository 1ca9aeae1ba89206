"""Whatever fits the wire comes back as it was sent (§6): records, STEPs, replies, counters."""

import json
import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkctl.contract.codes import HAS_MARGIN, Op
from dsparkctl.contract.jsonform import Direction, decode, encode
from dsparkctl.contract.jsonrecord import from_json, to_json
from dsparkctl.contract.layout import Column, layout_of, pack, unpack
from dsparkctl.contract.messages import (
    Limits,
    frame,
    parse_header,
    parse_step,
    parse_step_reply,
    step_head,
    step_reply_frame,
)
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

RECORDS = (AppHeader, Hello, HelloReply, StepHeader, ReqEntry, ReplyHeader, ReqStatus, Reset)

REPLAYABLE = settings(max_examples=150)

U16 = st.integers(0, 0xFFFF)
U32 = st.integers(0, 0xFFFFFFFF)
U64 = st.integers(0, (1 << 64) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
F32 = st.floats(width=32, allow_nan=False)


def values(column: Column) -> st.SearchStrategy[Any]:
    """Every value that a column can hold."""
    if column.type.startswith("text"):
        return st.binary(max_size=column.size).map(lambda text: text.rstrip(b"\0"))
    if column.type.startswith("u8["):
        return st.binary(min_size=column.size, max_size=column.size)
    bits = 8 * struct.calcsize("<" + column.code[0])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if "i" in column.type else (0, 2**bits - 1)
    numbers = st.integers(low, high)
    return st.tuples(*[numbers] * len(column.code)) if len(column.code) > 1 else numbers


def records(cls: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{name: values(column) for name, column in layout_of(cls).fields})


@REPLAYABLE
@given(st.one_of(*map(records, RECORDS)))
def test_a_record_comes_back_from_its_bytes_and_from_its_json(record: Any) -> None:
    """§6."""
    cls = type(record)
    data = pack(record)
    assert len(data) == layout_of(cls).size
    assert unpack(cls, data) == record
    form = json.loads(json.dumps(to_json(record)))
    assert from_json(cls, form, "record") == record


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[ReqEntry], int, bytes]:
    """Entries of different slots, the row size, and the row block."""
    slots = draw(st.lists(st.integers(0, 255), min_size=1, max_size=6, unique=True))
    row_bytes = draw(st.integers(0, 40))
    entries = [
        draw(records(ReqEntry))._replace(slot=slot, n_rows=draw(st.integers(0, 5)))
        for slot in slots
    ]
    n_bytes = row_bytes * sum(entry.n_rows for entry in entries)
    return entries, row_bytes, draw(st.binary(min_size=n_bytes, max_size=n_bytes))


@REPLAYABLE
@given(steps(), U64, U32, U64, U16)
def test_a_step_comes_back(
    step: tuple[list[ReqEntry], int, bytes], seq: int, session: int, step_id: int, step_flags: int
) -> None:
    """§6.3."""
    entries, row_bytes, rows = step
    message = (
        step_head(
            seq=seq,
            session=session,
            step_id=step_id,
            step_flags=step_flags,
            row_bytes=row_bytes,
            entries=entries,
        )
        + rows
    )
    header = parse_header(message)
    assert (header.op, header.seq, header.session, header.status) == (Op.STEP, seq, session, 0)
    found = parse_step(memoryview(message)[32:], Limits(256, 30, row_bytes))
    assert (found.head.step_id, found.head.step_flags) == (step_id, step_flags)
    assert found.head.rows_offset % 64 == 0
    assert found.entries == entries
    assert found.rows == rows
    form = json.loads(json.dumps(decode(message, Direction.REQUEST)))
    assert encode(form, rows) == message


@st.composite
def replies(draw: st.DrawFn) -> tuple[ReplyHeader, list[ReqStatus], list[list[Any]]]:
    n_req, num_spec = draw(st.integers(0, 5)), draw(st.integers(0, 6))
    head = draw(records(ReplyHeader))
    flags = head.reply_flags
    head = head._replace(n_req=n_req, num_spec=num_spec, reserved=(0, 0))
    statuses = [draw(records(ReqStatus)) for _ in range(n_req)]
    n = n_req * num_spec
    arrays = [draw(st.lists(of, min_size=n, max_size=n)) for of in (I32, F32, F32)]
    return head, statuses, arrays[: 3 if flags & HAS_MARGIN else 2]


@REPLAYABLE
@given(replies(), U64, U32)
def test_a_step_reply_comes_back(
    reply: tuple[ReplyHeader, list[ReqStatus], list[list[Any]]], seq: int, session: int
) -> None:
    """§6.3."""
    head, statuses, (ids, confidence, *margin) = reply
    message = step_reply_frame(
        seq=seq,
        session=session,
        head=head,
        statuses=statuses,
        draft_ids=ids,
        confidence=confidence,
        margin=margin[0] if margin else None,
    )
    found = parse_step_reply(message[32:])
    assert (found.head, found.statuses) == (head, statuses)
    assert [*found.draft_ids] == ids
    assert [*found.confidence] == confidence
    assert [[*found.margin]] == margin if found.margin is not None else not margin
    form = json.loads(json.dumps(decode(message, Direction.REPLY), allow_nan=False))
    assert encode(form) == message


COUNTERS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@REPLAYABLE
@given(st.dictionaries(st.text(st.characters(codec="utf-8")), COUNTERS, max_size=4))
def test_counters_come_back(stats: dict[str, Any]) -> None:
    """§6.5: whatever a worker counts."""
    message = frame(Op.STATS, 1, 9, json.dumps(stats).encode())
    form = json.loads(json.dumps(decode(message)))
    assert form["stats"] == stats
    del form["header"]["body_len"]
    assert decode(encode(form))["stats"] == stats
