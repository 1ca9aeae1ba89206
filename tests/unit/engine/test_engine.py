"""The engine's round: what it computes, and what it tells a drafter of it (§2, §4.2, §4.3)."""

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
import torch

from dsparkctl.client.staging import StepTensors
from dsparkctl.engine.engine import Engine, Round
from dsparkctl.engine.report import Tally
from dsparkctl.engine.request import Request
from dsparkctl.engine.scheduler import Scheduler
from dsparkctl.state.ledger import Ledger, Sampled
from tests.unit.engine.toy import (
    RULES,
    VOCAB,
    WINDOW,
    Drafts,
    N,
    ToyProposer,
    ToyTarget,
    continued,
    no_drafts,
)


def right(tokens: list[int]) -> tuple[list[int], list[float]]:
    return continued(tokens, N), [1.0] * N


def half_right(tokens: list[int]) -> tuple[list[int], list[float]]:
    drafts = continued(tokens, N)
    n_right = sum(tokens) % (N + 1)
    return [d if j < n_right else (d + 1) % VOCAB for j, d in enumerate(drafts)], [1.0] * N


def wrong_and_sure(tokens: list[int]) -> tuple[list[int], list[float]]:
    return [(d + 1) % VOCAB for d in continued(tokens, N)], [1.0] * N


def right_and_unsure(tokens: list[int]) -> tuple[list[int], list[float]]:
    return continued(tokens, N), [0.0] * N


def workload() -> list[Request]:
    prompts = [[i, *continued([i], 30 + 17 * i)] for i in range(6)]
    prompts[5] = [*prompts[0], *prompts[5]]
    return [Request(str(i), prompt, 20, 8 if i == 1 else None) for i, prompt in enumerate(prompts)]


class Run:
    """A whole run over the toy target."""

    def __init__(self, drafts: Drafts, requests: Sequence[Request] | None = None) -> None:
        self.requests = workload() if requests is None else requests
        by_id = {request.request_id: request for request in self.requests}
        self.target = ToyTarget(RULES.n_target_slots)
        self.proposer = ToyProposer(lambda name: known(by_id[name]), drafts)
        scheduler = Scheduler(RULES, self.requests)
        ticks = itertools.count()
        engine = Engine(
            self.target, scheduler, RULES, self.proposer, 4, clock=lambda: float(next(ticks))
        )
        self.rounds: list[Round] = []
        self.tally = Tally(N)
        while not scheduler.is_idle:
            self.rounds.append(engine.step())
            self.tally.add(self.rounds[-1])
        self.tricks = scheduler.tricks

    def tensors(self) -> list[StepTensors]:
        found = [batch.tensors for batch in self.proposer.batches]
        return [tensors for tensors in found if isinstance(tensors, StepTensors)]


def known(request: Request) -> list[int]:
    """All that the request will ever say, so that a proposer can look ahead."""
    return [*request.prompt, *continued(request.prompt, request.n_wanted + N)]


@pytest.mark.parametrize("drafts", [right, half_right, wrong_and_sure, right_and_unsure, no_drafts])
def test_no_draft_changes_the_output(drafts: Drafts) -> None:
    """With chunks, preemption, slots reused and a prefix hit in every run."""
    run = Run(drafts)
    for request in run.requests:
        assert request.output == continued(request.prompt, request.n_wanted)
    assert all(n > 0 for n in dataclasses.astuple(run.tricks))


def test_right_drafts_bring_up_to_six_tokens_a_step_and_none_bring_one() -> None:
    assert Run(no_drafts).tally.tokens_per_step == 1.0
    alone = Run(right, [Request("a", [1, 2, 3], 61)]).tally
    assert alone.tokens_per_step == pytest.approx((1 + 6 * 10) / 11)
    assert alone.accepted == [10] * N


def test_a_confidence_of_zero_costs_no_row_of_the_target() -> None:
    """§10: depth 0, whatever is drafted."""
    assert Run(right_and_unsure).target.n_rows == Run(no_drafts).target.n_rows


def test_a_span_holds_the_rejected_rows_and_says_how_many_they_are() -> None:
    """§2: `num_valid_ctx = num_scheduled − num_rejected`."""
    run = Run(half_right)
    seen = set()
    for batch, tensors, done in zip(run.proposer.batches, run.tensors(), run.rounds, strict=True):
        assert [r.n_rows for r in batch.requests] == [share.n_rows for share in done.shares]
        for i, request in enumerate(batch.requests):
            n_sampled, n_rejected = int(tensors.num_sampled[i]), int(tensors.num_rejected[i])
            if request.k_window:
                assert request.n_rows == 1 + request.k_window == n_sampled + n_rejected
            else:
                assert n_rejected == 0
            seen.add((request.k_window, n_rejected))
    assert len(seen) > 10


def test_rows_follow_each_other_and_taps_are_those_of_their_positions() -> None:
    run = Run(half_right)
    for batch, tensors in zip(run.proposer.batches, run.tensors(), strict=True):
        row = 0
        for request in batch.requests:
            assert request.row == row
            row += request.n_rows
            positions = tensors.taps[0][request.row : row, 0].tolist()
            n_trimmed = max(0, request.n_rows - WINDOW)
            first = request.first_pos + n_trimmed
            assert positions[:n_trimmed] == [0.0] * n_trimmed
            assert positions[n_trimmed:] == [
                p + 1 for p in range(first, first + len(positions) - n_trimmed)
            ]
        assert len(tensors.taps) == 3
        assert all(tap.shape == (row, 4) for tap in tensors.taps)
        assert all(tap.dtype is torch.bfloat16 for tap in tensors.taps)


def test_all_but_the_last_w_taps_of_a_longer_span_are_zeros() -> None:
    """§2: decoder bounded replay."""
    run = Run(no_drafts)
    trimmed = [
        tap[request.row : request.row + request.n_rows - WINDOW]
        for batch, tensors in zip(run.proposer.batches, run.tensors(), strict=True)
        for request in batch.requests
        for tap in tensors.taps
        if request.n_rows > WINDOW
    ]
    assert len(trimmed) >= 3
    assert not any(rows.any() for rows in trimmed)


def test_the_anchor_is_the_last_token_sampled_or_the_next_of_the_prompt() -> None:
    """§2: so the token at `anchor_pos` in either case."""
    run = Run(half_right)
    by_id = {request.request_id: known(request) for request in run.requests}
    ledger = Ledger(4, WINDOW)
    n_partial = 0
    for batch, tensors in zip(run.proposer.batches, run.tensors(), strict=True):
        parts = ledger.open(batch.requests)
        sampled = [
            Sampled(int(n_rejected), bool(n), 0)
            for n, n_rejected in zip(tensors.num_sampled, tensors.num_rejected, strict=True)
        ]
        entries = ledger.close(parts, sampled, 0)
        for request, entry, n in zip(batch.requests, entries, tensors.num_sampled, strict=True):
            anchor = tensors.last_sampled[request.slot, 0]
            if not n:
                anchor = tensors.next_prefill_tokens[0, request.slot]
                n_partial += 1
            assert int(anchor) == by_id[request.request_id][entry.anchor_pos]
    assert n_partial > 3


def test_positions_behind_the_cap_are_not_verified_even_when_fewer_requests_follow() -> None:
    """§6.3: with four requests n_out is 4; what stands at position 4 is nobody's."""
    requests = [Request(str(i), [i, 1], 2 if i < 3 else 12) for i in range(4)]

    def behind_the_cap(tokens: list[int]) -> tuple[list[int], list[float]]:
        return continued(tokens, N), [1.0] * N

    run = Run(behind_the_cap, requests)
    n_before = [len(done.shares) for done in run.rounds]
    for n, done in zip([4, *n_before], run.rounds, strict=False):
        cap = 5 if n <= 2 else 4
        assert all(share.n_drafts <= cap for share in done.shares)
    assert n_before[:3] == [4, 4, 1]
    assert run.rounds[2].shares[0].n_drafts == 4
    assert run.rounds[3].shares[0].n_drafts == 5


def test_the_acceptance_per_position_sums_up_to_the_mean() -> None:
    tally = Run(half_right).tally
    mean = sum(tally.accepted) / tally.n_drafted
    assert sum(tally.acceptance_per_position) == pytest.approx(mean)
    assert tally.accepted == sorted(tally.accepted, reverse=True)
    assert tally.n_tokens == tally.n_steps + sum(tally.accepted)
    assert 0 < mean < N


def test_a_request_that_is_done_is_still_part_of_its_last_round() -> None:
    """As the real runner has it: only the scheduler learns that it is done."""
    run = Run(right, [Request("a", [1, 2], 3)])
    assert len(run.proposer.batches) == len(run.rounds) == 2
