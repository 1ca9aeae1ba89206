"""An engine without tensors: requests, slots, chunked prefill, verification, preemption (§2).

Decides what a target does in each step, by the text that everybody agrees on. Refuses to know where
drafts come from: it verifies whatever it is given, and accepts a draft only if the text says so.
"""

import random
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from dsparkctl.client.rows import Batch
from dsparkctl.simulation.faults import Kind, Weather
from dsparkctl.simulation.rows import Taps
from dsparkctl.simulation.text import START, following, next_token, reference, row_of
from dsparkctl.simulation.world import VOCAB_SIZE, Terms
from dsparkctl.state.ledger import Sampled, Scheduled

_BLOCK = 4
"""Positions of a KV block: a prefix hit ends at a multiple of it."""

_DEPTH_AT = 0.3
"""The depth policy verifies drafts up to the first one that is less sure than this."""


class Request:
    """One request; `rows[p]` is the tap row of `tokens[p]`, `last_state` that of all tokens."""

    def __init__(self, name: str, prompt: Sequence[int], n_goal: int, row_bytes: int) -> None:
        self.name = name
        self.prompt = prompt
        self.n_goal = n_goal
        self.tokens: list[int] = []
        self.rows: list[bytes] = []
        self.slot = -1
        self.n_computed = 0
        """Positions whose rows the drafter has seen, or will never see (before a prefix hit)."""
        self.has_decoded = False
        self.drafts: Sequence[int] = ()
        self.depth = 0
        """How many of the drafts the depth policy lets through."""
        self.last_state = START
        self._row_bytes = row_bytes
        for token in prompt:
            self.push(token)

    def push(self, token: int) -> None:
        self.last_state = state = following(self.last_state, token)
        self.tokens.append(token)
        self.rows.append(row_of(state, self._row_bytes))


class Step(NamedTuple):
    """One step of the target: what rank 0's round is given, and whose requests they are."""

    batch: Batch
    requests: list[Request]
    scheduled: list[Scheduled]
    sampled: list[Sampled]


class Engine:
    """Requests without end, over `max_slots` slots."""

    def __init__(self, terms: Terms, draw: random.Random, weather: Weather) -> None:
        self.n_tokens = 0
        self.n_accepted = 0
        self.wrong_output = ""
        """The first request whose output is not the reference."""
        self.running: list[Request] = []
        self._terms = terms
        self._draw = draw
        self._weather = weather
        self._waiting: deque[Request] = deque()
        self._free = [*range(terms.max_slots)]
        self._last_owner: dict[int, str] = {}
        self._n_made = 0
        self._preemption = weather.rates.get(Kind.PREEMPTION, 0.0)
        self._zero = bytes(terms.row_bytes)
        self._dead = b"\xee" * terms.row_bytes
        """The tap row of a draft that is not the text: no row of the text looks like it."""

    # --- scheduling -------------------------------------------------------------------------------

    def step(self) -> Step:
        """Schedule a batch, run the target on it, and verify the drafts that it holds."""
        self._schedule()
        requests: list[Request] = []
        scheduled: list[Scheduled] = []
        sampled: list[Sampled] = []
        taps: list[bytes] = []
        n_left = self._terms.n_budget
        if self._draw.random() < 0.003:
            n_left = 0  # a step of a dummy batch
        k_cap = self._k_cap()
        for request in self.running:
            if not n_left:
                break
            n_missing = len(request.tokens) - request.n_computed
            row = len(taps)
            first_pos = request.n_computed
            if n_missing > 1:
                n_rows = min(n_left, n_missing)
                if self._draw.random() < 0.2:
                    n_rows = self._draw.randint(1, n_rows)
                result = self._prefill(request, n_rows, taps)
                k = 0
            else:
                k = max(0, min(k_cap, len(request.drafts), n_left - 1))
                k = min(k, request.n_goal - len(request.tokens) - 1)
                n_rows, result = 1 + k, self._decode(request, k, taps)
            n_left -= n_rows
            requests.append(request)
            scheduled.append(Scheduled(request.name, request.slot, row, first_pos, n_rows, k))
            sampled.append(result)
        batch = Batch(scheduled, Taps(b"".join(taps), sampled))
        return Step(batch, requests, scheduled, sampled)

    def _k_cap(self) -> int:
        for lo, hi, k in self._terms.schedule:
            if lo <= len(self.running) <= hi:
                # The scheduler's own window may be narrower (§2).
                return k if self._draw.random() < 0.7 else self._draw.randint(0, k)
        return 0

    def _schedule(self) -> None:
        draw = self._draw
        if self.running and draw.random() < self._preemption:
            request = draw.choice(self.running)
            self._leave(request)
            self._waiting.appendleft(request)
            self._weather.happened(Kind.PREEMPTION)
        while self._free and draw.random() < 0.6:
            self._admit(self._waiting.popleft() if self._waiting else self._make())
        if len(self.running) > 1 and draw.random() < 0.1:
            draw.shuffle(self.running)

    def _make(self) -> Request:
        draw = self._draw
        longest = self._terms.max_model_len
        n_prompt = draw.randint(1, longest // 2 if draw.random() < 0.4 else longest // 5)
        n_goal = min(longest, n_prompt + draw.randint(1, longest))
        self._n_made += 1
        prompt = draw.choices(range(VOCAB_SIZE), k=n_prompt)
        return Request(f"r{self._n_made}", prompt, n_goal, self._terms.row_bytes)

    def _admit(self, request: Request) -> None:
        """Into a slot, at position 0, or a window before the end of a prefix hit (§2)."""
        slot = self._draw.choice(self._free)
        if request.slot in self._free and self._draw.random() < 0.5:
            slot = request.slot  # preempted, it comes back to where it was
        self._free.remove(slot)
        if self._last_owner.get(slot, request.name) != request.name:
            self._weather.happened(Kind.SLOT_REUSE)
        self._last_owner[slot] = request.name
        request.slot, request.n_computed, request.has_decoded = slot, 0, False
        request.drafts, request.depth = (), 0
        n_hit = self._draw.randrange(len(request.tokens)) // _BLOCK * _BLOCK
        is_hit = self._draw.random() < self._weather.rates[Kind.PREFIX_HIT]
        if is_hit and n_hit > self._terms.window:
            request.n_computed = n_hit - self._terms.window
            self._weather.happened(Kind.PREFIX_HIT)
        self.running.append(request)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self._free.append(request.slot)

    # --- the target -------------------------------------------------------------------------------

    def _prefill(self, request: Request, n_rows: int, taps: list[bytes]) -> Sampled:
        """A chunk; only its last W rows have taps, the trimmed ones are zeros (§2)."""
        end = request.n_computed + n_rows
        n_kept = min(n_rows, self._terms.window)
        taps.extend([self._zero] * (n_rows - n_kept))
        taps += request.rows[end - n_kept : end]
        request.n_computed = end
        if end < len(request.tokens):
            return Sampled(0, False, request.tokens[end])
        request.push(next_token(request.last_state))
        request.has_decoded = True
        return Sampled(0, True, request.tokens[-1])

    def _decode(self, request: Request, k: int, taps: list[bytes]) -> Sampled:
        """The last token and k drafts; the first draft that the text refuses ends the step."""
        pos = request.n_computed
        taps.append(request.rows[pos])
        if not k and request.has_decoded and self._draw.random() < 0.02:
            # Nothing of the step is valid: the request stays where it is, and sends no row.
            return Sampled(1, True, request.tokens[-1])
        state, drafts = request.last_state, request.drafts
        n_accepted, n_verified = 0, min(k, request.depth)
        while n_accepted < n_verified and drafts[n_accepted] == next_token(state):
            request.push(drafts[n_accepted])
            state = request.last_state
            n_accepted += 1
        taps += request.rows[pos + 1 : pos + 1 + n_accepted]
        taps.extend([self._dead] * (k - n_accepted))
        request.push(next_token(state))
        request.n_computed = pos + 1 + n_accepted
        request.has_decoded = True
        self.n_accepted += n_accepted
        return Sampled(k - n_accepted, True, request.tokens[-1])

    # --- drafts -----------------------------------------------------------------------------------

    def take(self, step: Step, drafts: Sequence[int], confidence: Sequence[float]) -> None:
        """The round's drafts, N for each request in turn, as every rank has them."""
        n = self._terms.num_spec
        for i, (request, result) in enumerate(zip(step.requests, step.sampled, strict=True)):
            if len(request.tokens) >= request.n_goal:
                self._finish(request)
            elif result.needs_draft:
                request.drafts = drafts[i * n : i * n + n]
                depth = 0
                while depth < n and confidence[i * n + depth] >= _DEPTH_AT:
                    depth += 1
                request.depth = depth

    def restart(self) -> None:
        """The engine's process starts again: its requests come back as new ones."""
        begun, self._waiting = [*self.running, *self._waiting], deque()
        for request in begun:
            self._n_made += 1
            args = (request.prompt, request.n_goal, self._terms.row_bytes)
            self._waiting.append(Request(f"r{self._n_made}", *args))
        self.running.clear()
        self._free = [*range(self._terms.max_slots)]
        self._last_owner.clear()

    def _finish(self, request: Request) -> None:
        self._leave(request)
        self.n_tokens += len(request.tokens) - len(request.prompt)
        if not self.wrong_output and request.tokens != reference(request.prompt, request.n_goal):
            self.wrong_output = request.name
