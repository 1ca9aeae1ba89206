"""A peer's bytes, however broken, are parsed or refused with WireError and never anything else."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkctl.contract.codes import MAGIC, VERSION
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import message_bytes
from dsparkctl.contract.jsonform import Direction, decode, encode
from dsparkctl.contract.jsonrecord import FormError
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import (
    Limits,
    parse_header,
    parse_hello,
    parse_hello_reply,
    parse_reset,
    parse_step,
    parse_step_reply,
)
from dsparkctl.contract.records import AppHeader

E = TypeVar("E", bound=Exception)

GOLDEN = Path(__file__).parents[1] / "golden/wire/messages.json"
MESSAGES = [bytes.fromhex(m["hex"])[:4096] for m in json.loads(GOLDEN.read_text())]
LIMITS = Limits(max_slots=4, max_rows_per_step=512, row_bytes=384)

REPLAYABLE = settings(max_examples=200)

PARSERS: dict[str, Callable[[bytes], Any]] = {
    "header": parse_header,
    "hello": parse_hello,
    "hello_reply": parse_hello_reply,
    "reset": parse_reset,
    "step": lambda data: parse_step(memoryview(data), LIMITS),
    "step_reply": parse_step_reply,
    "json": decode,
    "json_request": lambda data: decode(data, Direction.REQUEST),
    "json_reply": lambda data: decode(data, Direction.REPLY),
}


def caught(expected: type[E], call: Callable[[Any], Any], value: Any) -> E | None:
    """The one kind of error that the call may raise; any other goes through."""
    try:
        call(value)
    except expected as error:
        return error
    return None


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A golden message with some bytes changed, cut, doubled or added."""
    data = bytearray(draw(st.sampled_from(MESSAGES)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, min(len(data), 160) - 1))
        data[at] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    end = draw(st.sampled_from([len(data)] * 3 + [0, 31, 32, 63, 64, 95, 96, len(data) - 1]))
    return bytes(data[:end]) + draw(st.sampled_from([b"", b"", b"\0", b"DSP1" * 8]))


@st.composite
def whole(draw: st.DrawFn) -> bytes:
    """Any body under a header that fits it, so that it reaches the body's parser."""
    body = draw(st.one_of(st.binary(max_size=300), broken().map(lambda data: data[32:])))
    header = AppHeader(
        magic=MAGIC,
        version=VERSION,
        op=draw(st.integers(0, 7)),
        seq=draw(st.integers(0, (1 << 64) - 1)),
        session=draw(st.integers(0, 2)),
        body_len=len(body),
        status=draw(st.sampled_from([0, 0, 0, 1, 9, 77, -1])),
        flags=0,
    )
    return pack(header) + body


BYTES = st.one_of(st.binary(max_size=300), broken(), whole())


@pytest.mark.parametrize("name", PARSERS)
@REPLAYABLE
@given(data=BYTES)
def test_no_bytes_raise_anything_but_wire_error(name: str, data: bytes) -> None:
    """§5, §6: also of the body alone; what is refused names its place in one line."""
    for part in (data, data[32:]):
        error = caught(WireError, PARSERS[name], part)
        if error:
            assert str(error).startswith(f"{error.field} at offset {error.offset}: ")
            assert "\n" not in str(error)
            assert error.offset >= 0


@REPLAYABLE
@given(data=st.binary(min_size=4, max_size=8))
def test_no_prefix_announces_more_than_a_message_may_have(data: bytes) -> None:
    """R33."""
    with suppress(WireError):
        assert 32 <= message_bytes(data) <= 16 << 20


@REPLAYABLE
@given(data=st.one_of(broken(), whole()))
def test_a_step_that_parses_holds_what_it_says(data: bytes) -> None:
    """R10 to R14: after parsing nobody needs to check again."""
    with suppress(WireError):
        step = parse_step(memoryview(data)[32:], LIMITS)
        assert 1 <= len(step.entries) == step.head.n_req <= LIMITS.max_slots
        slots = [entry.slot for entry in step.entries]
        assert len({*slots}) == len(slots)
        assert max(slots) < LIMITS.max_slots
        n_rows = sum(entry.n_rows for entry in step.entries)
        assert n_rows == step.head.n_rows <= LIMITS.max_rows_per_step
        assert len(step.rows) == n_rows * LIMITS.row_bytes


@REPLAYABLE
@given(data=st.one_of(broken(), whole()))
def test_whatever_decodes_can_be_printed_and_encoded_again(data: bytes) -> None:
    """§6: the same bytes, but for what the dict does not hold: rows, padding, a NaN's payload."""
    with suppress(WireError):
        form = json.loads(json.dumps(decode(data), allow_nan=False))
        again = encode(form)
        assert len(again) == form["bytes"]
        assert again[:32] == data[-len(again) :][:32]
        assert encode(decode(again)) == again


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
FORMS = [decode(message) for message in MESSAGES if len(message) < 4096]


@st.composite
def broken_forms(draw: st.DrawFn) -> Any:
    """A golden dict with one value anywhere in it replaced."""
    form = json.loads(json.dumps(draw(st.sampled_from(FORMS))))
    at = form
    while True:
        key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[key], dict | list) or not at[key] or draw(st.booleans()):
            at[key] = draw(JSON)
            return form
        at = at[key]


@REPLAYABLE
@given(form=st.one_of(JSON, broken_forms()))
def test_no_json_raises_anything_but_form_error(form: Any) -> None:
    assert "\n" not in str(caught(FormError, encode, form))
