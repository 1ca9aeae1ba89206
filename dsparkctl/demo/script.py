"""What the demo's engine asks of the worker: a seed becomes rounds, each with what must come back.

Decides the play: several requests with prompts in chunks, drafts accepted to a varying depth, a
request that comes back at a lower position, slots that change hands, and one reconnect after which
every window is sent again from the engine's own copy (§7.1, §7.4). Refuses to know a socket. Pure:
the same seed gives the same bytes.

As on a Spark with bounded replay on, no window is ever short when drafts are asked for (C24).
"""

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC
from dsparkctl.contract.records import Hello, ReqEntry
from dsparkctl.contract.serial import following
from dsparkctl.state.window import VACANT, Bounds, Outcome, Slot, apply_entry

_ACCEPTED: Final = 0.75
"""Chance that a draft is accepted, given that all before it were."""
_SITS_OUT: Final = 0.1
"""Chance that a request is not in the batch of a round."""
_FEW_OUT: Final = 0.25
"""Chance that the engine will not look at the last draft position (n_out = N − 1)."""

_HIGH_BYTES: Final = bytes(byte & 0x83 | 0x3C for byte in range(256))
"""The upper byte of a bf16 that is neither NaN nor infinite, nor so large that sums overflow."""


class Kind(StrEnum):
    """What an entry is to the engine."""

    PREFILL = "prefill chunks"
    DECODE = "decodes"
    ROLLBACK = "rollbacks"
    START = "requests started"
    RESYNC = "resyncs"


class Round(NamedTuple):
    """One STEP and what it must come to, by the rules of §7.2."""

    entries: tuple[ReqEntry, ...]
    rows: bytes
    """The row block: bf16 values, entry by entry."""
    kinds: tuple[Kind, ...]
    expected: tuple[Outcome, ...]
    reconnects: bool
    """Whether the connection is dropped first, so that this round starts on a new one."""


def rounds(seed: int, n_rounds: int, hello: Hello) -> Iterator[Round]:
    """The play of one seed, for a worker with these terms; the reconnect comes half-way."""
    chance = random.Random(seed)
    seats = [_Seat(number, hello, chance) for number in range(hello.max_slots)]
    for i in range(n_rounds):
        reconnects = i == n_rounds // 2 and i > 0
        for seat in seats if reconnects else ():
            seat.is_dirty = seat.slot != VACANT
        batch = [seat for seat in seats if chance.random() >= _SITS_OUT] or seats[:1]
        chance.shuffle(batch)
        entries, blocks, kinds, expected = zip(*(seat.turn() for seat in batch), strict=True)
        yield Round(entries, b"".join(blocks), kinds, expected, reconnects)


class _Turn(NamedTuple):
    entry: ReqEntry
    rows: bytes
    kind: Kind
    expected: Outcome


class _Seat:
    """A slot as the engine sees it: the request that owns it, and its ring of rows (§7.3)."""

    def __init__(self, number: int, hello: Hello, chance: random.Random) -> None:
        self.slot: Slot = VACANT
        self.is_dirty = False
        self._number = number
        self._hello = hello
        self._chance = chance
        self._bounds = Bounds(hello.window, hello.vocab_size, hello.max_model_len)
        self._ring: dict[int, bytes] = {}
        self._generation = chance.getrandbits(32)
        self._n_verified = 0
        self._pos = 0
        self._prompt_end_pos = 0
        self._n_decodes_left = 0
        self._decodes_until_rollback = 0

    def turn(self) -> _Turn:
        """The next entry of this slot; the slot and the ring are then as after it."""
        kind, first_pos, n_rows = self._next_rows()
        for pos in range(first_pos, first_pos + n_rows):
            self._ring[pos % self._hello.window] = self._row()
        self._pos = first_pos + n_rows
        is_done = self._pos >= self._prompt_end_pos
        n_out = self._hello.num_spec - 1 if self._chance.random() < _FEW_OUT else 0
        flags = NEED_DRAFT if is_done else 0
        if kind is Kind.START:
            flags |= NEW_GEN
        n_verified, self._n_verified = self._n_verified, n_out or self._hello.num_spec
        entry = ReqEntry(
            slot=self._number,
            req_flags=flags,
            k_window=n_verified if kind is Kind.DECODE else 0,
            n_out=n_out if is_done else 0,
            generation=self._generation,
            first_pos=first_pos,
            n_rows=n_rows,
            anchor_token=self._chance.randrange(self._hello.vocab_size),
            anchor_pos=self._pos,
        )
        if self.is_dirty:
            kind, entry = Kind.RESYNC, self._whole_window(entry)
        expected = apply_entry(self.slot, entry, self._bounds)
        self.slot, self.is_dirty = expected.slot, False
        sent = range(entry.first_pos, entry.anchor_pos)
        return _Turn(
            entry, b"".join(self._ring[p % self._hello.window] for p in sent), kind, expected
        )

    def _next_rows(self) -> tuple[Kind, int, int]:
        """What comes next, the position of its first row, and how many rows (at most W)."""
        chance, width = self._chance, self._hello.window
        kind = Kind.PREFILL
        if self._is_over():
            self._change_hands()
            kind = Kind.START
        if self._pos < self._prompt_end_pos:
            chunk = min(self._prompt_end_pos - self._pos, chance.randint(1, 2 * width))
            n_rows = min(chunk, width)  # a window never sees more than a chunk's last W rows
            return kind, self._pos + chunk - n_rows, n_rows
        self._n_decodes_left -= 1
        self._decodes_until_rollback -= 1
        if not self._decodes_until_rollback:
            # The request comes back lower, and bounded replay sends the whole window before it.
            end_pos = chance.randint(self._prompt_end_pos, self._pos - 1)
            n_rows = min(end_pos, width)
            return Kind.ROLLBACK, end_pos - n_rows, n_rows
        return Kind.DECODE, self._pos, 1 + self._n_accepted()

    def _is_over(self) -> bool:
        """Nobody was here yet, the request is finished, or the next rows would not fit."""
        is_full = self._pos + self._hello.num_spec + 1 > self._hello.max_model_len
        return self._pos >= self._prompt_end_pos and (is_full or not self._n_decodes_left)

    def _change_hands(self) -> None:
        """Another request owns the slot: the next generation, and nothing held (§7.1)."""
        chance, hello = self._chance, self._hello
        self._generation = following(self._generation)
        self._ring.clear()
        self.is_dirty = False
        self._pos = 0
        self._prompt_end_pos = chance.randint(
            1, max(1, min(4 * hello.window, hello.max_model_len // 2))
        )
        self._n_decodes_left = chance.randint(6, 12)
        self._decodes_until_rollback = chance.randint(2, 5)

    def _n_accepted(self) -> int:
        """Of the drafts that were verified, how many the target took; each hangs on the last."""
        n = 0
        while (
            n < min(self._n_verified, self._hello.window - 1) and self._chance.random() < _ACCEPTED
        ):
            n += 1
        return n

    def _row(self) -> bytes:
        """A tap row of bf16 values of either sign between 2**-7 and 2."""
        row = bytearray(self._chance.randbytes(self._hello.row_bytes))
        row[1::2] = row[1::2].translate(_HIGH_BYTES)
        return bytes(row)

    def _whole_window(self, entry: ReqEntry) -> ReqEntry:
        """§7.4: the same entry with the slot's window from the ring, this round's rows included."""
        held = apply_entry(self.slot, entry, self._bounds).slot.window
        return entry._replace(
            req_flags=entry.req_flags | NEW_GEN | RESYNC,
            first_pos=held.lo,
            n_rows=held.hi - held.lo + 1,
        )
