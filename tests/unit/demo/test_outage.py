"""`--show-outage`: what happens at which round, and which phase it belongs to."""

from typing import cast

from dsparkctl.client.fallback import Outcome
from dsparkctl.demo.outage import KILL_AT, START_AT, Outage, Phase
from dsparkctl.demo.worker_process import Worker


class Noted:
    """A worker that only notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.n_round = 0

    def kill(self) -> None:
        self.done.append(("kill", self.n_round))

    def start(self) -> None:
        self.done.append(("start", self.n_round))


def phases(worker: Noted | None, back_at: int, n_rounds: int) -> list[Phase]:
    outage = Outage(cast(Worker, worker) if worker is not None else None)
    found = []
    for n in range(n_rounds):
        if worker is not None:
            worker.n_round = n
        outage.before(n)
        is_out = worker is not None and KILL_AT <= n < back_at
        found.append(outage.after(Outcome.NO_CONNECTION if is_out else Outcome.DRAFTED))
    return found


def test_the_worker_is_killed_and_started_at_fixed_rounds() -> None:
    worker = Noted()
    phases(worker, 90, 120)
    assert worker.done == [("kill", KILL_AT), ("start", START_AT)]


def test_it_is_back_with_the_first_round_that_it_serves() -> None:
    found = phases(Noted(), 90, 120)
    assert found == [Phase.ON] * KILL_AT + [Phase.OUT] * (90 - KILL_AT) + [Phase.BACK] * 30


def test_without_a_worker_of_our_own_there_is_no_outage() -> None:
    assert set(phases(None, 0, 120)) == {Phase.ON}
