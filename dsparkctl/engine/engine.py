"""The small engine: schedule, forward, verify, propose, as vLLM's V2 runner goes about it (§4.2).

Decides what a drafter is told of a step, in the shapes and with the habits of the real engine: a
span's rows include those of rejected drafts, and all but its last min(q, W) taps are zeros (§2).
Refuses to know who drafts, and whether anybody answers.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dsparkctl.client.fallback import Outcome
from dsparkctl.client.rows import Batch
from dsparkctl.client.staging import StepTensors
from dsparkctl.engine.depth import depth
from dsparkctl.engine.scheduler import Rules, Scheduler, Share
from dsparkctl.engine.target import Forward, Span
from dsparkctl.engine.verify import NOTHING_SAMPLED, Verified, verify
from dsparkctl.state.ledger import Scheduled
from dsparkctl.state.n_out import n_out


class Target(Protocol):
    """What the engine asks of its model (`dsparkctl.engine.target`)."""

    def forward(self, spans: Sequence[Span]) -> Forward: ...
    def copy_kv(self, src_slot: int, dst_slot: int, n_tokens: int) -> None: ...


class Proposal(Protocol):
    """What a round of drafting came to."""

    @property
    def outcome(self) -> Outcome: ...
    @property
    def draft_ids(self) -> Tensor:
        """[n, N] int64"""

    @property
    def confidence(self) -> Tensor:
        """[n, N] float32"""

    @property
    def n_drafted(self) -> int:
        """Requests that got drafts."""


class Proposer(Protocol):
    """Whoever drafts; it may be slow, wrong or gone, and only speed changes."""

    def propose(self, batch: Batch) -> Proposal: ...


class Round(NamedTuple):
    """What one engine round did."""

    shares: Sequence[Share]
    verified: Sequence[Verified]
    """Share by share."""
    outcome: Outcome
    n_drafted: int
    """Requests that got drafts."""
    round_s: float
    propose_s: float
    """Of it, in `propose`."""


class Engine:
    """Runs what `scheduler` gives it to do on `target`; `n_slots` is the HELLO's max_slots."""

    def __init__(
        self,
        target: Target,
        scheduler: Scheduler,
        rules: Rules,
        proposer: Proposer,
        n_slots: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._target = target
        self._scheduler = scheduler
        self._rules = rules
        self._proposer = proposer
        self._clock = clock
        self._last_sampled = [0] * n_slots
        self._next_prefill = [0] * n_slots

    @torch.inference_mode()
    def step(self) -> Round:
        """One engine round; there must be something left to do."""
        began_s = self._clock()
        shares, copies = self._scheduler.schedule()
        for copy in copies:
            self._target.copy_kv(*copy)
        choices, taps = self._forward(shares)
        verified = self._verify(shares, choices)
        batch = self._batch(shares, verified, taps)
        asked_s = self._clock()
        proposal = self._proposer.propose(batch)
        answered_s = self._clock()
        self._settle(shares, verified, proposal)
        return Round(
            shares,
            verified,
            proposal.outcome,
            proposal.n_drafted,
            self._clock() - began_s,
            answered_s - asked_s,
        )

    def _forward(self, shares: Sequence[Share]) -> tuple[list[int], Sequence[Tensor]]:
        """The target's choice at every row, and its taps."""
        spans = [Span(share.slot, share.first_pos, share.tokens) for share in shares]
        logits, taps = self._target.forward(spans)
        row = 0
        for share in shares:
            n_trimmed = max(0, share.n_rows - self._rules.window)
            for tap in taps if n_trimmed else ():
                tap[row : row + n_trimmed] = 0
            row += share.n_rows
        return logits.argmax(-1).tolist(), taps

    def _verify(self, shares: Sequence[Share], choices: Sequence[int]) -> list[Verified]:
        verified, end = [], 0
        for share in shares:
            end += share.n_rows
            found = NOTHING_SAMPLED
            if share.samples:
                drafts = share.tokens[share.n_rows - share.n_drafts :]
                found = verify(drafts, choices[end - share.n_drafts - 1 : end])
            verified.append(found)
        return verified

    def _batch(
        self, shares: Sequence[Share], verified: Sequence[Verified], taps: Sequence[Tensor]
    ) -> Batch:
        requests, row = [], 0
        for share, (sampled, _) in zip(shares, verified, strict=True):
            request, slot, first_pos = share.request, share.slot, share.first_pos
            n_rows = share.n_rows
            requests.append(
                Scheduled(request.request_id, slot, row, first_pos, n_rows, share.n_drafts)
            )
            if sampled:
                self._last_sampled[slot] = sampled[-1]
            else:
                self._next_prefill[slot] = request.tokens[first_pos + n_rows]
            row += n_rows
        return Batch(
            requests,
            StepTensors(
                taps=taps,
                num_sampled=torch.tensor([len(sampled) for sampled, _ in verified]),
                num_rejected=torch.tensor([n_rejected for _, n_rejected in verified]),
                last_sampled=torch.tensor(self._last_sampled).unsqueeze(1),
                next_prefill_tokens=torch.tensor([self._next_prefill], dtype=torch.int32),
                wants_drafts=True,
            ),
        )

    def _settle(
        self, shares: Sequence[Share], verified: Sequence[Verified], proposal: Proposal
    ) -> None:
        """The tokens are the requests'; so are the drafts worth verifying."""
        draft_ids: list[list[int]] = proposal.draft_ids.tolist()
        confidence: list[list[float]] = proposal.confidence.tolist()
        cap = n_out(self._rules.caps, len(shares)) or len(draft_ids[0])
        for i, (share, (sampled, n_rejected)) in enumerate(zip(shares, verified, strict=True)):
            self._scheduler.settle(share, sampled, n_rejected)
            if sampled and not share.request.is_done:
                share.request.drafts = draft_ids[i][: depth(confidence[i], cap)]
