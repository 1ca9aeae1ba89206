"""§8.1: what a round costs on the wire, with rank 0's own book deciding what is sent (§4.3)."""

import pytest

from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.messages import step_head, step_reply_frame
from dsparkctl.contract.records import ReplyHeader, ReqEntry, ReqStatus
from dsparkctl.state.ledger import Ledger, Sampled, Scheduled

ROW_BYTES = 30_720
WINDOW = 128
NUM_SPEC = 5

DECODE = [(1, 5, 184_320, 80), (2, 5, 368_640, 128), (3, 4, 460_800, 176), (4, 4, 614_400, 224)]
"""Requests, drafts verified for each, bytes of the rows at most, bytes of the reply's body."""


def prefilled(n_requests: int, n_tokens: int) -> tuple[Ledger, list[ReqEntry]]:
    """A book after one step in which that many requests prefilled that many tokens each."""
    ledger = Ledger(4, WINDOW)
    scheduled = [
        Scheduled(f"r{slot}", slot, slot * n_tokens, 0, n_tokens, 0) for slot in range(n_requests)
    ]
    parts = ledger.open(scheduled)
    return ledger, ledger.close(parts, [Sampled(0, True, 7)] * n_requests, 0)


def decoded(n_requests: int, k: int, n_rejected: int) -> list[ReqEntry]:
    """The entries of a decode step behind a prefill of 300 tokens."""
    ledger, _ = prefilled(n_requests, 300)
    scheduled = [
        Scheduled(f"r{slot}", slot, slot * (1 + k), 300, 1 + k, k) for slot in range(n_requests)
    ]
    return ledger.close(ledger.open(scheduled), [Sampled(n_rejected, True, 7)] * n_requests, 0)


def sizes(entries: list[ReqEntry]) -> tuple[int, int]:
    """Bytes of the STEP's head and of its rows."""
    head = step_head(
        seq=1, session=1, step_id=1, step_flags=0, row_bytes=ROW_BYTES, entries=entries
    )
    rows_bytes = sum(entry.n_rows for entry in entries) * ROW_BYTES
    body_len = int.from_bytes(head[20:24], "little")
    assert len(head) + rows_bytes == HEADER_BYTES + body_len
    return len(head), rows_bytes


def reply_body_bytes(n_requests: int) -> int:
    """Without margins, and without the AppHeader: §8.1 leaves headers out unless it shows them."""
    n = n_requests * NUM_SPEC
    frame = step_reply_frame(
        seq=1,
        session=1,
        head=ReplyHeader(1, n_requests, NUM_SPEC, 0, 0, 0, (0, 0)),
        statuses=[ReqStatus(0, WINDOW, 1)] * n_requests,
        draft_ids=[1] * n,
        confidence=[0.5] * n,
        margin=None,
    )
    return len(frame) - HEADER_BYTES


@pytest.mark.parametrize(("n_requests", "k", "most_bytes", "_"), DECODE)
def test_a_decode_round_sends_what_was_accepted_and_the_bonus_row(
    n_requests: int, k: int, most_bytes: int, _: int
) -> None:
    """§8.1: at most 1 + k rows a request, and those of rejected drafts never."""
    for n_rejected in range(k + 1):
        _head, rows_bytes = sizes(decoded(n_requests, k, n_rejected))
        assert rows_bytes == n_requests * (1 + k - n_rejected) * ROW_BYTES
    assert sizes(decoded(n_requests, k, 0))[1] == most_bytes


@pytest.mark.parametrize(("n_requests", "n_bytes"), [(1, 96), (2, 160), (3, 160), (4, 224)])
def test_the_headers_of_one_request_are_96_bytes_and_those_of_more_are_padded(
    n_requests: int, n_bytes: int
) -> None:
    """§8.1: 32 + 32 + 32; §6.3: the row block starts at a multiple of 64 of the body."""
    assert sizes(decoded(n_requests, 4, 0))[0] == n_bytes


@pytest.mark.parametrize(("n_requests", "_k", "_rows", "n_bytes"), DECODE)
def test_replies_are_as_long_as_the_table_says(
    n_requests: int, _k: int, _rows: int, n_bytes: int
) -> None:
    assert reply_body_bytes(n_requests) == n_bytes


def test_a_prefill_chunk_of_4096_tokens_sends_its_last_128_rows() -> None:
    """§8.1, §4.3"""
    _, entries = prefilled(1, 4096)
    assert sizes(entries)[1] == 3_932_160
    assert (entries[0].first_pos, entries[0].anchor_pos) == (4096 - 128, 4096)
    assert reply_body_bytes(1) == 80


@pytest.mark.parametrize("n_requests", [1, 2, 3, 4])
def test_each_prefill_request_of_a_step_costs_as_much(n_requests: int) -> None:
    """§8.1: r x 3.93 MB."""
    _, entries = prefilled(n_requests, 1024)
    assert sizes(entries)[1] == n_requests * 3_932_160


def test_without_the_trailing_window_rule_the_chunk_would_be_32_times_as_much() -> None:
    """§8.1: 125.8 MB, for contrast."""
    assert round(4096 * ROW_BYTES / 1e6, 1) == 125.8
    assert 32 * sizes(prefilled(1, 4096)[1])[1] == 4096 * ROW_BYTES
