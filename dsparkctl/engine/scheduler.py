"""Which rows of which requests the target computes in a step (§2): continuous batching.

Decides slots, chunks, how many drafts are verified, who is preempted and what is taken over from
the prefix cache. Refuses to know tensors and drafters: the same tokens and drafts give the same
steps. As with bounded replay on, no window is short when drafts are asked for (C24).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dsparkctl.engine.prefix_cache import PrefixCache
from dsparkctl.engine.request import Request
from dsparkctl.state.n_out import Caps, n_out

N_SHELVES: Final = 4
"""Requests whose keys and values are kept when they have lost their slot."""


class Rules(NamedTuple):
    """What the engine is told when it starts."""

    n_slots: int
    """Requests that run at once."""
    window: int
    """W"""
    n_budget: int
    """Rows of one step; more than W, so that a chunk's first taps are trimmed."""
    max_model_len: int
    caps: Caps
    """How many drafts are verified, by the number of requests that run."""

    @property
    def n_target_slots(self) -> int:
        """One for each request that runs, and the shelves."""
        return self.n_slots + N_SHELVES


class Share(NamedTuple):
    """One request's rows of a step."""

    request: Request
    slot: int
    first_pos: int
    tokens: Sequence[int]
    """q of them: the request's next ones, and behind them the drafts to verify."""
    n_drafts: int
    """k; 0 while it prefills."""
    samples: bool
    """Whether the request's last token is among them; else this is a partial prefill chunk."""

    @property
    def n_rows(self) -> int:
        """q"""
        return len(self.tokens)


class Copy(NamedTuple):
    """Keys and values of the first positions, from one slot of the target to another."""

    src_slot: int
    dst_slot: int
    n_tokens: int


class Step(NamedTuple):
    """`copies` come first, in their order."""

    shares: Sequence[Share]
    copies: Sequence[Copy]


@dataclass(slots=True)
class Tricks:
    """How often happened what a real engine does, too."""

    chunked: int = 0
    """Chunks longer than W: the first of their taps are trimmed."""
    preempted: int = 0
    prefix_hits: int = 0


class Scheduler:
    """Requests in order of arrival; the caller ends each step with `settle`."""

    def __init__(self, rules: Rules, requests: Iterable[Request]) -> None:
        self.tricks = Tricks()
        self._rules = rules
        self._waiting = deque(requests)
        self._running: list[Request] = []
        self._free = deque(range(rules.n_slots))
        """The slot that has been free longest is taken first."""
        self._cache = PrefixCache(range(rules.n_slots, rules.n_target_slots), rules.window)
        self._copies: list[Copy] = []

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    def schedule(self) -> Step:
        """The next step; it has rows whenever the scheduler is not idle."""
        for request in [r for r in self._running if r.is_due_for_preemption]:
            self._preempt(request)
        while self._waiting and self._free:
            self._admit(self._waiting.popleft())
        copies, self._copies = self._copies, []
        return Step(self._shares(), copies)

    def settle(self, share: Share, sampled: Sequence[int], n_rejected: int) -> None:
        """What came of a share: tokens of the target's own choice, and rows that do not count."""
        request = share.request
        request.n_computed = share.first_pos + share.n_rows - n_rejected
        request.drafts = []
        request.take(sampled)
        if request.is_done:
            self._release(request)

    def _shares(self) -> list[Share]:
        """In order of admission, as far as the budget goes: whoever decodes came first."""
        n_left = self._rules.n_budget
        k = n_out(self._rules.caps, len(self._running))
        shares = []
        for request in self._running:
            assert request.slot is not None
            pos = request.n_computed
            drafts = request.drafts[:k] if request.n_left == 1 else []
            n_rows = min(request.n_left + len(drafts), n_left, self._rules.max_model_len - pos)
            if n_rows < 1:
                continue
            known = request.tokens[pos : pos + n_rows]
            drafts = drafts[: n_rows - len(known)]
            samples = pos + len(known) == len(request.tokens)
            tokens = [*known, *drafts]
            shares.append(Share(request, request.slot, pos, tokens, len(drafts), samples))
            n_left -= n_rows
            self.tricks.chunked += n_rows > self._rules.window
        return shares

    def _admit(self, request: Request) -> None:
        slot = self._free.popleft()
        live = [(r.slot, r.tokens[: r.n_computed]) for r in self._running if r.slot is not None]
        if hit := self._cache.hit(request.tokens, live):
            self._copies.append(Copy(hit.slot, slot, hit.n_tokens))
            request.n_computed = hit.n_tokens
            self.tricks.prefix_hits += 1
        request.slot = slot
        self._running.append(request)

    def _preempt(self, request: Request) -> None:
        """It loses its slot and comes back with its tokens, behind the next one that waits."""
        self._release(request)
        request.preempt_after, request.n_computed, request.drafts = None, 0, []
        self._waiting.insert(1, request)
        self.tricks.preempted += 1

    def _release(self, request: Request) -> None:
        assert request.slot is not None
        held = request.tokens[: request.n_computed]
        self._copies.append(Copy(request.slot, self._cache.shelve(held), len(held)))
        self._running.remove(request)
        self._free.append(request.slot)
        request.slot = None
