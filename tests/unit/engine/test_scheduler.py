"""Continuous batching, chunked prefill, preemption and bounded replay (§2)."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkctl.contract.codes import NEED_DRAFT, EntryStatus
from dsparkctl.engine.prefix_cache import BLOCK
from dsparkctl.engine.request import Request
from dsparkctl.engine.scheduler import Rules, Scheduler, Share, Step
from dsparkctl.state.ledger import Ledger, Sampled, Scheduled
from dsparkctl.state.window import VACANT, Bounds, Slot, apply_entry
from tests.unit.engine.toy import CAPS, RULES, VOCAB, WINDOW, continued, following


def request(name: str, n_prompt: int, n_wanted: int, preempt_after: int | None = None) -> Request:
    prompt = continued([len(name)], n_prompt - 1)
    return Request(name, [len(name), *prompt], n_wanted, preempt_after)


def answered(share: Share, n_right: int) -> tuple[list[int], int]:
    """What the target says of a share whose first `n_right` drafts are right."""
    if not share.samples:
        return [], 0
    n_accepted = min(n_right, share.n_drafts)
    known = share.request.tokens
    return continued(known, n_accepted + 1), share.n_drafts - n_accepted


class Checked:
    """A scheduler whose every step is held against the rules of §2 and of the contract."""

    def __init__(self, rules: Rules, requests: list[Request]) -> None:
        self.scheduler = Scheduler(rules, requests)
        self.rules = rules
        self.requests = requests
        self.steps: list[Step] = []
        self.held: dict[int, list[int]] = defaultdict(list)
        """The tokens whose keys and values lie in each slot of the target."""
        self.residence: dict[int, int] = {}
        """How far the owner of each slot has computed, once it has."""
        self.ledger = Ledger(rules.n_slots, rules.window)
        self.worker: list[Slot] = [VACANT] * rules.n_slots

    def run(self, n_right: int, draft_len: int) -> None:
        n_rounds = 0
        while not self.scheduler.is_idle:
            self.step(n_right, draft_len)
            n_rounds += 1
            assert n_rounds < 10_000
        assert all(r.output == continued(r.prompt, r.n_wanted) for r in self.requests)

    def step(self, n_right: int, draft_len: int) -> None:
        step = self.scheduler.schedule()
        self.steps.append(step)
        assert step.shares, "every engine round has rows"
        assert sum(share.n_rows for share in step.shares) <= self.rules.n_budget
        assert len({share.slot for share in step.shares}) == len(step.shares)
        for src, dst, n in step.copies:
            assert n <= len(self.held[src]), "only what was computed is taken over"
            self.held[dst] = self.held[src][:n]
            if src < self.rules.n_slots <= dst:  # onto a shelf: its owner has lost the slot
                self.residence.pop(src, None)
        self._check_residences(step)
        answers = [answered(share, n_right) for share in step.shares]
        self._check_windows(step, answers)
        for share, (sampled, n_rejected) in zip(step.shares, answers, strict=True):
            self.scheduler.settle(share, sampled, n_rejected)
            one = share.request
            self.residence[share.slot] = share.first_pos + share.n_rows - n_rejected
            if sampled and not one.is_done:
                one.drafts = continued(one.tokens, draft_len)

    def _check_residences(self, step: Step) -> None:
        """Every position is computed exactly once per residence, in order, on the right tokens."""
        for share in step.shares:
            slot, start = share.slot, share.first_pos
            if slot in self.residence:
                assert start == self.residence[slot]
            else:
                # A residence begins at 0, or W before the end of a hit of whole blocks.
                assert start == 0 or (start + WINDOW) % BLOCK == 0
                assert self.held[slot][:start] == share.request.tokens[:start]
            del self.held[slot][start:]
            assert len(self.held[slot]) == start
            self.held[slot] += share.tokens

    def _check_windows(self, step: Step, answers: list[tuple[list[int], int]]) -> None:
        """C24: as rank 0's ledger and the worker's rule have it, no window is short."""
        scheduled, row = [], 0
        for share in step.shares:
            name = share.request.request_id
            scheduled.append(
                Scheduled(name, share.slot, row, share.first_pos, share.n_rows, share.n_drafts)
            )
            row += share.n_rows
        parts = self.ledger.open(scheduled)
        sampled = [Sampled(n_rejected, bool(tokens), 1) for tokens, n_rejected in answers]
        bounds = Bounds(self.rules.window, VOCAB, self.rules.max_model_len)
        for entry in self.ledger.close(parts, sampled, 0):
            outcome = apply_entry(self.worker[entry.slot], entry, bounds)
            self.worker[entry.slot] = outcome.slot
            assert outcome.status is EntryStatus.OK, outcome.refusal
            if entry.req_flags & NEED_DRAFT:
                assert outcome.window_rows == min(self.rules.window, entry.anchor_pos)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Rules, list[Request]]:
    n = draw(st.integers(1, 9))
    requests: list[Request] = []
    for i in range(n):
        n_wanted = draw(st.integers(1, 24))
        preempt = draw(st.none() | st.integers(0, n_wanted - 1))
        prompt = [i, *continued([i], draw(st.integers(0, 60)))]
        goes_on = draw(st.booleans())
        if requests and goes_on:
            prompt = [*draw(st.sampled_from(requests)).prompt, *prompt]
        requests.append(Request(f"r{i}", prompt[:200], n_wanted, preempt))
    rules = RULES._replace(n_slots=draw(st.integers(1, 4)), n_budget=draw(st.integers(24, 60)))
    return rules, requests


@settings(max_examples=120)
@given(plans(), st.integers(0, 5), st.integers(0, 5))
def test_every_position_is_computed_once_per_residence_and_no_window_is_short(
    plan: tuple[Rules, list[Request]], n_right: int, draft_len: int
) -> None:
    """§2, §4.3, C24: and never more rows than the budget, whatever the drafts are worth."""
    Checked(*plan).run(n_right, draft_len)


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    checked = Checked(RULES, [request("a", 100, 3)])
    checked.run(0, 0)
    shares = [step.shares[0] for step in checked.steps]
    assert [share.n_rows for share in shares] == [48, 48, 4, 1, 1]
    assert [share.samples for share in shares] == [False, False, True, True, True]
    assert checked.scheduler.tricks.chunked == 2


def test_k_follows_the_number_of_requests() -> None:
    """[[1,2,5],[3,4,4]]: the schedule of §2."""
    for n, k in ((1, 5), (2, 5), (3, 4), (4, 4)):
        checked = Checked(RULES, [request("a" * (i + 1), 4, 40) for i in range(n)])
        checked.step(5, 5)
        second = checked.scheduler.schedule()
        assert [share.n_drafts for share in second.shares] == [k] * n


def test_a_preempted_request_comes_back_with_a_hit_and_replays_its_last_w_tokens() -> None:
    """§2: of a hit of h tokens, h − W are taken over."""
    checked = Checked(RULES, [request("a", 50, 12, preempt_after=5)])
    checked.run(0, 0)
    back = next(step for step in checked.steps if len(step.copies) == 2)
    shelved, taken = back.copies
    assert (shelved.src_slot, shelved.n_tokens) == (0, 54)
    assert (taken.src_slot, taken.n_tokens) == (shelved.dst_slot, 48 - WINDOW)
    assert back.shares[0].first_pos == 48 - WINDOW
    assert back.shares[0].n_drafts == 0
    tricks = checked.scheduler.tricks
    assert (tricks.preempted, tricks.prefix_hits) == (1, 1)


def test_a_preempted_request_lets_the_next_one_have_its_slot() -> None:
    requests = [request("a", 30, 12, preempt_after=2), request("bb", 30, 4)]
    checked = Checked(RULES._replace(n_slots=1), requests)
    checked.run(0, 0)
    order = [step.shares[0].request.request_id for step in checked.steps]
    assert "".join(name[0] for name in order).strip("a").strip("b") == ""
    assert order[0] == order[-1] == "a"
    assert "bb" in order


def test_a_hit_of_no_more_than_w_tokens_is_none() -> None:
    """§2: it is discarded and fully recomputed."""
    first = request("a", 40, 2)
    same = Request("b", [*first.prompt[:WINDOW], 90, 91, 92], 2)
    longer = Request("c", [*first.prompt[: 2 * WINDOW], 90, 91, 92], 2)
    checked = Checked(RULES._replace(n_slots=1), [first, same, longer])
    checked.run(0, 0)
    starts = {
        share.request.request_id: share.first_pos
        for step in reversed(checked.steps)
        for share in step.shares
    }
    assert starts == {"a": 0, "b": 0, "c": 32 - WINDOW}


def test_a_prompt_that_is_wholly_known_still_computes_its_last_token() -> None:
    first = request("a", 48, 1)
    checked = Checked(RULES._replace(n_slots=1), [first, Request("b", first.prompt, 1)])
    checked.run(0, 0)
    assert checked.steps[-1].shares[0].first_pos == 32 - WINDOW


def test_with_more_requests_than_slots_the_slots_are_reused() -> None:
    checked = Checked(RULES, [request("a" * (i + 1), 20, 5) for i in range(9)])
    checked.run(5, 5)
    owners = defaultdict(set)
    for step in checked.steps:
        for share in step.shares:
            owners[share.slot].add(share.request.request_id)
    assert set(owners) == {0, 1, 2, 3}
    assert max(map(len, owners.values())) > 1


def test_a_request_ends_at_its_length_or_at_the_end_token() -> None:
    prompt = [1, 2, 3]
    tokens = continued(prompt, 6)
    ends_early = Request("a", prompt, 6, eos_token=tokens[2])
    ends_early.take(tokens)
    assert ends_early.output == tokens[: tokens.index(tokens[2]) + 1]
    ends_at_length = Request("b", prompt, 4)
    ends_at_length.take(tokens)
    assert ends_at_length.output == tokens[:4]
    assert following(prompt) == tokens[0]
    assert CAPS.reason == ""
