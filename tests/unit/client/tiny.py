"""Terms small enough to read, and an engine's tensors made of nothing but chance."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dsparkctl.client.staging import StepTensors
from dsparkctl.state.ledger import Scheduled
from tests.unit.client import fakes
from tests.unit.client.fakes import SLOTS, VOCAB

HIDDEN, N_TAPS = 4, 3
ROW_BYTES = N_TAPS * HIDDEN * 2

HELLO = fakes.HELLO._replace(n_taps=N_TAPS, tap_layer_ids=(1, 2, 3, 0), row_bytes=ROW_BYTES)


class Step(NamedTuple):
    """One engine step: what the host knows, and what the device does."""

    requests: Sequence[Scheduled]
    tensors: StepTensors
    rejected: Sequence[int]
    sampled: Sequence[int]
    last_sampled: Sequence[int]
    next_prefill: Sequence[int]

    def row(self, at: int) -> bytes:
        """Row `at` of the tap tensors as a STEP carries it (§3)."""
        return b"".join(
            bytes(tap[at].contiguous().view(torch.uint8).tolist()) for tap in self.tensors.taps
        )


def noise(rng: random.Random, n_rows: int) -> Tensor:
    """[n_rows, HIDDEN] bf16 of any bits."""
    seeded = torch.Generator().manual_seed(rng.getrandbits(32))
    bits = torch.randint(-(1 << 15), 1 << 15, (n_rows, HIDDEN), generator=seeded)
    return bits.to(torch.int16).view(torch.bfloat16)


def step(
    rng: random.Random,
    requests: Sequence[Scheduled],
    rejected: Sequence[int],
    sampled: Sequence[int],
    *,
    n_taps: int = N_TAPS,
    wants_drafts: bool = True,
) -> Step:
    """Tensors for the scheduled requests: padded taps, token tensors of both forms."""
    n_tokens = max(r.row + r.n_rows for r in requests) + rng.randrange(3)
    last = [rng.randrange(VOCAB) for _ in range(SLOTS)]
    prefill = [rng.randrange(VOCAB) for _ in range(SLOTS)]
    last_tensor = torch.tensor(last, dtype=torch.int64)
    prefill_tensor = torch.tensor([prefill, [0] * SLOTS], dtype=torch.int32)
    tensors = StepTensors(
        taps=[noise(rng, n_tokens) for _ in range(n_taps)],
        num_sampled=torch.tensor([*sampled, *[7] * rng.randrange(2)], dtype=torch.int32),
        num_rejected=torch.tensor([*rejected, *[7] * rng.randrange(2)], dtype=torch.int32),
        last_sampled=rng.choice([last_tensor, last_tensor.unsqueeze(1)]),
        next_prefill_tokens=rng.choice([prefill_tensor, prefill_tensor[0]]),
        wants_drafts=wants_drafts,
    )
    return Step(requests, tensors, rejected, sampled, last, prefill)
