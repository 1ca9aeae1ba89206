"""What a seed is made of: a clock, chances split by purpose, and the terms of the run.

Decides numbers. Every purpose has a generator of its own, so that one more draw in one place does
not move every fault in another.
"""

import random
from typing import Final, NamedTuple

from dsparkctl.contract.codes import PayloadKind, SampleMode
from dsparkctl.contract.records import Hello

VOCAB_SIZE: Final = 50_000
IDENTITY: Final = bytes(range(32))


class Clock:
    """Seconds that pass only when somebody lets them."""

    __slots__ = ("now_s",)

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def chance(seed: int, purpose: str) -> random.Random:
    """The generator of one purpose."""
    return random.Random(f"{seed}/{purpose}")


class Terms(NamedTuple):
    """The fixed numbers of a seed."""

    num_spec: int
    window: int
    row_bytes: int
    max_slots: int
    max_model_len: int
    n_budget: int
    """Rows that the engine schedules in a step at most."""
    timeout_s: float
    trip: int
    cooldown: int
    step_s: float
    """What the engine takes for a round, beside the exchange."""
    first_generation: int
    want_margin: bool

    @property
    def schedule(self) -> list[list[int]]:
        """§2: fewer drafts where more requests run."""
        return [[1, 2, self.num_spec], [3, 4, self.num_spec - 1]]

    @property
    def n_silent_at_most(self) -> int:
        """Rounds that the longest backoff may last (§10)."""
        return int(30 / self.step_s) + 2

    def hello(self) -> Hello:
        return Hello(
            proto_min=1,
            proto_max=1,
            num_spec=self.num_spec,
            window=self.window,
            hidden=self.row_bytes // 2,
            n_taps=1,
            tap_layer_ids=(1, 0, 0, 0),
            payload_kind=PayloadKind.TAPS_BF16,
            row_bytes=self.row_bytes,
            noise_token_id=VOCAB_SIZE - 1,
            vocab_size=VOCAB_SIZE,
            max_model_len=self.max_model_len,
            max_slots=self.max_slots,
            max_rows_per_step=self.max_slots * self.window,
            sample_mode=SampleMode.GREEDY,
            tp_size=2,
            reserved=0,
            drafter_identity=IDENTITY,
            markov_identity=bytes(32),
            client_name=b"simulation",
        )


def drawn_terms(draw: random.Random) -> Terms:
    """Terms that differ from seed to seed; some seeds are near the contract's own numbers."""
    return Terms(
        num_spec=draw.choice((3, 5, 5)),
        window=draw.choice((8, 11, 16)),
        row_bytes=draw.choice((64, 96)),
        max_slots=draw.choice((1, 2, 2, 3, 4, 4)),
        max_model_len=draw.choice((90, 140)),
        n_budget=draw.choice((20, 40, 64)),
        timeout_s=draw.choice((0.02, 0.05, 0.4)),
        trip=draw.choice((0, 1, 2, 3, 3, 3)),
        cooldown=draw.choice((1, 5, 20, 20, 64, 256)),
        step_s=draw.choice((0.25, 0.25, 0.1, 0.035)),
        first_generation=draw.choice((0, 0, 0x7FFFFFF8, 0xFFFFFFF8)),
        want_margin=draw.random() < 0.4,
    )
