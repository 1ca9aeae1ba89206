"""The ring of derived key/value vectors (contract §7.1, R29)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_worker.model.window_kv import WindowKv

WINDOW = 5


def ring() -> WindowKv:
    return WindowKv(
        n_layers=2,
        n_slots=3,
        window=WINDOW,
        head_dim=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def put(kv: WindowKv, slot: int, first_pos: int, values: list[float]) -> None:
    rows = torch.tensor(values).view(1, -1, 1)
    kv.store([(slot, first_pos, len(values))], torch.cat((rows, -rows)))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(1, WINDOW))))
def test_the_last_row_stored_under_a_position_is_the_one_that_is_read(
    stores: list[tuple[int, int, int]],
) -> None:
    """Against a dict of rows: whatever the order of slots, wraps and rollbacks."""
    kv, held = ring(), dict[tuple[int, int], tuple[int, float]]()
    for n, (slot, first_pos, n_rows) in enumerate(stores):
        values = [100.0 * n + i + 1 for i in range(n_rows)]
        put(kv, slot, first_pos, values)
        for i, value in enumerate(values):
            held[slot, (first_pos + i) % WINDOW] = (first_pos + i, value)
    for (slot, _), (pos, value) in held.items():
        assert kv.gather([(slot, pos, pos + 1)]).kv.flatten().tolist() == [value, -value]


def test_windows_ascend_by_position_and_are_padded_with_zeros() -> None:
    kv = ring()
    put(kv, 0, 3, [3.0, 4.0, 5.0, 6.0, 7.0])
    put(kv, 1, 0, [9.0])
    windows = kv.gather([(0, 3, 8), (1, 0, 1), (2, 0, 0)])
    assert windows.kv[0, :, :, 0].tolist() == [
        [3, 4, 5, 6, 7],
        [9, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    assert windows.padding is not None
    assert windows.padding.sum(-1).tolist() == [0, 4, 5]


def test_equal_windows_need_no_padding() -> None:
    assert ring().gather([(0, 0, 3), (1, 7, 10)]).padding is None


def test_a_stored_nan_is_never_read_as_padding() -> None:
    """R29: neither a neighbour's row nor one's own unheld row stands in for a missing one."""
    kv = ring()
    for slot in range(3):
        put(kv, slot, 0, [float("nan")] * WINDOW)
    put(kv, 1, 5, [1.0])
    windows = kv.gather([(1, 5, 6), (1, 6, 6)])
    assert windows.kv[0, :, :, 0].tolist() == [[1.0], [0.0]]


def test_more_than_a_window_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        ring().places(0, 0, WINDOW + 1)
