"""The memory of §8.2, as it follows from HELLO."""

import pytest

from dsparkctl.client.budget import Budget, budget
from dsparkctl.config.hello import HelloParams
from dsparkctl.contract.messages import step_head
from dsparkctl.contract.records import Hello, ReqEntry

MIB = 1 << 20


@pytest.fixture
def live() -> Hello:
    """§6.2's live values."""
    return HelloParams(
        num_spec=5,
        window=128,
        hidden=5120,
        n_taps=3,
        tap_layer_ids=(37, 38, 39, 0),
        row_bytes=30720,
        noise_token_id=128799,
        vocab_size=129280,
        max_rows_per_step=512,
        drafter_identity="d0" * 32,
    ).record()


def test_the_ring_is_15_mib(live: Hello) -> None:
    """§7.3, §8.2: 4 slots x 128 rows x 30,720 B."""
    assert budget(live).ring_bytes == 15 * MIB == 4 * 128 * 30720


def test_staging_is_at_most_30_mib(live: Hello) -> None:
    """§8.2: 2 x 512 rows x 30 KiB."""
    assert budget(live).staging_bytes == 30 * MIB


def test_the_device_keeps_45_mib_and_the_broadcast(live: Hello) -> None:
    """§8.2, change log 1.2: 45 MiB device, 15 MiB pinned."""
    found = budget(live)
    assert found.device_bytes == 45 * MIB + found.broadcast_bytes


def test_the_pinned_buffer_is_15_mib_behind_the_longest_head(live: Hello) -> None:
    """§8.2: every STEP that HELLO allows fits, its rows behind the head of any batch."""
    entry = ReqEntry(
        slot=0,
        req_flags=0,
        k_window=0,
        n_out=0,
        generation=0,
        first_pos=0,
        n_rows=0,
        anchor_token=0,
        anchor_pos=0,
    )
    heads = [
        step_head(seq=1, session=1, step_id=1, step_flags=0, row_bytes=30720, entries=[entry] * n)
        for n in range(1, 5)
    ]
    assert budget(live).pinned_bytes == 15 * MIB + max(map(len, heads))
    assert max(map(len, heads)) == 32 + 192


def test_the_broadcast_stays_below_a_kib(live: Hello) -> None:
    """§8.2: one status word, and 5 drafts and 5 confidences for each of 4 slots."""
    assert budget(live).broadcast_bytes == 4 * (1 + 4 * 5 + 4 * 5) < 1024


def test_every_size_follows_from_the_terms(live: Hello) -> None:
    small = live._replace(max_slots=2, window=8, row_bytes=256, max_rows_per_step=10, num_spec=3)
    assert budget(small) == Budget(
        ring_bytes=2 * 8 * 256,
        staging_bytes=2 * 10 * 256,
        pinned_bytes=32 + 128 + 10 * 256,
        broadcast_bytes=4 * (1 + 2 * 2 * 3),
    )


def test_the_line_at_start_names_every_part(live: Hello) -> None:
    assert budget(live).text() == (
        "rank 0 keeps a ring of 15.0 MiB and at most 30.0 MiB of staging on the device, "
        "15.0 MiB pinned; every rank 164 B for the broadcast"
    )
