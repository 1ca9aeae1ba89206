"""`--show-outage`: the demo's own worker is killed and started again at fixed engine rounds.

Decides which phase a round belongs to. The engine goes on meanwhile; when the client finds the new
worker is its own affair (§10: it tries after 1 s, 3 s, 7 s ...).
"""

from enum import StrEnum
from typing import Final

from dsparkctl.client.fallback import Outcome
from dsparkctl.client.policies import is_served
from dsparkctl.demo.worker_process import Worker

KILL_AT: Final = 40
"""The first round without a worker, counted from 0."""
START_AT: Final = 48


class Phase(StrEnum):
    ON = "worker on"
    OUT = "worker killed"
    BACK = "worker back"


class Outage:
    """Without a worker of our own there is no outage, and one phase."""

    def __init__(self, worker: Worker | None) -> None:
        self._worker = worker
        self.phase = Phase.ON

    def before(self, n_round: int) -> None:
        """Call it before each round, counted from 0."""
        if self._worker is None:
            return
        if n_round == KILL_AT:
            self._worker.kill()
            self.phase = Phase.OUT
        elif n_round == START_AT:
            self._worker.start()

    def after(self, outcome: Outcome) -> Phase:
        """The phase that the round belongs to."""
        if self.phase is Phase.OUT and is_served(outcome):
            self.phase = Phase.BACK
        return self.phase
