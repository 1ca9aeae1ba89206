"""Tiles of trellis codes to numbers (EXL3 specification §2, §3, §12).

A tile's T 16-bit words are a ring of bits; each of its 256 weights is named by the 16 bits that end
at its own position. Which two words those bits lie in, and how far to shift them, depends on T and
the position alone: one table of 256 entries, here already in the order in which weights are kept.

That order is the trick. Words of neighbouring tiles are laid side by side first, so that every
further step moves or shifts whole rows; what comes out has its columns as (column in the tile,
tile) instead of (tile, column in the tile). Products do not mind, and bringing a few rows of
results back into order (`in_order`) costs nothing beside turning whole matrices.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from dspark_worker.model.exl3.codebook import table
from dsparkctl.checkpoint.exl3 import Codebook

SIDE = 16
AREA = SIDE * SIDE

CHUNK_WEIGHTS = 1 << 20
"""Decoded together, many enough that no call is felt; words and states then take 6 MB."""


class _Places(NamedTuple):
    """For each weight of a tile, row by row: where its 16 bits are."""

    word: Tensor
    """int32 [rows·256]: which of `doubled`'s rows holds them"""
    shift: Tensor
    """int32 [rows·256, 1]: how far they stand from its low end"""


def state_ends(n_words: int) -> list[int]:
    """For the 256 codes in stream order: the bit behind their last one, E(i) of §2.

    `n_words` is T = 16·K. Where K = k + 1/2, even codes bring k bits and odd ones k + 1.
    """
    low = n_words // SIDE
    bits = (low, n_words // 8 - low)
    ends, end = [], 0
    for i in range(AREA):
        end += bits[i % 2]
        ends.append(end)
    return ends


def tile_order() -> list[int]:
    """For the 256 codes in stream order: row·16 + column of their weight (§3)."""
    order = []
    for i in range(AREA):
        lane, j = divmod(i, 8)
        row = 2 * (lane % 4) + (j & 1) + 8 * (j >> 1 & 1)
        order.append(row * SIDE + lane // 4 + 8 * (j >> 2))
    return order


@cache
def _places(n_words: int, n_rows: int, device: torch.device) -> _Places:
    """The table for `n_rows` rows of tiles whose words lie one behind another."""
    word, shift = [0] * AREA, [0] * AREA
    for place, end in zip(tile_order(), state_ends(n_words), strict=True):
        start = (end - 16) % (16 * n_words)
        word[place], shift[place] = start // 16, 16 - start % 16
    half = n_words // 2
    words = [half * (row + n_rows * (w % 2)) + w // 2 for row in range(n_rows) for w in word]
    return _Places(
        torch.tensor(words, dtype=torch.int32, device=device),
        torch.tensor(shift * n_rows, dtype=torch.int32, device=device).unsqueeze(1),
    )


def decode(trellis: Tensor, codebook: Codebook, out: Tensor) -> Tensor:
    """`trellis` int16 [in/16, out/16, T] into `out` [in, out], contiguous, fp32 or fp16.

    Columns come in the order that `in_order` undoes. Returns `out`.
    """
    n_tile_rows, n_tiles, n_words = trellis.shape
    lut = table(codebook, out.dtype, out.device)
    step = max(1, min(n_tile_rows, CHUNK_WEIGHTS // (AREA * n_tiles)))
    pairs = trellis.view(torch.int32).transpose(1, 2)
    space = _Space.for_rows(step, n_tiles, n_words, trellis.device)
    flat = out.view(-1)
    for row in range(0, n_tile_rows, step):
        n_rows = min(step, n_tile_rows - row)
        if n_rows < step:
            space = _Space.for_rows(n_rows, n_tiles, n_words, trellis.device)
        states = space.states_of(pairs[row : row + n_rows])
        start = row * AREA * n_tiles
        torch.index_select(lut, 0, states, out=flat[start : start + len(states)])
    return out


def in_order(y: Tensor) -> Tensor:
    """[..., out] with columns as `decode` leaves them -> as the layer means them."""
    return y.reshape(*y.shape[:-1], SIDE, -1).transpose(-1, -2).reshape(y.shape)


class _Space(NamedTuple):
    """What a chunk needs beside its result, kept from chunk to chunk."""

    places: _Places
    doubled: Tensor
    """int32 [2, rows, T/2, tiles]: every 16-bit word with the one behind it, even ones first"""
    states: Tensor
    """int32 [rows·256, tiles]"""

    @classmethod
    def for_rows(cls, n_rows: int, n_tiles: int, n_words: int, device: torch.device) -> "_Space":
        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        return cls(
            _places(n_words, n_rows, device),
            empty(2, n_rows, n_words // 2, n_tiles),
            empty(n_rows * AREA, n_tiles),
        )

    def states_of(self, pairs: Tensor) -> Tensor:
        """`pairs` int32 [rows, T/2, tiles], a little-endian word each, which is two of the stream's
        16-bit words in their order -> int32 [rows·256·tiles]."""
        even, odd = self.doubled
        even.copy_(pairs)
        torch.bitwise_right_shift(even[:, 1:], 16, out=odd[:, :-1])
        torch.bitwise_right_shift(even[:, :1], 16, out=odd[:, -1:])  # the ring closes
        odd.bitwise_and_(0xFFFF).add_(even, alpha=1 << 16)
        words = self.doubled.view(-1, self.states.shape[1])
        torch.index_select(words, 0, self.places.word, out=self.states)
        # A negative word is shifted with its sign: the mask takes that away.
        states = self.states.bitwise_right_shift_(self.places.shift)
        return states.bitwise_and_(0xFFFF).view(-1)
