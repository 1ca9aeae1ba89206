"""Byte-exact messages, computed by hand from §6's tables: the codec and its JSON against them."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.contract.codes import Op
from dsparkctl.contract.framing import message_bytes, prefix
from dsparkctl.contract.jsonform import decode, encode
from dsparkctl.contract.jsonrecord import from_json, to_json
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import (
    Limits,
    frame,
    hello_frame,
    parse_header,
    parse_hello,
    parse_hello_reply,
    parse_reset,
    parse_step,
    parse_step_reply,
    step_head,
    step_reply_frame,
)
from dsparkctl.contract.records import AppHeader, Hello, HelloReply, ReqEntry, ReqStatus, Reset

Message = dict[str, Any]

GOLDEN = Path(__file__).parents[1] / "golden/wire/messages.json"
MESSAGES: list[Message] = json.loads(GOLDEN.read_text())
NOT_FIELDS = {"name", "note", "hex", "tcp_length_prefix"}


def having(key: str) -> pytest.MarkDecorator:
    found = [message for message in MESSAGES if key in message]
    return pytest.mark.parametrize("golden", found, ids=[m["name"] for m in found])


def wire(golden: Message) -> bytes:
    return bytes.fromhex(golden["hex"])


def row_block(golden: Message) -> bytes | None:
    if "step_header" not in golden:
        return None
    return wire(golden)[32 + golden["step_header"]["rows_offset"] :]


def asked(golden: Message) -> tuple[int, int]:
    return golden["header"]["seq"], golden["header"]["session"]


def test_there_are_golden_messages_of_every_kind() -> None:
    keys = {key for message in MESSAGES for key in message}
    assert keys >= {"hello", "hello_reply", "step_header", "reply_header", "margin"}
    assert {message["header"]["op"] for message in MESSAGES} >= {*map(int, Op)}


# --- the codec ---


@having("header")
def test_every_header_is_read_and_written(golden: Message) -> None:
    """§6.1, §5."""
    message = wire(golden)
    header = parse_header(message)
    assert to_json(header) == golden["header"]
    assert pack(from_json(AppHeader, golden["header"], "header")) == message[:32]
    made = frame(header.op, header.seq, header.session, message[32:], header.status)
    assert made == message
    assert prefix(len(message)).hex() == golden["tcp_length_prefix"]
    assert message_bytes(prefix(len(message))) == golden["bytes"]


@having("hello")
def test_hello_is_read_and_written(golden: Message) -> None:
    """§6.2."""
    hello = parse_hello(wire(golden)[32:])
    assert to_json(hello) == golden["hello"]
    made = hello_frame(*asked(golden), from_json(Hello, golden["hello"], "hello"))
    assert made == wire(golden)


@having("hello_reply")
def test_a_hello_reply_is_read_and_written(golden: Message) -> None:
    """§6.2."""
    reply = parse_hello_reply(wire(golden)[32:])
    assert to_json(reply) == golden["hello_reply"]
    assert pack(from_json(HelloReply, golden["hello_reply"], "hello_reply")) == wire(golden)[32:]


@having("step_header")
def test_a_step_is_read_and_written(golden: Message) -> None:
    """§6.3."""
    head = golden["step_header"]
    step = parse_step(memoryview(wire(golden))[32:], Limits(4, 512, head["row_bytes"]))
    assert to_json(step.head) == head
    assert [to_json(entry) for entry in step.entries] == golden["entries"]
    assert sha256(step.rows).hexdigest() == golden["row_block_sha256"]
    seq, session = asked(golden)
    made = step_head(
        seq=seq,
        session=session,
        step_id=head["step_id"],
        step_flags=head["step_flags"],
        row_bytes=head["row_bytes"],
        entries=[from_json(ReqEntry, entry, "entry") for entry in golden["entries"]],
    )
    assert made + bytes(step.rows) == wire(golden)


@having("reply_header")
def test_a_step_reply_is_read_and_written(golden: Message) -> None:
    """§6.3."""
    reply = parse_step_reply(wire(golden)[32:])
    assert to_json(reply.head) == golden["reply_header"]
    assert [to_json(status) for status in reply.statuses] == golden["req_status"]
    for key in ("draft_ids", "confidence", "margin"):
        flat = [value for values in golden.get(key, []) for value in values]
        assert [*(getattr(reply, key) or ())] == flat
    seq, session = asked(golden)
    made = step_reply_frame(
        seq=seq,
        session=session,
        head=reply.head,
        statuses=[from_json(ReqStatus, status, "status") for status in golden["req_status"]],
        draft_ids=reply.draft_ids,
        confidence=reply.confidence,
        margin=reply.margin,
    )
    assert made == wire(golden)


def test_a_reset_names_its_slots() -> None:
    """§6.4."""
    golden = next(message for message in MESSAGES if message["name"] == "reset_all")
    assert parse_reset(wire(golden)[32:]) == Reset(0xFFFFFFFF)


# --- the JSON of `dsparkctl wire` ---


@having("header")
def test_decoding_gives_exactly_the_golden_fields(golden: Message) -> None:
    """§6: same nesting, names and numbers; what else stands there is at the top."""
    fields = {key: value for key, value in golden.items() if key not in NOT_FIELDS}
    form = decode(wire(golden))
    assert {key: form[key] for key in fields} == fields
    extra = form.keys() - fields.keys() - {"direction", "problems", "reset"}
    assert all(key.endswith(("_name", "_names")) for key in extra)


@having("header")
def test_a_golden_prefix_is_recognised(golden: Message) -> None:
    """§5."""
    form = decode(bytes.fromhex(golden["tcp_length_prefix"]) + wire(golden))
    assert form.pop("tcp_length_prefix") == golden["tcp_length_prefix"]
    assert form == decode(wire(golden))


@having("header")
def test_encoding_gives_exactly_the_golden_bytes(golden: Message) -> None:
    """§6: of the golden fields, and of what decoding made of the bytes."""
    rows = row_block(golden)
    assert encode(golden, rows) == wire(golden)
    assert encode(decode(wire(golden)), rows) == wire(golden)


@having("step_header")
def test_rows_that_are_not_given_are_zeros(golden: Message) -> None:
    """§6.3: everything before them is the same."""
    rows = row_block(golden) or b""
    assert encode(golden) == wire(golden)[: -len(rows)] + bytes(len(rows))


@having("header")
def test_only_a_ping_goes_both_ways(golden: Message) -> None:
    """§6.6: its request and its reply are the same bytes."""
    name = golden["name"]
    if name == "ping":
        expected = "either"
    else:
        is_reply = "reply" in name or name.startswith("frame_")
        expected = "reply" if is_reply else "request"
    assert decode(wire(golden))["direction"] == expected
