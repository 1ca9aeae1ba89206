"""Rank 0's half of a proposal: a round's answer into the tensor, whatever goes wrong (§4.1, §10).

Decides what an unexpected exception comes to. The other ranks wait for the tensor, so nothing that
happens here may keep it from them: a fault of our own becomes a round without drafts, since drafts
can only change speed; what nobody survives (a lost GPU) becomes RAISED, and is raised once the
tensor is out. Refuses to know how the tensor travels.
"""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dsparkctl.client.broadcast import Word
from dsparkctl.client.environment import OnFail
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.interval import Interval
from dsparkctl.client.policies import raises
from dsparkctl.client.rounds import Answer, Rounds
from dsparkctl.client.rows import Batch
from dsparkctl.state.ledger import Scheduled

log = logging.getLogger(__name__)


class Speaker:
    """Runs rounds in the engine's own thread; `proxy` has the other way."""

    def __init__(self, rounds: Rounds, word: Word, on_fail: OnFail, interval: Interval) -> None:
        self.rounds = rounds
        self.word = word
        self.interval = interval
        self.answer: Answer | None = None
        """Of this round; None while nobody knows it (`proxy`)."""
        self.fault: Exception | None = None
        """What a round met and nobody survives."""
        self._on_fail = on_fail
        self._last_fault = ""

    def ask(self, batch: Batch) -> Tensor:
        """A whole round; the tensor that is to be broadcast, RAISED where the engine must end."""
        return self.packed(self.guarded(batch.requests, lambda: self.rounds.run(batch)))

    def rest(self) -> None:
        """After the broadcast, when nobody waits any more. A figure is worth no round."""
        try:
            self.interval.look()
        except Exception:
            log.exception("the report between rounds broke off")

    def close(self) -> None:
        """The engine ends: the connection is given up."""
        self.rounds.link.close()

    # --- the parts that a round in two threads is made of, too ------------------------------------

    def guarded(self, requests: Sequence[Scheduled], work: Callable[[], Answer]) -> Answer:
        """`work`'s answer, or one without drafts when it raises."""
        try:
            return work()
        except Exception as error:
            return self.faulted(requests, error)

    def packed(self, answer: Answer) -> Tensor:
        """The answer as the tensor that is to be broadcast."""
        self.answer = answer
        outcome = answer.outcome
        if self.fault is not None or raises(self._on_fail, outcome):
            outcome = Outcome.RAISED
        return self.word.packed(outcome, answer.draft_ids, answer.confidence)

    def faulted(self, requests: Sequence[Scheduled], error: Exception) -> Answer:
        """The answer of a round that raised."""
        reason = f"{type(error).__name__}: {error}"
        if reason != self._last_fault:  # a fault of every round says it once
            log.error("a fault of dsparkctl's own; the round goes without drafts", exc_info=error)
        self._last_fault = reason
        if _is_fatal(error):
            self.fault = error
        return self.rounds.fault(requests, reason)


def _is_fatal(error: Exception) -> bool:
    """A CUDA error stays with its process: every later call fails as well."""
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
