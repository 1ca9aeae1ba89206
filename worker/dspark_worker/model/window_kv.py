"""The windows' derived key/value vectors, kept per slot so that each row is projected only once.

A row's vector depends on the row and its position alone (§4 of the specification), so it is kept
under `position mod W` and overwritten when the position comes round, is re-sent or is rolled back
over. Which positions are held is the desk's book, never known here: a draft names its window, and
only named positions are read. A vector that is not finite can therefore not outlive its row's stay
in the window, and padding reads a zero row, never `0 × NaN` (R29).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Windows(NamedTuple):
    """Windows of b drafts, ascending by position, padded behind to the longest."""

    kv: Tensor
    """[L, b, n, d]"""
    padding: Tensor | None
    """bool [b, n], true where there is no row; None when all windows have n rows"""


class WindowKv:
    """`[L, n_slots · W + 1, d]` in the compute dtype; the last row stays zero."""

    def __init__(
        self,
        *,
        n_layers: int,
        n_slots: int,
        window: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._window = window
        self._zero_row = n_slots * window
        self._kv = torch.zeros(n_layers, self._zero_row + 1, head_dim, dtype=dtype, device=device)

    def store(self, parts: Sequence[tuple[int, int, int]], kv: Tensor) -> None:
        """Keep `kv` [L, n, d]: the rows of each part `(slot, first_pos, n_rows)` in turn.

        A part is at most one window long: two copies, where it goes round.
        """
        start = 0
        for slot, first_pos, n_rows in parts:
            assert 0 <= n_rows <= self._window, "a window holds W rows"
            base, first = slot * self._window, first_pos % self._window
            n_first = min(n_rows, self._window - first)
            end = start + n_rows
            self._kv[:, base + first : base + first + n_first] = kv[:, start : start + n_first]
            if n_first < n_rows:
                self._kv[:, base : base + n_rows - n_first] = kv[:, start + n_first : end]
            start = end

    def gather(self, spans: Sequence[tuple[int, int, int]]) -> Windows:
        """The windows `(slot, lo_pos, end_pos)` of several drafts; `end_pos` is exclusive."""
        longest = max(end - lo for _, lo, end in spans)
        index = [
            [*self.places(slot, lo, end), *[self._zero_row] * (longest - (end - lo))]
            for slot, lo, end in spans
        ]
        places = (
            torch.tensor(index, dtype=torch.int64).to(self._kv.device).view(len(spans), longest)
        )
        padded = any(end - lo != longest for _, lo, end in spans)
        kv = self._kv.index_select(1, places.flatten())
        kv = kv.view(len(kv), *places.shape, kv.shape[-1])
        return Windows(kv, places == self._zero_row if padded else None)

    def places(self, slot: int, first_pos: int, end_pos: int) -> list[int]:
        """Where the positions `first_pos .. end_pos - 1` of a slot are kept; at most W of them."""
        assert 0 <= end_pos - first_pos <= self._window, "a window holds W rows"
        base, window = slot * self._window, self._window
        return [base + pos % window for pos in range(first_pos, end_pos)]
