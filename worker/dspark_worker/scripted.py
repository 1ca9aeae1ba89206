"""A drafter without a model: deterministic drafts folded from every byte of the window.

Made for tests, simulation and conformance: equal windows give equal drafts, whatever their
history, and a changed byte of any held row changes them. It costs about as much as reading the
rows once.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dspark_worker.drafter import Append, Draft, DraftRequest, Fault

_LANES: Final = 12
"""A row is folded in this many parts, then into one number: parts that change places show."""

_MIX: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1

_EXPONENT: Final = 0x7F80
"""All ones: the bf16 value is infinite or not a number."""


class ScriptedDrafter:
    """Keeps one fold per held row, keyed by position mod W. Rows are bf16, `row_bytes` each."""

    backend = "scripted"

    def __init__(
        self, *, num_spec: int, window: int, vocab_size: int, row_bytes: int, max_slots: int
    ) -> None:
        self._num_spec = num_spec
        self._window = window
        self._vocab_size = vocab_size
        self._row_bytes = row_bytes
        self._folds = [np.zeros(window, np.uint64) for _ in range(max_slots + 1)]
        self._spoilt = [[False] * window for _ in range(max_slots + 1)]
        self._scratch = np.empty(0, np.uint16)
        # Odd, so that each contribution is a bijection: no changed byte can vanish.
        odd = np.random.Generator(np.random.PCG64(1)).integers(0, 1 << 63, _LANES, np.uint64)
        self._weights: NDArray[np.uint64] = odd * np.uint64(2) + np.uint64(1)
        powers = [pow(_MIX, n, 1 << 64) for n in range(window)]
        self._powers: NDArray[np.uint64] = np.array(powers[::-1], np.uint64)

    def append(self, parts: Sequence[Append]) -> list[Fault | None]:
        return [self._append(part) for part in parts]

    def _append(self, part: Append) -> Fault | None:
        halves = np.frombuffer(part.rows, np.uint16).reshape(part.n_rows, -1)
        if self._scratch.size < halves.size:
            self._scratch = np.empty(halves.size, np.uint16)
        exponents = np.bitwise_and(
            halves, 0x7FFF, out=self._scratch[: halves.size].reshape(halves.shape)
        )
        spoilt = [False] * part.n_rows
        if int(exponents.max()) >= _EXPONENT:
            spoilt = [bool(row.max() >= _EXPONENT) for row in exponents]
        at = np.arange(part.first_pos, part.first_pos + part.n_rows) % self._window
        self._folds[part.slot][at] = self._fold(halves)
        marks = self._spoilt[part.slot]
        for i, mark in zip(at.tolist(), spoilt, strict=True):
            marks[i] = mark
        return Fault("a tap row holds NaN or infinity (R29)") if any(spoilt) else None

    def _fold(self, halves: NDArray[np.uint16]) -> NDArray[np.uint64]:
        """One u64 per row: XOR within each lane, then a sum weighted by odd numbers."""
        n_rows, width = halves.shape
        spare = -width % (4 * _LANES)
        if spare:
            halves = np.pad(halves, ((0, 0), (0, spare)))
        words = halves.view(np.uint64).reshape(n_rows, _LANES, -1)
        lanes = np.bitwise_xor.reduce(words, axis=2)
        folds: NDArray[np.uint64] = (lanes * self._weights).sum(axis=1, dtype=np.uint64)
        return folds

    def draft(
        self, requests: Sequence[DraftRequest], *, max_model_len: int, want_margin: bool
    ) -> list[Draft | Fault]:
        return [self._draft(request, max_model_len) for request in requests]

    def _draft(self, request: DraftRequest, max_model_len: int) -> Draft | Fault:
        spoilt, width = self._spoilt[request.slot], self._window
        positions = np.arange(request.lo_pos, request.anchor_pos, dtype=np.uint64)
        at = positions % np.uint64(width)
        if any(spoilt) and any(spoilt[i] for i in at.tolist()):
            return Fault("the window holds a row that is not finite (R29)")
        # A polynomial of the rows by their place, so that order and position count.
        mixed = (self._folds[request.slot][at] ^ positions * np.uint64(_MIX)) * np.uint64(_MIX)
        powers = self._powers[width - len(positions) :]
        state = int((mixed * powers).sum(dtype=np.uint64))
        anchor = request.anchor_token * _MIX + min(request.anchor_pos, max_model_len)
        state = (state ^ anchor) * _MIX & _MASK
        state ^= state >> 29
        ids: list[int] = []
        confidence: list[float] = []
        margin: list[float] = []
        for j in range(request.n_out):
            state = (state * _MIX + j + 1) & _MASK
            ids.append((state >> 33) % self._vocab_size)
            confidence.append((state >> 8 & 0xFF) / 256)
            margin.append((state >> 16 & 0xFF) / 16)
        zeros = [0] * (self._num_spec - request.n_out)
        return Draft(ids + zeros, [*confidence, *zeros], [*margin, *zeros])
