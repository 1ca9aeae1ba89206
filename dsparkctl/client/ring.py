"""Rank 0's own copy of every live window, on the device (§7.3): row `slot * W + pos mod W`.

Decides where a row lies. Refuses to know which positions are held: that is the ledger's book. One
row more than the windows need is kept, for rows that nobody wants: a rejected row written in its
place would overwrite the row W positions before it, which is still part of the window.
"""

import torch
from torch import Tensor

from dsparkctl.contract.records import Hello


class Ring:
    """`rows` is `[max_slots * W + 1, n_taps * hidden]` bf16; the last one is the dump."""

    def __init__(self, hello: Hello, device: torch.device) -> None:
        self.width = hello.window
        self.dump = hello.max_slots * hello.window
        shape = (self.dump + 1, hello.n_taps * hello.hidden)
        self.rows = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        self._word = _widest(hello.row_bytes)
        self._words = self.rows.view(self._word)

    def places(self, slot: int, first_pos: int, n_rows: int) -> list[int]:
        """Where the rows of `n_rows` <= W ascending positions lie."""
        base = slot * self.width
        start = base + first_pos % self.width
        end = base + self.width
        n_before = min(n_rows, end - start)
        return [*range(start, start + n_before), *range(base, base + n_rows - n_before)]

    def put(self, rows: Tensor, at: Tensor) -> None:
        """`rows` [n, row values] to the places `at` [n] int64."""
        self._words.index_copy_(0, at, rows.view(self._word))

    def take(self, at: Tensor, out: Tensor) -> None:
        """The rows at the places `at` [n] int64, in that order, into `out` [n, row values]."""
        torch.index_select(self.rows, 0, at, out=out)


def _widest(row_bytes: int) -> torch.dtype:
    """What a row is copied by: on a CPU, whole rows go six times as fast in 16 bytes as in 2."""
    for word in (torch.complex128, torch.int64):
        if row_bytes % word.itemsize == 0:
            return word
    return torch.bfloat16
