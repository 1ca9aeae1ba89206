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

_LANES: Final = 64
"""A row is folded into this many u64 columns, then into one number."""

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
        self._folds = [[0] * window for _ in range(max_slots + 1)]
        self._spoilt = [[False] * window for _ in range(max_slots + 1)]
        # Odd, so that each lane's contribution is a bijection: no changed byte can vanish.
        lanes = np.random.Generator(np.random.PCG64(1)).integers(0, 1 << 63, _LANES, np.uint64)
        self._weights: NDArray[np.uint64] = lanes * np.uint64(2) + np.uint64(1)

    def append(self, parts: Sequence[Append]) -> list[Fault | None]:
        return [self._append(part) for part in parts]

    def _append(self, part: Append) -> Fault | None:
        halves = np.frombuffer(part.rows, np.uint16).reshape(part.n_rows, -1)
        exponents = halves & 0x7FFF
        spoilt = [False] * part.n_rows
        if int(exponents.max()) >= _EXPONENT:
            spoilt = [bool(row.max() >= _EXPONENT) for row in exponents]
        kept, marks = self._folds[part.slot], self._spoilt[part.slot]
        for i, fold in enumerate(self._fold(halves)):
            at = (part.first_pos + i) % self._window
            kept[at], marks[at] = fold, spoilt[i]
        return Fault("a tap row holds NaN or infinity (R29)") if any(spoilt) else None

    def _fold(self, halves: NDArray[np.uint16]) -> list[int]:
        """One u64 per row: XOR down 64 columns, then a sum weighted by odd numbers."""
        n_rows, width = halves.shape
        spare = -width % (4 * _LANES)
        if spare:
            halves = np.pad(halves, ((0, 0), (0, spare)))
        words = halves.view(np.uint64).reshape(n_rows, -1, _LANES)
        columns = np.bitwise_xor.reduce(words, axis=1)
        found: list[int] = (columns * self._weights).sum(axis=1, dtype=np.uint64).tolist()
        return found

    def draft(
        self, requests: Sequence[DraftRequest], *, max_model_len: int, want_margin: bool
    ) -> list[Draft | Fault]:
        return [self._draft(request, max_model_len) for request in requests]

    def _draft(self, request: DraftRequest, max_model_len: int) -> Draft | Fault:
        folds, spoilt, width = self._folds[request.slot], self._spoilt[request.slot], self._window
        state = (request.anchor_token * _MIX + min(request.anchor_pos, max_model_len)) & _MASK
        for pos in range(request.lo_pos, request.anchor_pos):
            at = pos % width
            if spoilt[at]:
                return Fault("the window holds a row that is not finite (R29)")
            state = ((state ^ folds[at]) * _MIX + pos) & _MASK
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
