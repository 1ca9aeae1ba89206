"""One rank of an engine, as a process: steps come in on stdin, what it got goes out on stdout.

Both ranks are told the same steps and make the same batches of them, as tensor-parallel ranks do;
only rank 0 has rounds, a link and a ring. Settings come from the environment.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dsparkctl.client.broadcast import Drafts, OverGroup
from dsparkctl.client.environment import Policy
from dsparkctl.client.proposer import LocalDrafter, RemoteDraftingFailed
from dsparkctl.client.rows import Batch
from dsparkctl.client.settings import Settings
from dsparkctl.client.staging import StepTensors
from dsparkctl.client.start import join_rank, start_rank0
from dsparkctl.client.terms import EngineTerms
from dsparkctl.state.ledger import Scheduled
from dsparkctl.state.n_out import Caps

CPU = torch.device("cpu")

LOCAL_ID = 42


class Local:
    """A local drafter that always says the same."""

    def __init__(self, num_spec: int) -> None:
        self._num_spec = num_spec
        self.n_requests = 0
        self.did = ""

    def propose(self) -> Drafts:
        self.did = "propose"
        shape = (self.n_requests, self._num_spec)
        return Drafts(torch.full(shape, LOCAL_ID), torch.full(shape, 0.25))

    def keep_context(self) -> None:
        self.did = "keep"


class Engine:
    """Requests that are prefilled in one chunk and then decode, one draft in two accepted."""

    def __init__(self, terms: EngineTerms) -> None:
        self._terms = terms
        self._pos = [0] * terms.max_slots
        self._random = torch.Generator().manual_seed(1)

    def batch(self, slots: Sequence[int]) -> Batch:
        terms, requests, row = self._terms, [], 0
        rejected = []
        for slot in slots:
            pos = self._pos[slot]
            n_rows, k, n_rejected = (3, 2, 1) if pos else (5, 0, 0)
            requests.append(Scheduled(f"r{slot}", slot, row, pos, n_rows, k))
            rejected.append(n_rejected)
            self._pos[slot] += n_rows - n_rejected
            row += n_rows
        taps = [
            torch.randn(row, terms.hidden, generator=self._random).to(torch.bfloat16)
            for _ in terms.tap_layer_ids
        ]
        tensors = StepTensors(
            taps,
            torch.ones(len(slots), dtype=torch.int32),
            torch.tensor(rejected, dtype=torch.int32),
            torch.arange(terms.max_slots).unsqueeze(1),
            torch.zeros(1, terms.max_slots, dtype=torch.int32),
            wants_drafts=True,
        )
        return Batch(requests, tensors)


class Kept:
    """Passes the broadcast on, and keeps what this rank got of it."""

    def __init__(self) -> None:
        self._over = OverGroup()
        self.words: list[int] = []

    def __call__(self, tensor: Tensor) -> Tensor:
        tensor = self._over(tensor)
        self.words = tensor.tolist()
        return tensor


def run(rank: int, terms: EngineTerms) -> None:
    settings = Settings.from_environment(os.environ)
    assert settings is not None
    local = None if settings.policy is Policy.CAPACITY else Local(terms.num_spec)
    handed: LocalDrafter | None = local
    kept, engine = Kept(), Engine(terms)
    if rank == 0:
        proposer = start_rank0(
            settings, terms, device=CPU, broadcast=kept, caps=Caps((), ""), local=handed
        )
    else:
        proposer = join_rank(settings, terms, device=CPU, broadcast=kept, local=handed)
    say({"ready": rank})
    for line in sys.stdin:
        batch = engine.batch(json.loads(line))
        if local is not None:
            local.n_requests, local.did = len(batch.requests), ""
        try:
            outcome, ids, confidence = proposer.propose(batch)
        except RemoteDraftingFailed as error:
            say({"raised": str(error), "words": kept.words})
            return
        assert outcome is not None
        say(
            {
                "outcome": outcome.name,
                "words": kept.words,
                "ids": ids.tolist(),
                "confidence": confidence.tolist(),
                "local": local.did if local is not None else "",
            }
        )
    proposer.close()


def say(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main() -> None:
    rank, store, given = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    given["tap_layer_ids"] = tuple(given["tap_layer_ids"])
    run(rank, EngineTerms(**given))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
