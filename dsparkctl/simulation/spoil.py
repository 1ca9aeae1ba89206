"""Replies gone bad: every value that §6.3 refuses, and every way to answer and yet fail (§9).

Decides which bytes of a sound reply change. Each refused value is one line of the table; a line
that a reply has no place for says so, and another one is taken.
"""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from dsparkctl.contract.codes import HAS_MARGIN, NEED_DRAFT
from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.simulation.world import VOCAB_SIZE

_HEAD: Final = HEADER_BYTES
_STATUSES: Final = _HEAD + 32
_ENTRY: Final = struct.Struct("<BBBBIqIiq")

FAILURES: Final = (
    *(f"frame {status}, not applied" for status in range(4, 9)),
    *(f"frame {status}, applied" for status in range(4, 9)),
    *(f"every entry {status}" for status in range(1, 5)),
    *(f"first entry {status}" for status in range(1, 5)),
    "drafter raises",
    "drafter faults",
)
"""How a worker answers and keeps failing."""


class Asked(NamedTuple):
    """An entry of the STEP, as far as a bad reply needs it."""

    needs_draft: bool
    n_out: int
    anchor_pos: int


class Sheet:
    """A sound STEP reply with its places, open for one change."""

    def __init__(self, request: bytes, reply: bytes, num_spec: int, window: int) -> None:
        self.data = bytearray(reply)
        self.window = window
        self.n = num_spec
        (n_req,) = struct.unpack_from("<H", request, HEADER_BYTES + 8)
        self.asked: list[Asked] = []
        for i in range(n_req):
            fields = _ENTRY.unpack_from(request, HEADER_BYTES + 32 + 32 * i)
            n_out = min(fields[3] or num_spec, num_spec)
            self.asked.append(Asked(bool(fields[1] & NEED_DRAFT), n_out, fields[8]))
        (flags,) = struct.unpack_from("<I", reply, _HEAD + 12)
        self.has_margin = bool(flags & HAS_MARGIN)
        self._arrays: int = _STATUSES + 8 * n_req

    def put(self, code: str, at: int, value: float) -> bool:
        struct.pack_into("<" + code, self.data, at, value)
        return True

    def status(self, i: int) -> int:
        (status,) = struct.unpack_from("<H", self.data, _STATUSES + 8 * i)
        return int(status)

    def full(self, i: int) -> int:
        return min(self.window, self.asked[i].anchor_pos)

    def value_at(self, array: int, i: int, j: int) -> int:
        """Where draft id (0), confidence (1) or margin (2) `j` of entry `i` lies."""
        return self._arrays + 4 * (array * len(self.asked) * self.n + i * self.n + j)

    def consumed(self, i: int) -> int:
        return self.asked[i].n_out if self.asked[i].needs_draft and self.status(i) <= 1 else 0

    def put_entry(self, i: int, status: int, window_rows: int, *, clears: bool) -> bool:
        self.put("H", _STATUSES + 8 * i, status)
        self.put("H", _STATUSES + 8 * i + 2, window_rows)
        if clears:
            for array in range(3 if self.has_margin else 2):
                at = self.value_at(array, i, 0)
                self.data[at : at + 4 * self.n] = bytes(4 * self.n)
        return True


Spoiler = Callable[[Sheet, int, random.Random], bool]


def _header(code: str, at: int, *values: int) -> Spoiler:
    def spoil(sheet: Sheet, i: int, draw: random.Random) -> bool:
        value = draw.choice(values)
        if struct.unpack_from("<" + code, sheet.data, at)[0] == value:
            return False
        return sheet.put(code, at, value)

    return spoil


def _changed(code: str, at: int) -> Spoiler:
    def spoil(sheet: Sheet, i: int, draw: random.Random) -> bool:
        (value,) = struct.unpack_from("<" + code, sheet.data, at)
        return sheet.put(code, at, value ^ 1)

    return spoil


def _consumed(array: int, code: str, *values: float) -> Spoiler:
    """A value in a position that the target would read."""

    def spoil(sheet: Sheet, i: int, draw: random.Random) -> bool:
        n = sheet.consumed(i)
        if not n or (array == 2 and not sheet.has_margin):
            return False
        return sheet.put(code, sheet.value_at(array, i, draw.randrange(n)), draw.choice(values))

    return spoil


def _unread(array: int, code: str, *values: float) -> Spoiler:
    """A value in a position that nobody consumes."""

    def spoil(sheet: Sheet, i: int, draw: random.Random) -> bool:
        n = sheet.consumed(i)
        if n == sheet.n or (array == 2 and not sheet.has_margin):
            return False
        at = sheet.value_at(array, i, draw.randrange(n, sheet.n))
        return sheet.put(code, at, draw.choice(values))

    return spoil


def _generation(sheet: Sheet, i: int, draw: random.Random) -> bool:
    at = _STATUSES + 8 * i + 4
    return sheet.put("I", at, struct.unpack_from("<I", sheet.data, at)[0] ^ 1)


def _unknown_status(sheet: Sheet, i: int, draw: random.Random) -> bool:
    return sheet.put_entry(i, draw.choice((5, 77, 0xFFFF)), 0, clears=True)


def _too_many_rows(sheet: Sheet, i: int, draw: random.Random) -> bool:
    return sheet.put("H", _STATUSES + 8 * i + 2, sheet.full(i) + 1)


def _ok_but_short(sheet: Sheet, i: int, draw: random.Random) -> bool:
    if not sheet.asked[i].needs_draft or sheet.status(i) > 1 or not sheet.full(i):
        return False
    return sheet.put_entry(i, 0, sheet.full(i) - 1, clears=False)


def _partial_but_full(sheet: Sheet, i: int, draw: random.Random) -> bool:
    if not sheet.asked[i].needs_draft or sheet.status(i) > 1:
        return False
    return sheet.put_entry(i, 1, sheet.full(i), clears=False)


def _longer(sheet: Sheet, i: int, draw: random.Random) -> bool:
    sheet.data += bytes(draw.choice((1, 4, 8)))
    return sheet.put("I", 20, len(sheet.data) - HEADER_BYTES)


def _shorter(sheet: Sheet, i: int, draw: random.Random) -> bool:
    del sheet.data[-draw.choice((1, 4, 8)) :]
    return sheet.put("I", 20, len(sheet.data) - HEADER_BYTES)


_NAN, _INF = float("nan"), float("inf")

REFUSED: Final[dict[str, Spoiler]] = {
    "frame status": _header("i", 24, 77, -1, 10),
    "op": _header("H", 6, 1, 3, 0),
    "seq": _changed("Q", 8),
    "session": _changed("I", 16),
    "step_id": _changed("Q", _HEAD),
    "n_req": _changed("H", _HEAD + 8),
    "num_spec": _changed("H", _HEAD + 10),
    "margin flag": _changed("I", _HEAD + 12),
    "longer": _longer,
    "shorter": _shorter,
    "generation": _generation,
    "status code": _unknown_status,
    "too many rows": _too_many_rows,
    "OK but short": _ok_but_short,
    "PARTIAL but full": _partial_but_full,
    "draft id": _consumed(0, "i", VOCAB_SIZE, -1, 2**31 - 1, -(2**31)),
    "confidence above": _consumed(1, "f", 1.0000002, 1e30, _INF),
    "confidence below": _consumed(1, "f", -1e-9, -_INF),
    "confidence NaN": _consumed(1, "f", _NAN),
    "margin not finite": _consumed(2, "f", _INF, _NAN),
    "margin negative": _consumed(2, "f", -0.5),
    "unread draft id": _unread(0, "i", 1, -1),
    "unread confidence": _unread(1, "f", 0.5, 1e-30, _NAN),
    "unread margin": _unread(2, "f", 0.5, _NAN),
}
"""Every kind of value that rank 0 refuses (§6.3, C20, C21)."""


def refused(sheet: Sheet, draw: random.Random) -> str:
    """Make the reply one that must be refused; the line of the table that did it."""
    entries = draw.sample(range(len(sheet.asked)), len(sheet.asked))
    for name in draw.sample([*REFUSED], len(REFUSED)):
        if any(REFUSED[name](sheet, i, draw) for i in entries):
            return name
    raise AssertionError("every reply has an op")


def fail_entries(sheet: Sheet, status: int, entries: Sequence[int]) -> bool:
    """A sound reply that says `status` (§9.2) for these entries; whether there was any."""
    done = False
    for i in entries:
        if sheet.status(i):
            continue
        if status > 1:
            done = sheet.put_entry(i, status, 0, clears=True)
        elif sheet.asked[i].needs_draft and sheet.full(i):
            done = sheet.put_entry(i, 1, sheet.full(i) - 1, clears=False)
    return done
