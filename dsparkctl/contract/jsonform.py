"""A message as one JSON-able dict and back: what a person reads of a capture and edits (§6).

Decides the dict's keys: `header`, then `hello`, `hello_reply`, `step_header` and `entries` (the
row block as `row_block_sha256`), `reply_header`, `req_status`, `draft_ids`, `confidence` and
`margin`, `reset`, or `stats`; a body that says nothing (a PING's, an unknown op's) is hex under
`body`. Numbers stay plain; names of codes and flags stand beside them as `…_name` and `…_names`.
Decides too which way a message goes (`direction`), since no field of it says so.

Decoding refuses what cannot be taken apart (WireError), and lists what the contract forbids in a
message that can be under `problems`. Limits are the message's own, so that any geometry decodes.

Encoding writes values as they are given, a wrong one too: that is how a hostile message is made.
But sizes must agree: `body_len`, which may be left out, `n_req`, `num_spec`, HAS_MARGIN.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from dsparkctl.contract.codes import MAGIC, VERSION, FrameStatus, Op
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import HEADER_BYTES, MAX_MESSAGE_BYTES, PREFIX_BYTES, message_bytes
from dsparkctl.contract.jsonnames import name_of, names_in
from dsparkctl.contract.jsonread import Reading, read_reply, read_request
from dsparkctl.contract.jsonrecord import FormError, from_json, mapping, only, to_json
from dsparkctl.contract.jsonwrite import BODY_KEYS, Given, write_body
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import parse_header
from dsparkctl.contract.records import AppHeader

MAX_CAPTURE_BYTES: Final = PREFIX_BYTES + MAX_MESSAGE_BYTES

_MAGIC_BYTES: Final = MAGIC.to_bytes(4, "little")

_INFORMATIVE: Final = (
    *("name", "note", "bytes", "hex", "tcp_length_prefix", "row_block_sha256"),
    *("direction", "problems"),
)
"""Keys that encoding passes over, besides every `…_name` and `…_names`."""


class Direction(StrEnum):
    """Which way a message goes; EITHER when request and reply are the same bytes."""

    REQUEST = "request"
    REPLY = "reply"
    EITHER = "either"


def decode(data: bytes, forced: Direction | None = None) -> dict[str, Any]:
    """The dict of one message, with or without a TCP length prefix; WireError if it is none.

    Offsets in errors count from the AppHeader. `forced` reads it as a REQUEST or as a REPLY.
    """
    prefix, message = _without_prefix(data)
    if len(message) > MAX_MESSAGE_BYTES:
        raise WireError(None, "message", 0, f"longer than {MAX_MESSAGE_BYTES} bytes")
    header = parse_header(message)
    if header.version != VERSION:
        raise WireError(
            FrameStatus.BAD_VERSION, "version", 4, f"{header.version}, expected {VERSION}"
        )
    direction, reading = _directed(header, memoryview(message)[HEADER_BYTES:], forced)
    form: dict[str, Any] = {"direction": direction.value, "bytes": len(message)}
    if prefix:
        form["tcp_length_prefix"] = prefix.hex()
    form |= {"header": to_json(header), **reading.fields}
    form |= names_in(form)
    problems = [*_header_problems(header), *reading.problems]
    return {**form, "problems": problems} if problems else form


def encode(form: Any, rows: bytes | None = None) -> bytes:
    """AppHeader and body of the message that the dict `form` spells; FormError if it spells none.

    `rows` is a STEP's row block, zeros when it is not given. A RESET may leave out `reset` where
    its body_len is 4, and then names all slots.
    """
    parts = {
        key: value
        for key, value in mapping(form, "message").items()
        if key not in _INFORMATIVE and not key.endswith(("_name", "_names"))
    }
    only(parts, ("header", *BODY_KEYS))
    if "header" not in parts:
        raise FormError("header: missing")
    said = mapping(parts.pop("header"), "header")
    header = from_json(AppHeader, said, "header", {"body_len": 0})
    n_body = header.body_len if "body_len" in said else None
    body = write_body(header.op, Given(parts, n_body, rows))
    if n_body not in (None, len(body)):
        raise FormError(f"header.body_len: {n_body}, but the body has {len(body)} bytes")
    return pack(header._replace(body_len=len(body))) + body


def _without_prefix(data: bytes) -> tuple[bytes, bytes]:
    if data[PREFIX_BYTES : 2 * PREFIX_BYTES] != _MAGIC_BYTES or data[:4] == _MAGIC_BYTES:
        return b"", data
    length = message_bytes(data)
    if length != len(data) - PREFIX_BYTES:
        raise WireError(
            None, "length prefix", 0, f"{length}, but {len(data) - PREFIX_BYTES} bytes follow"
        )
    return data[:PREFIX_BYTES], data[PREFIX_BYTES:]


def _directed(
    header: AppHeader, body: memoryview, forced: Direction | None
) -> tuple[Direction, Reading]:
    """The one reading that fits; of two the one without problems; else both, and the request's."""
    readings: dict[Direction, Reading] = {}
    errors: list[WireError] = []
    for way in (forced,) if forced else (Direction.REQUEST, Direction.REPLY):
        try:
            read = read_reply if way is Direction.REPLY else read_request
            readings[way] = read(header, body)
        except WireError as error:
            errors.append(error)
    if not readings:
        raise _of_both(errors, header.status)
    clean = {way: reading for way, reading in readings.items() if not reading.problems}
    left = clean if len(clean) == 1 else readings
    if len(left) == 1:
        return next(iter(left.items()))
    request, reply = left[Direction.REQUEST], left[Direction.REPLY]
    also = ["fits a reply too"] if request.fields != reply.fields else []
    return Direction.EITHER, Reading(request.fields, [*request.problems, *also])


def _of_both(errors: list[WireError], status: int) -> WireError:
    """The likelier direction's error, and the other's behind it."""
    if len(errors) == 1:
        return errors[0]
    first, second = reversed(errors) if status else errors
    other = "request" if status else "reply"
    reason = f"{first.reason} (as a {other}: {second})"
    return WireError(first.status, first.field, first.offset, reason)


def _header_problems(header: AppHeader) -> Iterable[str]:
    if name_of(Op, header.op) is None:
        yield f"op {header.op} is unknown"
    if name_of(FrameStatus, header.status) is None:
        yield f"status {header.status} is not a code of §9.1"
    if header.flags:
        yield f"flags 0x{header.flags:x}, expected 0 (R27)"
