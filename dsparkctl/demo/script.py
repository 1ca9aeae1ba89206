"""What the demo's engine does, round by round: a story that a seed tells (§7.1, §7.3, §7.4).

Decides which requests there are, what each sends, and the tap rows themselves (random finite
bf16). Every slot prefills in chunks, decodes, comes back lower once, finishes, and is reused; once
in the middle the connection is lost, and every slot resyncs from the copy kept here. As with SWA
bounded replay (C24), no request that needs drafts ever has a short window.

Pure: it sends nothing, and what the worker drafts does not change the story, since how many drafts
a target would accept is thrown with the same dice.
"""

from collections.abc import Iterator
from enum import Enum
from random import Random
from typing import Final, NamedTuple

from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, RESYNC
from dsparkctl.contract.records import Hello, ReqEntry
from dsparkctl.contract.serial import following
from dsparkctl.state.window import EMPTY, extended

_FIRST_GENERATION: Final = 0xFFFFFFFE
"""Shortly before the wrap (§7.1), so that reuse passes it."""

_TAKES_PART: Final = 0.85
"""How likely a slot is in a round's batch."""

_HIGH_BYTES: Final = bytes(byte & 0x83 | 0x3C for byte in range(256))
"""The upper byte of a bf16 of either sign with a magnitude from 2**-7 to 2: never NaN or inf."""


class Act(Enum):
    """What a request does in a round; the value is its plural."""

    PREFILL = "prefill chunks"
    """A chunk of the prompt; append only, but for the last one."""
    DECODE = "decodes"
    """The rows of the accepted drafts and of the bonus token."""
    ROLLBACK = "rollbacks"
    """The request comes back at a lower position and replays its window (§7.1)."""


class Part(NamedTuple):
    """One request's part of a round."""

    entry: ReqEntry
    rows: bytes
    act: Act


class Round(NamedTuple):
    """One STEP to be; `reconnect`: the connection is given up before it."""

    parts: tuple[Part, ...]
    want_margin: bool
    reconnect: bool


def rounds(hello: Hello, n_rounds: int, seed: int) -> Iterator[Round]:
    """The story under these HELLO terms; the same seed tells it again byte by byte."""
    dice = Random(seed)
    slots = [_Slot(slot, hello, dice) for slot in range(hello.max_slots)]
    for i in range(n_rounds):
        reconnect = i > 0 and i == n_rounds // 2
        for slot in slots:
            slot.is_dirty |= reconnect
        batch = [slot for slot in slots if dice.random() < _TAKES_PART] or slots[:1]
        # As a depth schedule does, full batches ask for one draft less (§6.3, n_out).
        n_out = hello.num_spec - 1 if len(batch) >= 3 and hello.num_spec > 1 else 0
        yield Round(tuple(slot.advance(n_out) for slot in batch), i % 2 == 1, reconnect)


class _Slot:
    """A slot's requests, one after the other, and the copy of the window that rank 0 keeps."""

    def __init__(self, slot: int, hello: Hello, dice: Random) -> None:
        self._slot = slot
        self._hello = hello
        self._dice = dice
        self._generation = _FIRST_GENERATION
        self.is_dirty = False
        self._start()

    def _start(self) -> None:
        """Another request takes the slot: a new generation, nothing held (§7.1)."""
        hello, dice = self._hello, self._dice
        self._generation = following(self._generation)
        self._is_new, self.is_dirty = True, False
        self._window, self._copy = EMPTY, dict[int, bytes]()
        self._next_pos = 0
        self._n_prompt = dice.randint(1, max(1, min(4 * hello.window, hello.max_model_len // 2)))
        self._n_decodes_left = dice.randint(5, 10)
        self._rolls_back_at = dice.randint(1, 3)
        self._n_drafts = 0

    def advance(self, n_out: int) -> Part:
        """The request's next part; a finished one makes room first."""
        if self._is_finished():
            self._start()
        act, first_pos, n_rows = self._choose()
        flags = 0 if act is Act.PREFILL and first_pos + n_rows < self._n_prompt else NEED_DRAFT
        k_window = self._n_drafts if act is Act.DECODE else 0
        self._keep(first_pos, n_rows)
        if self._is_new:
            flags |= NEW_GEN
        elif self.is_dirty:
            flags |= NEW_GEN | RESYNC
            first_pos = max(self._window.lo, self._next_pos - self._hello.window)
        n_rows = self._next_pos - first_pos
        self._is_new = self.is_dirty = False
        self._n_drafts = (n_out or self._hello.num_spec) if flags & NEED_DRAFT else 0
        entry = ReqEntry(
            slot=self._slot,
            req_flags=flags,
            k_window=k_window,
            n_out=n_out,
            generation=self._generation,
            first_pos=first_pos,
            n_rows=n_rows,
            anchor_token=self._dice.randrange(self._hello.vocab_size),
            anchor_pos=self._next_pos,
        )
        rows = b"".join(self._copy[pos] for pos in range(first_pos, self._next_pos))
        return Part(entry, rows, act)

    def _is_finished(self) -> bool:
        is_full = self._next_pos + self._hello.num_spec + 1 > self._hello.max_model_len
        return self._next_pos >= self._n_prompt and (is_full or not self._n_decodes_left)

    def _choose(self) -> tuple[Act, int, int]:
        """What comes next, its first position and its number of rows (at most W)."""
        dice, width = self._dice, self._hello.window
        if self._next_pos < self._n_prompt:
            chunk = min(self._n_prompt - self._next_pos, dice.randint(1, 2 * width))
            n_rows = min(chunk, width)  # only a chunk's last W rows are worth sending
            return Act.PREFILL, self._next_pos + chunk - n_rows, n_rows
        self._n_decodes_left -= 1
        if self._n_decodes_left == self._rolls_back_at:
            end_pos = dice.randint(self._n_prompt, self._next_pos - 1)
            n_rows = min(end_pos, width)
            return Act.ROLLBACK, end_pos - n_rows, n_rows
        return Act.DECODE, self._next_pos, 1 + dice.randint(0, min(self._n_drafts, width - 1))

    def _keep(self, first_pos: int, n_rows: int) -> None:
        """Rank 0's ring: the same rule of `[lo, hi]` (§7.3)."""
        self._window = extended(self._window, first_pos, n_rows, self._hello.window)
        for pos in range(first_pos, first_pos + n_rows):
            self._copy[pos] = _tap_row(self._dice, self._hello.row_bytes)
        self._copy = {
            p: row for p, row in self._copy.items() if self._window.lo <= p <= self._window.hi
        }
        self._next_pos = first_pos + n_rows


def _tap_row(dice: Random, row_bytes: int) -> bytes:
    row = bytearray(dice.randbytes(row_bytes))
    row[1::2] = row[1::2].translate(_HIGH_BYTES)
    return bytes(row)
