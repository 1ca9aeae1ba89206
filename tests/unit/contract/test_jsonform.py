"""Messages as JSON-able dicts (§6): what stands in them, which way they go, what is refused."""

import json
import struct
from typing import Any

import pytest

from dsparkctl.contract.codes import HAS_MARGIN, NEED_DRAFT, NEW_GEN, FrameStatus, Op
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import MAX_MESSAGE_BYTES, prefix
from dsparkctl.contract.jsonform import MAX_CAPTURE_BYTES, Direction, decode, encode
from dsparkctl.contract.jsonrecord import FormError
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import frame, step_head, step_reply_frame
from dsparkctl.contract.records import (
    AppHeader,
    Hello,
    HelloReply,
    ReplyHeader,
    ReqEntry,
    ReqStatus,
    StepHeader,
)

Form = dict[str, Any]

ENTRY = ReqEntry(1, NEW_GEN | NEED_DRAFT, 0, 0, 7, 10, 2, 3, 12)
STEP = step_head(seq=5, session=9, step_id=1, step_flags=1, row_bytes=8, entries=[ENTRY]) + bytes(
    range(16)
)
HELLO = Hello(
    0,
    1,
    2,
    3,
    4,
    5,
    (1, 2, 3, 4),
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    b"d" * 32,
    b"m" * 32,
    b"spark",
)
HELLO_REPLY = HelloReply(1, 4, 512, 5, 128, 5, b"d" * 32, b"m" * 32, b"x86host")


def reply(num_spec: int = 2, margin: Any = (1.0, 2.0), **changed: int) -> bytes:
    n = num_spec
    return step_reply_frame(
        seq=5,
        session=9,
        head=ReplyHeader(1, 1, n, HAS_MARGIN if margin else 0, 10, 20, (0, 0)),
        statuses=[ReqStatus(0, 2, 7)._replace(**changed)],
        draft_ids=[*range(1, n + 1)],
        confidence=[0.5] * n,
        margin=margin,
    )


def refused(data: bytes, forced: Direction | None = None) -> WireError:
    with pytest.raises(WireError) as caught:
        decode(data, forced)
    assert "\n" not in str(caught.value)
    return caught.value


def without(form: Form, *path: Any) -> Form:
    """A deep copy of `form` that lacks the key at the end of `path`."""
    copy: Form = json.loads(json.dumps(form))
    at: Any = copy
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return copy


def changed(form: Form, value: Any, *path: Any) -> Form:
    """A deep copy of `form` with another value at `path`."""
    copy: Form = json.loads(json.dumps(form))
    at: Any = copy
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return copy


# --- what stands in the dict ---


def test_names_of_codes_stand_beside_the_numbers_and_never_among_them() -> None:
    """§9: plain keys stay numbers."""
    form = decode(STEP)
    assert form["op_name"] == "STEP"
    assert form["step_flags_names"] == ["WANT_MARGIN"]
    assert form["req_flags_names"] == [["NEW_GEN", "NEED_DRAFT"]]
    assert form["entries"][0]["req_flags"] == 3
    assert form["entries"][0].keys() == {*ReqEntry._fields}
    assert form["header"].keys() == {*AppHeader._fields}
    form = decode(reply(status=1))
    assert (form["reply_flags_names"], form["req_status_names"]) == (
        ["HAS_MARGIN"],
        ["PARTIAL_WINDOW"],
    )


def test_a_reset_shows_its_mask() -> None:
    """§6.4."""
    assert decode(frame(Op.RESET, 1, 9, b"\5\0\0\0"))["reset"] == {"slot_mask": 5}


def test_counters_are_shown_as_they_were_sent() -> None:
    """§6.5."""
    body = json.dumps({"steps": 3, "p50": 1.5, "name": "größe"}).encode()
    form = decode(frame(Op.STATS, 1, 9, body))
    assert form["stats"] == {"steps": 3, "p50": 1.5, "name": "größe"}
    assert form["direction"] == "reply"


def test_what_is_no_number_in_json_is_text() -> None:
    """R29: a NaN of a broken worker must be seen, and JSON has none."""
    data = bytearray(reply())
    struct.pack_into("<4f", data, len(data) - 16, float("nan"), float("inf"), -float("inf"), -0.0)
    form = decode(bytes(data))
    assert json.loads(json.dumps(form, allow_nan=False)) == form
    assert form["confidence"] == [["nan", "inf"]]
    assert form["margin"] == [["-inf", 0.0]]
    assert encode(form) == data


def test_a_name_that_is_not_text_survives() -> None:
    """§6.2: names are ASCII, a broken peer's may be anything."""
    hello = frame(Op.HELLO, 1, 9, pack(HELLO._replace(client_name=b"\xff\x00\xfe\x80")))
    form = json.loads(json.dumps(decode(hello)))
    assert encode(form) == hello


def test_rows_are_told_by_their_digest_and_any_geometry_decodes() -> None:
    """§6.3: the message's own row_bytes, slot 255, 100 entries."""
    entries = [ENTRY._replace(slot=155 + i, n_rows=0) for i in range(100)]
    data = step_head(seq=1, session=9, step_id=1, step_flags=0, row_bytes=3, entries=entries)
    form = decode(data + b"")
    assert [entry["slot"] for entry in form["entries"]] == [*range(155, 255)]
    assert "problems" not in form
    assert encode(form) == data


# --- which way it goes ---


@pytest.mark.parametrize(
    ("data", "direction"),
    [
        (STEP, "request"),
        (reply(), "reply"),
        (frame(Op.HELLO, 1, 9, pack(HELLO)), "request"),
        (frame(Op.HELLO, 1, 9, pack(HELLO_REPLY)), "reply"),
        (frame(Op.HELLO, 1, 9, pack(HELLO_REPLY), 3), "reply"),
        (frame(Op.RESET, 1, 9, bytes(4)), "request"),
        (frame(Op.RESET, 1, 9), "reply"),
        (frame(Op.STATS, 1, 9), "request"),
        (frame(Op.STATS, 1, 9, b"", 8), "reply"),
        (frame(Op.PING, 1, 9), "either"),
        (frame(Op.PING, 1, 9, b"", 8), "reply"),
        (frame(Op.PING, 1, 9, b"payload"), "request"),
        (frame(6, 1, 9, b"", 9), "reply"),
        (frame(6, 1, 9), "either"),
        *((frame(op, 1, 9, b"", 6), "reply") for op in Op),
    ],
)
def test_the_direction_is_told_by_length_layout_and_status(data: bytes, direction: str) -> None:
    """§6.1: no field of the header says it."""
    assert decode(data)["direction"] == direction


@pytest.mark.parametrize("n_req", [1, 2, 4])
def test_a_reply_of_three_drafts_is_as_long_as_a_request_and_still_told_apart(n_req: int) -> None:
    """§6.3: 8 + 3 x 8 bytes an entry; its num_spec would be an unknown step_flag."""
    data = step_reply_frame(
        seq=1,
        session=9,
        head=ReplyHeader(1, n_req, 3, 0, 0, 0, (0, 0)),
        statuses=[ReqStatus(0, 2, 7)] * n_req,
        draft_ids=[1] * 3 * n_req,
        confidence=[0.0] * 3 * n_req,
        margin=None,
    )
    assert decode(data)["direction"] == "reply"
    assert decode(data, Direction.REQUEST)["step_header"]["step_flags"] == 3


def test_true_ambiguity_is_said() -> None:
    """A body that fits both ways, with something against either."""
    data = reply(num_spec=3, margin=None, status=77)
    form = decode(data)
    assert form["direction"] == "either"
    assert "fits a reply too" in form["problems"]
    assert "reply_header" in decode(data, Direction.REPLY)


def test_a_forced_direction_is_obeyed_or_refused() -> None:
    ping = frame(Op.PING, 1, 9)
    assert decode(ping, Direction.REPLY)["direction"] == "reply"
    assert decode(ping, Direction.REQUEST)["direction"] == "request"
    assert refused(frame(Op.RESET, 1, 9), Direction.REQUEST).field == "RESET body"
    assert refused(STEP, Direction.REPLY).field == "STEP reply body"


# --- problems ---


def problems(data: bytes) -> str:
    return "; ".join(decode(data).get("problems", []))


def test_good_messages_have_no_problems() -> None:
    for data in (STEP, reply(), frame(Op.HELLO, 1, 9, pack(HELLO)), frame(Op.PING, 1, 9)):
        assert "problems" not in decode(data)


@pytest.mark.parametrize(
    ("entries", "head", "complaint"),
    [
        ([ENTRY, ENTRY], {}, "(R10)"),
        ([], {}, "n_req at offset 40"),
        ([ENTRY], {"n_rows": 3}, "(R12)"),
        ([ENTRY], {"rows_offset": 72}, "rows_offset at offset 52"),
        ([ENTRY], {"step_flags": 9}, "step_flags has unknown bits 0x8"),
        ([ENTRY._replace(req_flags=0x80)], {}, "entries[0].req_flags has unknown bits 0x80"),
    ],
)
def test_what_the_contract_forbids_is_shown_with_the_message(
    entries: list[ReqEntry], head: dict[str, Any], complaint: str
) -> None:
    """R10 to R14, R27: a person debugging wants to see such a message, not only its error."""
    n_rows = sum(entry.n_rows for entry in entries)
    start = 64 if len(entries) < 2 else 128
    step = StepHeader(1, len(entries), 0, n_rows, 8, start, (0, 0))._replace(**head)
    body = (pack(step) + b"".join(map(pack, entries))).ljust(step.rows_offset, b"\0")
    data = frame(Op.STEP, 1, 9, body + bytes(8 * step.n_rows))
    form = decode(data)
    assert complaint in "; ".join(form["problems"])
    assert len(form["entries"]) == len(entries)
    assert encode(form) == data


def test_other_oddities_are_listed_too() -> None:
    """R27, R13, §9."""
    padded = bytearray(
        step_head(seq=1, session=9, step_id=1, step_flags=0, row_bytes=8, entries=[ENTRY] * 2)
    )
    padded[-1] = 7
    assert "padding at offset 128 is not zero" in problems(bytes(padded) + bytes(32))
    assert "status 4 in a request" in problems(frame(Op.RESET, 1, 9, bytes(4), 4))
    assert "status 77 is not a code of §9.1" in problems(frame(Op.STEP, 1, 9, b"", 77))
    assert "req_status[0].status 9 is not a code of §9.2" in problems(reply(status=9))
    assert "ignored (R13)" in problems(frame(Op.PING, 1, 9, b"payload"))
    assert "op 6 is unknown" in problems(frame(6, 1, 9, b"what"))
    flags = bytearray(frame(Op.PING, 1, 9))
    flags[28] = 1
    assert "flags 0x1" in problems(bytes(flags))


# --- what cannot be taken apart ---


@pytest.mark.parametrize(
    ("data", "field", "offset"),
    [
        (b"", "AppHeader", 0),
        (STEP[:31], "AppHeader", 0),
        (b"X" + STEP[1:], "magic", 0),
        (STEP[:4] + b"\2" + STEP[5:], "version", 4),
        (STEP[:-1], "body_len", 20),
        (STEP + b"x", "body_len", 20),
        (prefix(len(STEP) + 1) + STEP, "length prefix", 0),
        (prefix(len(STEP)) + STEP + b"x", "length prefix", 0),
        (prefix(0xFFFFFFFF) + STEP, "length prefix", 0),
        (frame(Op.HELLO, 1, 9, bytes(191)), "HELLO body", 32),
        (frame(Op.HELLO, 1, 9), "HELLO body", 32),
        (frame(Op.HELLO, 1, 9, bytes(191), 2), "HELLO reply body", 32),
        (frame(Op.STEP, 1, 9), "StepHeader", 32),
        (frame(Op.STEP, 1, 9, STEP[32:90]), "entries", 64),
        (frame(Op.STEP, 1, 9, STEP[32:-1]), "row block", 96),
        (frame(Op.STEP, 1, 9, STEP[32:] + b"x"), "row block", 96),
        (frame(Op.RESET, 1, 9, b"xyz"), "RESET body", 32),
        (frame(Op.STATS, 1, 9, b"{} \xff"), "STATS reply body", 35),
        (frame(Op.STATS, 1, 9, b'{"a": }'), "STATS reply body", 38),
        (frame(Op.STATS, 1, 9, '{"ä": }'.encode()), "STATS reply body", 39),
        (frame(Op.STATS, 1, 9, b"[]"), "STATS reply body", 32),
        (frame(Op.STATS, 1, 9, b'{"a": NaN}'), "STATS reply body", 32),
        (frame(Op.STATS, 1, 9, b'{"a": 1e999}'), "STATS reply body", 32),
        (frame(Op.STATS, 1, 9, b'{"a": ' + b"9" * 5000 + b"}"), "STATS reply body", 32),
        (frame(Op.STATS, 1, 9, b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}"), "STATS reply body", 32),
        (frame(Op.STATS, 1, 9, b"[" * 100_000), "STATS reply body", 32),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_with_field_and_offset(
    data: bytes, field: str, offset: int
) -> None:
    """§5, §6: offsets count from the AppHeader, with or without a prefix."""
    status = int.from_bytes(data[24:28], "little") if len(data) >= 32 else 0
    way = Direction.REPLY if status or field.startswith("STATS") else Direction.REQUEST
    error = refused(data, way)
    assert (error.field, error.offset) == (field, offset)
    assert refused(data)


def test_an_error_both_ways_names_the_likelier_and_then_the_other() -> None:
    error = refused(frame(Op.HELLO, 1, 9, bytes(100)))
    assert error.field == "HELLO body"
    assert "as a reply: HELLO reply body" in str(error)
    error = refused(frame(Op.HELLO, 1, 9, bytes(100), 2))
    assert error.field == "HELLO reply body"
    assert "as a request: HELLO body" in str(error)


def test_a_message_beyond_the_greatest_is_refused() -> None:
    """§5: 16 MiB."""
    whole = frame(Op.PING, 1, 9, bytes(MAX_MESSAGE_BYTES - 32))
    assert decode(prefix(MAX_MESSAGE_BYTES) + whole)["bytes"] == MAX_MESSAGE_BYTES
    assert refused(bytes(MAX_CAPTURE_BYTES + 1)).field == "message"
    assert refused(frame(Op.PING, 1, 9, bytes(MAX_MESSAGE_BYTES - 31))).field == "message"


def test_another_wire_version_is_named_as_such() -> None:
    """§6.1, §9.1: only an incompatible change raises it."""
    assert refused(STEP[:4] + b"\2" + STEP[5:]).status is FrameStatus.BAD_VERSION


# --- encoding ---


def test_body_len_may_be_left_out_but_not_be_wrong() -> None:
    form = decode(STEP)
    rows = bytes(range(16))
    assert encode(without(form, "header", "body_len"), rows) == STEP
    for wrong in (0, 79, 81):
        with pytest.raises(FormError, match=r"header\.body_len"):
            encode(changed(form, wrong, "header", "body_len"))


def test_a_reset_without_a_mask_names_all_slots_where_its_length_says_so() -> None:
    """§6.4."""
    form = decode(frame(Op.RESET, 1, 9, b"\xff" * 4))
    del form["reset"]
    assert encode(form) == frame(Op.RESET, 1, 9, b"\xff" * 4)
    assert encode(changed(form, 0, "header", "body_len")) == frame(Op.RESET, 1, 9)
    assert encode(without(form, "header", "body_len")) == frame(Op.RESET, 1, 9)


@pytest.mark.parametrize("marks", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("escape", [True, False])
def test_counters_are_spelt_so_that_they_fill_body_len(
    marks: tuple[str, str], escape: bool
) -> None:
    """§6.5: JSON has more than one spelling."""
    text = json.dumps({"a": [1, 2, "ä"], "b": {}}, separators=marks, ensure_ascii=escape)
    data = frame(Op.STATS, 1, 9, text.encode())
    assert encode(decode(data)) == data


def test_a_wrong_value_that_fits_its_field_is_written() -> None:
    """That is how a hostile message is made."""
    data = encode(changed(decode(STEP), 0x58585858, "header", "magic"), bytes(range(16)))
    assert data == b"XXXX" + STEP[4:]


def test_a_body_of_another_op_can_be_written_as_hex() -> None:
    data = frame(6, 1, 9, b"what", 9)
    assert encode(decode(data)) == data


@pytest.mark.parametrize(
    ("form", "complaint"),
    [
        ([], "message: expected an object, got a list"),
        ({}, "header: missing"),
        ({"header": 1}, "header: expected an object, got 1"),
        ({**decode(STEP), "rowz": 1}, "rowz: unknown"),
        ({**decode(STEP), "reset": {"slot_mask": 1}}, "reset: does not go with step_header"),
        ({**decode(STEP), "margin": []}, "margin: does not go with step_header"),
        (changed(decode(STEP), 1, "header", "op"), "header.op: 1, but step_header goes with 2"),
        (without(decode(STEP), "entries"), "entries: missing"),
        (without(decode(STEP), "step_header"), "step_header: missing"),
        (without(decode(STEP), "header", "seq"), "header.seq: missing"),
        (without(decode(STEP), "entries", 0, "slot"), "entries[0].slot: missing"),
        (changed(decode(STEP), 1, "entries", 0, "slut"), "entries[0].slut: unknown"),
        (changed(decode(STEP), 256, "entries", 0, "slot"), "entries[0].slot: 256, expected 0 to 2"),
        (changed(decode(STEP), -1, "header", "seq"), "header.seq: -1, expected 0 to 18446744073"),
        (changed(decode(STEP), True, "header", "seq"), "header.seq: True, expected 0 to"),
        (changed(decode(STEP), 1.0, "header", "seq"), "header.seq: 1.0, expected 0 to"),
        (changed(decode(STEP), 1 << 31, "header", "status"), "header.status: 2147483648, expected"),
        (changed(decode(STEP), [0], "step_header", "reserved"), "reserved: expected 2 items, got"),
        (changed(decode(STEP), [0, -1], "step_header", "reserved"), "step_header.reserved[1]: -1"),
        (changed(decode(STEP), 2, "step_header", "n_req"), "entries: expected 2 items, got 1"),
        (
            changed(decode(STEP), 32, "step_header", "rows_offset"),
            "step_header.rows_offset: starts",
        ),
        (changed(decode(STEP), 1 << 31, "step_header", "row_bytes"), "beyond 16777216"),
        (changed(decode(STEP), "x", "entries"), "entries: expected a list, got 'x'"),
        (changed(decode(reply()), 3, "reply_header", "num_spec"), "draft_ids[0]: expected 3 items"),
        (
            changed(decode(reply()), 0, "reply_header", "reply_flags"),
            "margin: stands there exactly",
        ),
        (without(decode(reply()), "margin"), "margin: stands there exactly"),
        (changed(decode(reply()), 1 << 31, "draft_ids", 0, 1), "draft_ids[0][1]: 2147483648"),
        (changed(decode(reply()), 1e39, "confidence", 0, 0), "confidence[0][0]: 1e+39"),
        (changed(decode(reply()), 10**400, "margin", 0, 0), "margin[0][0]: 1000"),
        (changed(decode(reply()), "NaN", "margin", 0, 0), "margin[0][0]: 'NaN', expected a number"),
        (changed(decode(reply()), False, "margin", 0, 0), "margin[0][0]: False, expected a number"),
        ({**decode(frame(6, 1, 9)), "body": "xyz"}, "body: 'xyz', expected hex digits"),
        ({**decode(frame(6, 1, 9)), "body": 5}, "body: 5, expected hex digits"),
        ({**decode(frame(Op.STATS, 1, 9)), "stats": []}, "stats: expected an object, got a list"),
        ({**decode(frame(Op.STATS, 1, 9)), "stats": {"a": float("nan")}}, "stats: "),
    ],
)
def test_what_spells_no_message_is_refused_in_one_line_that_names_the_field(
    form: Any, complaint: str
) -> None:
    with pytest.raises(FormError) as caught:
        encode(form)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "field", "complaint"),
    [
        ("00", "drafter_identity", "hello.drafter_identity: '00', expected 64 hex digits"),
        (5, "markov_identity", "hello.markov_identity: 5, expected 64 hex digits"),
        ("x" * 49, "client_name", "expected text of at most 48 bytes"),
        ("\ud800", "client_name", "expected text of at most 48 bytes"),
        (None, "client_name", "hello.client_name: None, expected text"),
    ],
)
def test_digests_and_names_must_fit(value: Any, field: str, complaint: str) -> None:
    """§6.2."""
    form = decode(frame(Op.HELLO, 1, 9, pack(HELLO)))
    with pytest.raises(FormError) as caught:
        encode(changed(form, value, "hello", field))
    assert complaint in str(caught.value)


@pytest.mark.parametrize("n_bytes", [0, 15, 17])
def test_a_row_block_of_another_size_is_refused(n_bytes: int) -> None:
    with pytest.raises(FormError, match="rows: "):
        encode(decode(STEP), bytes(n_bytes))


def test_rows_go_with_a_step_only() -> None:
    with pytest.raises(FormError, match="rows: only a STEP request has any"):
        encode(decode(reply()), b"")
