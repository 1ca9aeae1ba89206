"""Bodies of messages from JSON-able dicts: the reverse of `jsonread` (§6).

Decides which keys make a body, and holds the sizes in them against each other. Refuses to judge
values: a wrong one that fits its field is written, for that is how a hostile message is made.
"""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from dsparkctl.contract.codes import ALL_SLOTS, HAS_MARGIN, Op
from dsparkctl.contract.framing import HEADER_BYTES, MAX_MESSAGE_BYTES, aligned
from dsparkctl.contract.jsonread import ENTRY, STEP_HEAD, step_misfit
from dsparkctl.contract.jsonrecord import (
    FormError,
    from_json,
    integer,
    items,
    mapping,
    number_from_json,
    quote,
)
from dsparkctl.contract.layout import layout_of, pack
from dsparkctl.contract.records import (
    Hello,
    HelloReply,
    ReplyHeader,
    ReqEntry,
    ReqStatus,
    Reset,
    StepHeader,
)

_I32_MIN: Final = -(1 << 31)
_I32_MAX: Final = (1 << 31) - 1


class Given(NamedTuple):
    """What a body is made of."""

    parts: Mapping[str, Any]
    """The message's keys but `header`."""
    n_body: int | None
    """body_len, where the header states it. It settles what the parts leave open: the padding of a
    STEP without rows, the spelling of JSON, and what a RESET without a mask is."""
    rows: bytes | None
    """A STEP's row block; None for zeros."""


def write_body(op: int, given: Given) -> bytes:
    """The body of a message of `op`, FormError if its parts spell none."""
    if given.rows is not None and "step_header" not in given.parts:
        raise FormError("rows: only a STEP request has any")
    if not given.parts:
        resets_all = op == Op.RESET and given.n_body == layout_of(Reset).size
        return pack(Reset(ALL_SLOTS)) if resets_all else b""
    kind = next(kind for kind in _KINDS if not given.parts.keys().isdisjoint(kind.keys))
    for key in kind.keys:
        if key not in given.parts and key != "margin":
            raise FormError(f"{key}: missing")
    for key in given.parts:
        if key not in kind.keys:
            raise FormError(f"{key}: does not go with {kind.keys[0]}")
    if kind.op not in (None, op):
        raise FormError(f"header.op: {op}, but {kind.keys[0]} goes with {kind.op}")
    return kind.write(given)


def _record(cls: type[Any], key: str) -> Callable[[Given], bytes]:
    return lambda given: pack(from_json(cls, given.parts[key], key))


def _step(given: Given) -> bytes:
    head = from_json(StepHeader, given.parts["step_header"], "step_header")
    entries = items(given.parts["entries"], "entries", head.n_req)
    packed = [pack(from_json(ReqEntry, entry, f"entries[{i}]")) for i, entry in enumerate(entries)]
    block_bytes = head.n_rows * head.row_bytes
    if head.n_rows:
        n_body = head.rows_offset + block_bytes
    else:
        n_body = aligned(STEP_HEAD + ENTRY * head.n_req) if given.n_body is None else given.n_body
    if n_body > MAX_MESSAGE_BYTES - HEADER_BYTES:
        raise FormError(f"step_header: a body of {n_body} bytes is beyond {MAX_MESSAGE_BYTES}")
    misfit = step_misfit(head, n_body)
    if misfit:
        raise FormError(f"step_header.rows_offset: {misfit}")
    rows = bytes(block_bytes) if given.rows is None else given.rows
    if len(rows) != block_bytes:
        raise FormError(
            f"rows: {len(rows)} bytes, but {head.n_rows} rows have {head.row_bytes} bytes each"
        )
    return (pack(head) + b"".join(packed)).ljust(n_body - block_bytes, b"\0") + rows


def _step_reply(given: Given) -> bytes:
    parts = given.parts
    head = from_json(ReplyHeader, parts["reply_header"], "reply_header")
    if bool(head.reply_flags & HAS_MARGIN) != ("margin" in parts):
        raise FormError("margin: stands there exactly when reply_flags has HAS_MARGIN (1)")
    statuses = items(parts["req_status"], "req_status", head.n_req)
    packed = [pack(from_json(ReqStatus, s, f"req_status[{i}]")) for i, s in enumerate(statuses)]
    n = head.n_req * head.num_spec
    ids = [integer(x, where, _I32_MIN, _I32_MAX) for x, where in _each(parts, "draft_ids", head)]
    floats = [
        number_from_json(x, where)
        for key in ("confidence", "margin")
        if key in parts
        for x, where in _each(parts, key, head)
    ]
    return pack(head) + b"".join(packed) + struct.pack(f"<{n}i{len(floats)}f", *ids, *floats)


def _each(parts: Mapping[str, Any], key: str, head: ReplyHeader) -> list[tuple[Any, str]]:
    """The values of a `[n_req][N]` array in turn, each with its name."""
    return [
        (value, f"{key}[{i}][{j}]")
        for i, drafts in enumerate(items(parts[key], key, head.n_req))
        for j, value in enumerate(items(drafts, f"{key}[{i}]", head.num_spec))
    ]


def _stats(given: Given) -> bytes:
    """JSON has more than one spelling: the first that fills body_len, else the shortest."""
    stats = mapping(given.parts["stats"], "stats")
    try:
        spellings = [
            json.dumps(stats, separators=marks, ensure_ascii=escape, allow_nan=False).encode()
            for marks in ((",", ":"), (", ", ": "))
            for escape in (False, True)
        ]
    except (RecursionError, ValueError) as error:
        raise FormError(f"stats: {str(error).splitlines()[0]}") from None
    return next((s for s in spellings if len(s) == given.n_body), spellings[0])


def _hex(given: Given) -> bytes:
    value = given.parts["body"]
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        raise FormError(f"body: {quote(value)}, expected hex digits") from None


class _Kind(NamedTuple):
    """A kind of body: the op it belongs to (None: any), its keys, and how it is written."""

    op: Op | None
    keys: tuple[str, ...]
    write: Callable[[Given], bytes]


_KINDS: Final = (
    _Kind(Op.HELLO, ("hello",), _record(Hello, "hello")),
    _Kind(Op.HELLO, ("hello_reply",), _record(HelloReply, "hello_reply")),
    _Kind(Op.STEP, ("step_header", "entries"), _step),
    _Kind(
        Op.STEP,
        ("reply_header", "req_status", "draft_ids", "confidence", "margin"),
        _step_reply,
    ),
    _Kind(Op.RESET, ("reset",), _record(Reset, "reset")),
    _Kind(Op.STATS, ("stats",), _stats),
    _Kind(None, ("body",), _hex),
)

BODY_KEYS: Final = tuple(key for kind in _KINDS for key in kind.keys)
"""Every key that makes a body; `margin` alone of them may be missing."""
