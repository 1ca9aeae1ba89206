"""vLLM's batch as the round sees it (§2, §7.1): spans, and positions the host may not know."""

from types import SimpleNamespace
from typing import Any

import pytest

from dsparkctl.client.batch import Requests
from dsparkctl.state.ledger import Ledger, Sampled, Scheduled


def input_batch(**changed: Any) -> Any:
    """Two requests: one decodes, with a host that believes in 20 positions; one is prefilled."""
    facts = {
        "num_reqs": 2,
        "req_ids": ["a", "b"],
        "idx_mapping_np": [3, 1],
        "query_start_loc_np": [0, 6, 46],
        "num_scheduled_tokens": [6, 40],
        "num_draft_tokens_per_req": [5, 0],
        "num_computed_tokens_np": [20, 96],
        "is_prefilling_np": [False, True],
        "positions": [17, 18, 19, 20, 21, 22, *range(96, 136)],
    }
    return SimpleNamespace(**{**facts, **changed})


def book(owner: str, n_rows: int) -> Ledger:
    """A ledger whose slot 3 has seen `n_rows` positions of `owner`."""
    ledger = Ledger(4, 8)
    parts = ledger.open([Scheduled(owner, 3, 0, 0, n_rows, 0)])
    ledger.close(parts, [Sampled(0, True, 1)], 0)
    return ledger


def test_spans_slots_and_verified_drafts_are_the_batchs() -> None:
    assert list(Requests(input_batch(), None)) == [
        Scheduled("a", 3, 0, 20, 6, 5),
        Scheduled("b", 1, 6, 96, 40, 0),
    ]


def test_a_decoding_request_stands_where_its_last_round_ended() -> None:
    assert Requests(input_batch(), book("a", 15))[0].first_pos == 15


@pytest.mark.parametrize("ledger", [Ledger(4, 8), book("someone else", 15)])
def test_what_the_book_does_not_know_the_device_is_asked(ledger: Ledger) -> None:
    assert Requests(input_batch(), ledger)[0].first_pos == 17


def test_a_prefilled_request_stands_where_the_host_says_even_if_it_was_further_before() -> None:
    """§7.1: it came back after preemption, in the same slot."""
    batch = input_batch(idx_mapping_np=[0, 3])
    assert Requests(batch, book("b", 120))[1].first_pos == 96


def test_a_step_without_drafts_verified_none() -> None:
    requests = Requests(input_batch(num_draft_tokens_per_req=None), None)
    assert [r.k_window for r in requests] == [0, 0]


def test_nothing_is_read_before_the_first_request_is_asked_for() -> None:
    """§4.2, async: the round before may still be under way when the batch is made."""
    ledger = Ledger(4, 8)
    requests = Requests(input_batch(), ledger)
    assert len(requests) == 2
    later = book("a", 15)
    ledger.pages[:] = later.pages
    assert requests[0].first_pos == 15
    ledger.pages[:] = book("a", 16).pages
    assert requests[:1][0].first_pos == 15
