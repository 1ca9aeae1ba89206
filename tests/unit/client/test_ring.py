"""Rank 0's ring on the device (§7.3)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.client.ring import Ring
from tests.unit.client import tiny
from tests.unit.client.fakes import SLOTS, W

CPU = torch.device("cpu")


@given(slot=st.integers(0, SLOTS - 1), first_pos=st.integers(0, 10**6), n_rows=st.integers(0, W))
def test_a_row_lies_at_its_position_modulo_w(slot: int, first_pos: int, n_rows: int) -> None:
    """§7.3: `ring[slot, pos mod W]`."""
    found = Ring(tiny.HELLO, CPU).places(slot, first_pos, n_rows)
    assert found == [slot * W + pos % W for pos in range(first_pos, first_pos + n_rows)]


def test_the_dump_is_a_row_of_no_slot() -> None:
    ring = Ring(tiny.HELLO, CPU)
    assert ring.rows.shape == (SLOTS * W + 1, tiny.N_TAPS * tiny.HIDDEN)
    assert all(ring.dump not in ring.places(slot, 0, W) for slot in range(SLOTS))


@pytest.mark.parametrize("hidden", [1, 4, 8])
def test_rows_of_any_size_are_kept_bit_by_bit(hidden: int) -> None:
    """Whatever a row is copied by, every bit pattern survives, those of NaN too."""
    hello = tiny.HELLO._replace(n_taps=1, hidden=hidden, row_bytes=2 * hidden)
    ring = Ring(hello, CPU)
    bits = torch.arange(3 * hidden, dtype=torch.int16).view(3, hidden) - 64
    at, out = torch.tensor([5, 9, 0]), torch.zeros(3, hidden, dtype=torch.bfloat16)
    ring.put(bits.view(torch.bfloat16), at)
    ring.take(at, out)
    assert torch.equal(out.view(torch.int16), bits)
