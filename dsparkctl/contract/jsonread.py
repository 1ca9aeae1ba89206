"""Bodies of messages as JSON-able dicts, read as a request or as a reply (§6).

Decides what cannot be taken apart at all (WireError, with field and offset), and lists beside the
fields what the contract forbids in a body that can. Refuses to know which way a message went.
"""

import json
from hashlib import sha256
from math import isfinite
from typing import Any, Final, NamedTuple

from dsparkctl.contract import codes
from dsparkctl.contract.codes import EntryStatus, Op
from dsparkctl.contract.errors import WireError, malformed
from dsparkctl.contract.framing import HEADER_BYTES, aligned
from dsparkctl.contract.jsonnames import name_of, unknown_flags
from dsparkctl.contract.jsonrecord import number_to_json, quote, to_json
from dsparkctl.contract.layout import layout_of, unpack
from dsparkctl.contract.messages import (
    Limits,
    parse_hello,
    parse_hello_reply,
    parse_reset,
    parse_step,
    parse_step_reply,
)
from dsparkctl.contract.records import AppHeader, ReqEntry, StepHeader

STEP_HEAD: Final = layout_of(StepHeader).size
ENTRY: Final = layout_of(ReqEntry).size

MAX_STATS_DEPTH: Final = 32
"""Deeper JSON is no counters, and printing it would run out of stack."""


class Reading(NamedTuple):
    """A body read one way: its keys, and a line for each thing that speaks against them."""

    fields: dict[str, Any]
    problems: list[str]


def read_request(header: AppHeader, body: memoryview) -> Reading:
    problems = [f"status {header.status} in a request, expected 0 (R27)"] if header.status else []
    match header.op:
        case Op.HELLO:
            return Reading({"hello": to_json(parse_hello(body))}, problems)
        case Op.STEP:
            return _read_step(body, problems)
        case Op.RESET:
            return Reading({"reset": to_json(parse_reset(body))}, problems)
        case Op.STATS:
            return _read_empty(body, "STATS request body", problems)
        case Op.PING if body:
            problems.append(f"body of {len(body)} bytes is ignored (R13)")
    return _read_unknown(body, problems)


def read_reply(header: AppHeader, body: memoryview) -> Reading:
    if header.status and not body:
        return Reading({}, [])
    match header.op:
        case Op.HELLO:
            return Reading({"hello_reply": to_json(parse_hello_reply(body))}, [])
        case Op.STEP:
            return _read_step_reply(body)
        case Op.RESET | Op.PING:
            return _read_empty(body, f"{Op(header.op).name} reply body", [])
        case Op.STATS:
            return Reading({"stats": _parse_stats(body)}, [])
    return _read_unknown(body, [])


def _read_empty(body: memoryview, name: str, problems: list[str]) -> Reading:
    if body:
        raise malformed(name, HEADER_BYTES, f"{len(body)} bytes, expected none")
    return Reading({}, problems)


def _read_unknown(body: memoryview, problems: list[str]) -> Reading:
    return Reading({"body": body.hex()} if body else {}, problems)


def _read_step(body: memoryview, problems: list[str]) -> Reading:
    if len(body) < STEP_HEAD:
        raise malformed("StepHeader", HEADER_BYTES, f"{len(body)} bytes, expected {STEP_HEAD}")
    head = unpack(StepHeader, body)
    head_bytes = STEP_HEAD + ENTRY * head.n_req
    if len(body) < head_bytes:
        reason = f"{head.n_req} entries do not fit {len(body)} bytes"
        raise malformed("entries", HEADER_BYTES + STEP_HEAD, reason)
    start = len(body) if not head.n_rows else head.rows_offset
    reason = step_misfit(head, len(body))
    if reason:
        raise malformed("row block", HEADER_BYTES + min(start, aligned(head_bytes)), reason)
    entries = [unpack(ReqEntry, body, at) for at in range(STEP_HEAD, head_bytes, ENTRY)]
    problems += unknown_flags("step_flags", head.step_flags, codes.STEP_FLAG_NAMES)
    for i, entry in enumerate(entries):
        where = f"entries[{i}].req_flags"
        problems += unknown_flags(where, entry.req_flags, codes.REQ_FLAG_NAMES)
    if any(body[head_bytes:start]):
        problems.append(f"padding at offset {HEADER_BYTES + head_bytes} is not zero")
    try:
        parse_step(body, Limits(0x100, 0xFFFFFFFF, head.row_bytes))
    except WireError as error:
        problems.append(str(error))
    fields = {
        "step_header": to_json(head),
        "entries": [to_json(entry) for entry in entries],
        "row_block_sha256": sha256(body[start:]).hexdigest(),
    }
    return Reading(fields, problems)


def step_misfit(head: StepHeader, n_bytes: int) -> str:
    """Why a body of `n_bytes` is not that of `head`; without rows it may be padded or not (R14)."""
    head_bytes = STEP_HEAD + ENTRY * head.n_req
    if not head.n_rows:
        if head_bytes <= n_bytes <= aligned(head_bytes) or n_bytes == head.rows_offset > head_bytes:
            return ""
        return f"no rows, expected a body of {head_bytes} to {aligned(head_bytes)} bytes"
    if head.rows_offset < head_bytes:
        return f"starts at {head.rows_offset} of the body, the entries end at {head_bytes}"
    end = head.rows_offset + head.n_rows * head.row_bytes
    if end != n_bytes:
        return f"{head.n_rows} rows of {head.row_bytes} bytes end at {end}, the body at {n_bytes}"
    return ""


def _read_step_reply(body: memoryview) -> Reading:
    reply = parse_step_reply(body)
    n = reply.head.num_spec
    at = range(0, n * len(reply.statuses), n) if n else [0] * len(reply.statuses)
    fields: dict[str, Any] = {
        "reply_header": to_json(reply.head),
        "req_status": [to_json(status) for status in reply.statuses],
        "draft_ids": [[*reply.draft_ids[i : i + n]] for i in at],
        "confidence": [[number_to_json(x) for x in reply.confidence[i : i + n]] for i in at],
    }
    if reply.margin is not None:
        fields["margin"] = [[number_to_json(x) for x in reply.margin[i : i + n]] for i in at]
    problems = unknown_flags("reply_flags", reply.head.reply_flags, codes.REPLY_FLAG_NAMES)
    problems += [
        f"req_status[{i}].status {status.status} is not a code of §9.2"
        for i, status in enumerate(reply.statuses)
        if name_of(EntryStatus, status.status) is None
    ]
    return Reading(fields, problems)


def _parse_stats(body: memoryview) -> dict[str, Any]:
    try:
        text = bytes(body).decode("utf-8")
        stats = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except UnicodeDecodeError as error:
        at = HEADER_BYTES + error.start
        raise malformed("STATS reply body", at, "not UTF-8") from None
    except json.JSONDecodeError as error:
        at = HEADER_BYTES + len(error.doc[: error.pos].encode())
        raise malformed("STATS reply body", at, f"not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # ValueError: a number beyond Python's bounds
        reason = f"not JSON: {str(error).splitlines()[0]}"
        raise malformed("STATS reply body", HEADER_BYTES, reason) from None
    if not isinstance(stats, dict):
        raise malformed("STATS reply body", HEADER_BYTES, f"{quote(stats)}, expected an object")
    if _deeper(stats, MAX_STATS_DEPTH):
        raise malformed("STATS reply body", HEADER_BYTES, f"nested over {MAX_STATS_DEPTH} deep")
    return stats


def _finite(number: str) -> float:
    value = float(number)
    if not isfinite(value):
        raise ValueError(f"{number} is not finite")
    return value


def _deeper(value: Any, n_levels: int) -> bool:
    """Whether objects and lists stand inside each other more than `n_levels` deep."""
    level = [value]
    for _ in range(n_levels):
        nested = [v for v in level if isinstance(v, (dict, list))]
        level = [
            v for outer in nested for v in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(v, (dict, list)) for v in level)
