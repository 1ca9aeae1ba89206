"""Rank 0's ring and staging in bytes: `client.rows.Rows` without a tensor (§7.3)."""

from collections.abc import Sequence
from typing import NamedTuple

from dsparkctl.contract.layout import Buffer
from dsparkctl.state.ledger import Part, Sampled


class Taps(NamedTuple):
    """What a target's step leaves on the device: the tap rows of the batch, and what it sampled."""

    rows: bytes
    sampled: Sequence[Sampled]


class ByteRows:
    """`ring[slot][pos mod W]` holds the row of `pos`. A `Rows[Taps]`."""

    def __init__(self, max_slots: int, width: int, row_bytes: int) -> None:
        self.ring = [[bytes(row_bytes)] * width for _ in range(max_slots)]
        self._width = width
        self._row_bytes = row_bytes
        self._staged = b""

    def keep(self, parts: Sequence[Part], tensors: Taps, *, stage: bool) -> Sequence[Sampled]:
        width, row_bytes, taps = self._width, self._row_bytes, tensors.rows
        staged: list[bytes] = []
        for part, sampled in zip(parts, tensors.sampled, strict=True):
            ring = self.ring[part.slot]
            at = part.row * row_bytes
            for pos in range(part.first_pos, part.first_pos + part.n_rows - sampled.n_rejected):
                ring[pos % width] = taps[at : at + row_bytes]
                at += row_bytes
            if stage:
                staged += [ring[pos % width] for pos in part.sent(sampled.n_rejected, width)]
        self._staged = b"".join(staged)
        return tensors.sampled

    def message(self, head: bytes, n_rows: int) -> Buffer:
        return head + self._staged[: n_rows * self._row_bytes]
