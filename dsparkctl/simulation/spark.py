"""The Spark's side put together: the real client of rank 0, and the tensor that all ranks share.

Decides only what is wired to what. A restart of the Spark is another one of these.
"""

import random
import struct
from pathlib import Path
from typing import NamedTuple

from dsparkctl.client.link import WorkerLink
from dsparkctl.client.rounds import Answer, Rounds
from dsparkctl.client.switch import Switch
from dsparkctl.simulation.faults import Weather
from dsparkctl.simulation.network import Network
from dsparkctl.simulation.rows import ByteRows
from dsparkctl.simulation.world import Clock, Terms
from dsparkctl.state.breaker import Breaker
from dsparkctl.state.ledger import Ledger
from dsparkctl.state.n_out import caps


class Shared(NamedTuple):
    """What a rank has after the broadcast (§4.2)."""

    status: int
    draft_ids: tuple[int, ...]
    confidence: tuple[float, ...]


class Spark:
    """Rank 0's client on simulated time."""

    def __init__(
        self, terms: Terms, clock: Clock, network: Network, weather: Weather, draw: random.Random
    ) -> None:
        def look(_: Path) -> bool:
            return weather.is_switched_off

        self.rows = ByteRows(terms.max_slots, terms.window, terms.row_bytes)
        self.link = WorkerLink(
            terms.hello(),
            network.dial,
            timeout_s=terms.timeout_s,
            clock=clock,
            new_session=lambda: draw.randrange(1, 1 << 32),
        )
        self.rounds = Rounds(
            self.link,
            self.rows,
            Breaker(terms.trip, terms.cooldown),
            switch=Switch(Path("/switch"), look),
            caps=caps(terms.schedule, "conf", False, "capacity", True, terms.num_spec),
            clock=clock,
            want_margin=terms.want_margin,
        )
        self.rounds.ledger = Ledger(terms.max_slots, terms.window, terms.first_generation)
        self._n_values = terms.max_slots * terms.num_spec
        self._tensor = struct.Struct(f"<i{self._n_values}i{self._n_values}f")

    def broadcast(self, answer: Answer) -> bytes:
        """The one tensor, of the same shape whatever the round came to."""
        padding = [0] * (self._n_values - len(answer.draft_ids))
        return self._tensor.pack(
            answer.outcome, *answer.draft_ids, *padding, *answer.confidence, *padding
        )

    def received(self, tensor: bytes, n_requests: int) -> Shared:
        """The tensor as any rank reads it."""
        values = self._tensor.unpack(tensor)
        n = n_requests * self._n_values // len(self.rows.ring)
        middle = 1 + self._n_values
        return Shared(values[0], values[1 : 1 + n], values[middle : middle + n])
