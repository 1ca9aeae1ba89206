"""A reply against the text of §6.3 and §9, read once more and written down without our rules.

Decides from bytes alone. It shares no line with `state.reply`, `net.ask` and `contract.messages`,
so that a mistake there is not repeated here.
"""

import math
import struct
from enum import Enum
from typing import Final, NamedTuple

from dsparkctl.simulation.world import IDENTITY, VOCAB_SIZE, Terms

HEADER: Final = struct.Struct("<IHHQIIiI")
_STATUS: Final = struct.Struct("<i")
STEP_HEAD: Final = struct.Struct("<QHHIIIII")
ENTRY: Final = struct.Struct("<BBBBIqIiq")
_REPLY_HEAD: Final = struct.Struct("<QHHIIIII")
_HELLO_REPLY: Final = struct.Struct("<IIIIII32s32s40s")

Entry = tuple[int, int, int, int, int, int, int, int, int]
"""slot, req_flags, k_window, n_out, generation, first_pos, n_rows, anchor_token, anchor_pos"""


class Asked(NamedTuple):
    """A STEP as it went out."""

    seq: int
    session: int
    step_id: int
    step_flags: int
    entries: list[Entry]
    rows: bytes


class Kind(Enum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    """Nothing of it may be used, and the connection is to be dropped."""
    FRAME = "frame status"
    """An error of §9.1 that is no more than that."""
    HELLO_AGAIN = "say HELLO"
    FATAL = "fatal"


class Ruling(NamedTuple):
    kind: Kind
    statuses: list[int]
    """Of the entries where the reply is accepted; of the frame where it asks for HELLO."""
    draft_ids: tuple[int, ...]
    confidence: tuple[float, ...]
    margin: tuple[float, ...] | None = None


def asked(request: bytes) -> Asked:
    """The parts of a STEP."""
    fields = HEADER.unpack_from(request)
    step_id, n_req, flags, n_rows, row_bytes, start, _, _ = STEP_HEAD.unpack_from(request, 32)
    entries: list[Entry] = [ENTRY.unpack_from(request, 64 + 32 * i) for i in range(n_req)]
    rows = request[32 + start :]
    assert len(rows) == n_rows * row_bytes, "rows do not fill the block"
    return Asked(fields[3], fields[4], step_id, flags, entries, rows)


_REFUSED: Final = Ruling(Kind.REFUSED, [], (), ())


def answers(request: bytes, reply: bytes) -> bool:
    """Whether the reply is one to this request: a whole DSP1 message with its echoes (§6.1)."""
    if len(reply) < 32:
        return False
    magic, version, op, seq, session, body_len, status, _ = HEADER.unpack_from(reply)
    if magic != 0x31505344 or body_len != len(reply) - 32 or (version != 1 and status != 1):
        return False
    _, _, our_op, our_seq, our_session, _, _, _ = HEADER.unpack_from(request)
    return (op, seq, session) == (our_op, our_seq, our_session)


def step_ruling(request: bytes, step: Asked, reply: bytes, terms: Terms) -> Ruling:
    """What rank 0 must make of these bytes."""
    if not answers(request, reply):
        return _REFUSED
    (status,) = _STATUS.unpack_from(reply, 24)
    if status in (1, 2, 3, 9):
        return Ruling(Kind.FATAL, [], (), ())
    if status in (4, 5):
        return Ruling(Kind.HELLO_AGAIN, [status], (), ())
    if status in (6, 7, 8):
        return Ruling(Kind.FRAME, [], (), ())
    if status != 0:
        return _REFUSED
    return _body_ruling(step, reply[32:], terms)


def _body_ruling(step: Asked, body: bytes, terms: Terms) -> Ruling:
    n, n_req = terms.num_spec, len(step.entries)
    if len(body) < 32:
        return _REFUSED
    step_id, said_req, said_n, flags, _, _, _, _ = _REPLY_HEAD.unpack_from(body)
    if (step_id, said_req, said_n) != (step.step_id, n_req, n):
        return _REFUSED
    has_margin = flags & 1
    n_values = n_req * n
    if len(body) != 32 + 8 * n_req + 4 * n_values * (3 if has_margin else 2):
        return _REFUSED
    at = 32 + 8 * n_req
    ids = struct.unpack_from(f"<{n_values}i", body, at)
    confidence = struct.unpack_from(f"<{n_values}f", body, at + 4 * n_values)
    margin = struct.unpack_from(f"<{n_values}f", body, at + 8 * n_values) if has_margin else None
    statuses: list[int] = []
    for i, entry in enumerate(step.entries):
        status, window_rows, generation = struct.unpack_from("<HHI", body, 32 + 8 * i)
        statuses.append(status)
        full = min(terms.window, entry[8])
        needs_draft = entry[1] & 2
        if generation != entry[4] or status > 4 or window_rows > full:
            return _REFUSED
        if needs_draft and status == 0 and window_rows != full:
            return _REFUSED
        if needs_draft and status == 1 and window_rows >= full:
            return _REFUSED
        n_read = (entry[3] or n) if needs_draft and status <= 1 else 0
        first = i * n
        for j in range(first, first + n_read):
            if ids[j] < 0 or ids[j] >= VOCAB_SIZE:
                return _REFUSED
            if math.isnan(confidence[j]) or confidence[j] < 0 or confidence[j] > 1:
                return _REFUSED
            if margin is not None and (not math.isfinite(margin[j]) or margin[j] < 0):
                return _REFUSED
        for j in range(first + n_read, first + n):
            if ids[j] != 0 or confidence[j] != 0 or (margin is not None and margin[j] != 0):
                return _REFUSED
    return Ruling(Kind.ACCEPTED, statuses, ids, confidence, margin)


def hello_ruling(request: bytes, reply: bytes, terms: Terms) -> Kind:
    """What rank 0 must make of a reply to its HELLO (§6.2, C5, C17, C18)."""
    if not answers(request, reply):
        return Kind.REFUSED
    (status,) = _STATUS.unpack_from(reply, 24)
    if status in (1, 2, 3, 9):
        return Kind.FATAL
    if status != 0 or len(reply) != 160:
        return Kind.REFUSED
    proto, slots, rows, can, window, n, identity, markov, _ = _HELLO_REPLY.unpack_from(reply, 32)
    fits = (proto, window, n, identity, markov) == (
        1,
        terms.window,
        terms.num_spec,
        IDENTITY,
        bytes(32),
    )
    fits = fits and slots >= terms.max_slots and rows >= terms.max_slots * terms.window and can & 1
    return Kind.ACCEPTED if fits else Kind.FATAL
