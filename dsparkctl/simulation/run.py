"""One seed: so many engine rounds under faults, then calm, with everything checked after each.

Decides the order of things in a round, and when the faults end. A seed replays exactly: the digest
covers every message, every outcome and the time of each.
"""

import hashlib
import logging
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from dsparkctl.simulation import checks, sides
from dsparkctl.simulation.carriage import Carriage, Ofl, Stream
from dsparkctl.simulation.checks import Checker
from dsparkctl.simulation.engine import Engine
from dsparkctl.simulation.faults import Kind, Weather
from dsparkctl.simulation.invariant import InvariantBroken, require
from dsparkctl.simulation.network import Network
from dsparkctl.simulation.spark import Spark
from dsparkctl.simulation.world import Clock, chance, drawn_terms

ROUNDS: Final = 2000
"""Engine rounds of a seed."""

_LIFE_ROUNDS: Final = 30
"""An engine whose drafting was disabled for good is started again after about so many rounds."""


class Failure(NamedTuple):
    """What did not hold, and where."""

    seed: int
    n_round: int
    invariant: str
    detail: str


class Result(NamedTuple):
    """What a seed came to."""

    seed: int
    n_rounds: int
    failure: Failure | None
    faults: Counter[Kind]
    details: Counter[str]
    digest: str
    n_tokens: int
    n_accepted: int


def run_seed(seed: int, n_rounds: int = ROUNDS) -> Result:
    """Run one seed to its end, or to the first invariant that is broken."""
    with _silence():
        return Simulation(seed, n_rounds).run()


@contextmanager
def _silence() -> Iterator[None]:
    """Client and worker have much to say about faults; nobody reads it here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


_OFL_SHARE = 0.3
"""Of the seeds that speak over ofl."""


class Simulation:
    """Both sides of one seed."""

    def __init__(self, seed: int, n_rounds: int) -> None:
        self.seed = seed
        self.n_round = 0
        self._n_rounds = n_rounds
        self.terms = terms = drawn_terms(chance(seed, "terms"))
        self.clock = Clock()
        self.weather = Weather(chance(seed, "faults"))
        carriage: Carriage = Ofl() if chance(seed, "carriage").random() < _OFL_SHARE else Stream()
        self.network = Network(terms, self.clock, self.weather, chance(seed, "links"), carriage)
        self.engine = Engine(terms, chance(seed, "engine"), self.weather)
        self._sessions = chance(seed, "sessions")
        self._digest = hashlib.blake2b(digest_size=16)
        self._n_accepted_before = 0
        self._file_since_s = float("-inf")
        self._file_is_there = False
        tail = 2 * (terms.cooldown + 8) + terms.n_silent_at_most
        self._calm_round = n_rounds - min(tail, n_rounds // 2)
        self._clean_by_round = 0
        self._n_latent = 0
        self._start_spark()

    def run(self) -> Result:
        failure: Failure | None = None
        try:
            while self.n_round < self._n_rounds:
                self._round()
            self._life_over()
        except InvariantBroken as broken:
            failure = Failure(self.seed, self.n_round, broken.name, broken.detail)
        except Exception as error:  # a fault of the code under test, as good as any other
            detail = f"{type(error).__name__}: {error}"
            failure = Failure(self.seed, self.n_round, "no exception", detail)
        return Result(
            self.seed,
            self.n_round,
            failure,
            self.weather.counts,
            self.weather.details,
            self._digest.hexdigest(),
            self.engine.n_tokens,
            self.engine.n_accepted,
        )

    # --- a round ----------------------------------------------------------------------------------

    def _round(self) -> None:
        self.n_round += 1
        self._fall()
        network, spark, clock = self.network, self.spark, self.clock
        network.begin_round()
        step = self.engine.step()
        network.trace.clear()
        started_s = clock.now_s
        answer = spark.rounds.run(step.batch)
        self.checker.round_done(step, answer, network.trace, started_s, self._off_for_s(started_s))
        require(not network.worker.flaw, "the worker is sound", network.worker.flaw)

        tensor = spark.broadcast(answer)
        ranks = [spark.received(tensor, len(step.requests)) for _ in range(2)]
        sides.ranks_agree(answer, *ranks)
        self.engine.take(step, ranks[1].draft_ids, ranks[1].confidence)
        require(not self.engine.wrong_output, "outputs are the reference", self.engine.wrong_output)
        if self.weather.is_calm:
            self._settles([request.slot for request in step.requests])

        self._digest.update(struct.pack("<d", clock.now_s) + tensor)
        for event in network.trace:
            self._digest.update(event.request)
            self._digest.update(event.reply or b"-")
        clock.advance(self.terms.step_s)

    def _off_for_s(self, now_s: float) -> float:
        for_s = now_s - self._file_since_s
        return for_s if self._file_is_there else -for_s

    # --- faults -----------------------------------------------------------------------------------

    def _fall(self) -> None:
        """The faults of this round that hit neither a message nor a connection."""
        weather, network = self.weather, self.network
        if self.n_round == self._calm_round:
            self._calm()
        draw = weather.draw
        match weather.begin(self.n_round):
            case Kind.WORKER_RESTART as kind:
                network.restart_worker(draw.choice((0, 0, 1, 10)))
                weather.happened(kind)
            case Kind.SPARK_RESTART:
                self._restart_spark()
            case Kind.REORDERED_CONNECTION as kind if network.live:
                network.welcome_ghost()
                weather.happened(kind)
            case Kind.RESET as kind:
                network.reset(draw.choice((0xFFFFFFFF, 1, 2, 5)))
                weather.happened(kind)
            case Kind.STALE_GENERATION as kind:
                slot = draw.randrange(self.terms.max_slots)
                if network.get_ahead(slot, draw.choice((1, 2, 1000, 0x7FFFFFFF))):
                    weather.happened(kind)
        if self.checker.is_disabled and draw.random() < 1 / _LIFE_ROUNDS:
            self._restart_spark()
        is_there = weather.is_switched_off
        if is_there != self._file_is_there:
            self._file_is_there, self._file_since_s = is_there, self.clock.now_s
            if is_there:
                weather.happened(Kind.KILL_SWITCH)

    def _restart_spark(self) -> None:
        self.weather.happened(Kind.SPARK_RESTART)
        self._life_over()
        self.engine.restart()
        self._start_spark()

    def _start_spark(self) -> None:
        self.spark = Spark(self.terms, self.clock, self.network, self.weather, self._sessions)
        self.checker = Checker(self.terms, self.spark, self.network)

    def _life_over(self) -> None:
        counts = self.checker.life_over(self.engine.n_accepted - self._n_accepted_before)
        self.weather.details.update({f"counted: {name}": n for name, n in counts.items()})
        self._n_accepted_before = self.engine.n_accepted

    # --- the calm ---------------------------------------------------------------------------------

    def _calm(self) -> None:
        """The faults end. One that has not shown yet may still cost one failed attempt each."""
        self.weather.calm()
        self.network.calm()
        if self.checker.is_disabled:
            self._restart_spark()
        self._n_latent = 1 + len(self.network.suspects)
        self._clean_by_round = self._soon()

    def _soon(self) -> int:
        """§10: one cooldown or one backoff (or one look for the switch file), and one probe."""
        checker = self.checker
        n_silent = checker.breaker.last_silent_round - checker.n_round
        wait_s = max(checker.backoff.next_at_s - self.clock.now_s, checks.LOOK_S)
        return self.n_round + max(n_silent, int(wait_s / self.terms.step_s) + 1) + 2

    def _settles(self, slots: list[int]) -> None:
        dirty = [i for i in slots if self.spark.rounds.ledger.pages[i].is_dirty]
        if not dirty or self.n_round <= self._clean_by_round:
            return
        require(self._n_latent > 0, "every slot is clean soon after the faults", dirty)
        self._n_latent -= 1
        self._clean_by_round = self._soon()
