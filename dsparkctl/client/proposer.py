"""One engine step's drafts, on every rank (§4.1, §4.2, §10).

Decides the order: rank 0 asks the worker, every rank takes the broadcast, and what follows from it
follows on every rank alike. Refuses to know rows, connections and engines. Ranks other than 0 have
no rounds, no link and no ring; nothing here looks at a clock on any of them.
"""

from typing import NamedTuple, Protocol

from torch import Tensor

from dsparkctl.client.broadcast import Broadcast, Drafts, Word
from dsparkctl.client.environment import OnFail, Policy, ShadowUse
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.policies import course, raises, waits_for_status
from dsparkctl.client.rounds import Answer
from dsparkctl.client.rows import Batch
from dsparkctl.client.shadow import ShadowReport
from dsparkctl.client.speaker import Speaker


class RemoteDraftingFailed(RuntimeError):  # noqa: N818 -- what happened, as the engine's log says it
    """Every rank raises this where a failed round ends the engine (`ON_FAIL=raise`, §10)."""


class LocalDrafter(Protocol):
    """The drafter on the Spark itself, which resilience and shadow keep (§10); same on every rank.

    It knows the step that is being proposed for; one of the two is called in every round.
    """

    def propose(self) -> Drafts:
        """Take the step's rows into its context, and draft."""

    def keep_context(self) -> None:
        """Take the step's rows into its context, and no more."""


class Choice(NamedTuple):
    """What the settings say of failed rounds (§10); the same on every rank."""

    policy: Policy = Policy.CAPACITY
    on_fail: OnFail = OnFail.FALLBACK
    shadow_use: ShadowUse = ShadowUse.LOCAL


class Proposal(NamedTuple):
    """What the engine gets."""

    outcome: Outcome | None
    """None: on the device alone so far, since nobody here needs it at once."""
    draft_ids: Tensor
    """[n_req, N] int64, of its own memory: the engine may write into it."""
    confidence: Tensor
    """[n_req, N] float32; zeros wherever no draft is (§10)."""


class Proposer:
    """`speaker` on rank 0 alone; `local` under resilience and shadow, on every rank."""

    def __init__(
        self,
        word: Word,
        broadcast: Broadcast,
        choice: Choice,
        *,
        speaker: Speaker | None = None,
        local: LocalDrafter | None = None,
        shadow: ShadowReport | None = None,
    ) -> None:
        if (local is None) is not (choice.policy is Policy.CAPACITY):
            raise ValueError(f"{choice.policy} with{'out' if local is None else ''} local drafter")
        self.speaker = speaker
        self.shadow = shadow
        self._word = word
        self._broadcast = broadcast
        self._choice = choice
        self._local = local

    def propose(self, batch: Batch, *, wants_drafts: bool = True) -> Proposal:
        """Drafts for the batch's requests, in batch order; every rank calls it with the same batch.

        `wants_drafts` False: the engine verifies none next. RemoteDraftingFailed on every rank, or
        on none.
        """
        n = len(batch.requests)
        if n > self._word.max_requests:
            raise ValueError(f"{n} requests, the tensor holds {self._word.max_requests}")
        tensor = self._word.tensor if self.speaker is None else self.speaker.ask(batch)
        tensor = self._broadcast(tensor)
        if self.speaker is not None and self.speaker.fault is not None:
            raise self.speaker.fault
        outcome = self._outcome(tensor)
        if outcome is not None and raises(self._choice.on_fail, outcome):
            self._raise()
        drafts = self._word.unpacked(tensor, n)
        if self._local is not None and outcome is not None:
            drafts = self._with_local(self._local, drafts, outcome, wants_drafts)
        if self.speaker is not None:
            self.speaker.rest()
        return Proposal(outcome, *drafts)

    def close(self) -> None:
        if self.speaker is not None:
            self.speaker.close()

    def _outcome(self, tensor: Tensor) -> Outcome | None:
        """Read off the tensor on every rank, so that no rank knows more than another."""
        choice = self._choice
        if tensor.device.type == "cpu" or waits_for_status(choice.policy, choice.on_fail):
            return Word.outcome(tensor)
        return None

    def _raise(self) -> None:
        answer = self.speaker.answer if self.speaker is not None else None
        reason = "rank 0 failed, its log says why" if answer is None else _reason(answer)
        raise RemoteDraftingFailed(f"remote drafting failed: {reason}")

    def _with_local(
        self, local: LocalDrafter, remote: Drafts, outcome: Outcome, wants_drafts: bool
    ) -> Drafts:
        choice = self._choice
        todo = course(choice.policy, choice.shadow_use, outcome, wants_drafts=wants_drafts)
        if todo.keeps_context:
            local.keep_context()
        if not todo.drafts_locally:
            return remote
        drafts = local.propose()
        answer = self.speaker.answer if self.speaker is not None else None
        if self.shadow is not None and answer is not None:
            _compare(self.shadow, answer, drafts.ids)
        return drafts if todo.uses_local else remote


def _compare(shadow: ShadowReport, answer: Answer, local_ids: Tensor) -> None:
    """Entry by entry; waits for the local drafter."""
    local: list[list[int]] = local_ids.tolist()
    n = local_ids.shape[1]
    for i, (theirs, n_drafts) in enumerate(zip(local, answer.n_drafts, strict=True)):
        if n_drafts is not None:
            at = slice(i * n, i * n + n)
            margins = None if answer.margin is None else answer.margin[at]
            shadow.compare(answer.draft_ids[at], theirs, margins, n_drafts)


def _reason(answer: Answer) -> str:
    return f"{answer.outcome.name}: {answer.reason}"
