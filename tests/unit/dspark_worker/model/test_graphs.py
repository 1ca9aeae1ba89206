"""Which rounds of the heads are replayed, and that a replay is the round (issue 4, §1).

No GPU has run this: the recorder here keeps the function and runs it again, over the same inputs
and into the same outputs, as a CUDA graph does.
"""

import dataclasses
import logging

import pytest
import torch
from torch import Tensor

from dspark_worker.model.exl3.cache import DecodedCache
from dspark_worker.model.exl3.linear import Exl3Linear, Exl3Sliced
from dspark_worker.model.graphs import HeadStage, Recording, Run, recorder_for
from dspark_worker.model.heads import Heads, Sampled
from dspark_worker.model.linear import PlainLinear
from dspark_worker.model.norms import RmsNorm
from tests.unit.dspark_worker.model.exl3.layers import CPU, packed

V, D, M, N = 128, 128, 8, 5


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads() -> Heads:
    return Heads(
        norm=RmsNorm(torch.ones(D), 1e-20),
        head=PlainLinear(noise(V, D, seed=1) * D**-0.5),
        markov_embed=noise(V, M, seed=2),
        markov_head=noise(V, M, seed=3),
        confidence=noise(D + M, seed=4),
    )


class Replayer:
    """Stands in for CUDA graphs."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.n_recorded = 0
        self.n_replayed = 0
        self._fails_at = fails_at

    def __call__(self, run: Run) -> Recording:
        if self.n_recorded == self._fails_at:
            raise RuntimeError("operation not permitted when stream is capturing\nand so on")
        self.n_recorded += 1
        outputs = run()

        def replay() -> None:
            self.n_replayed += 1
            for kept, new in zip(outputs, run(), strict=True):
                kept.copy_(new)

        return Recording(replay, outputs)


def stage(replayer: Replayer | None, max_requests: int = 4) -> HeadStage:
    found = HeadStage(heads(), replayer)
    found.warm(torch.zeros(1, N, D), max_requests)
    return found


def ask(of: HeadStage, n_requests: int, n_steps: int, *, want_margin: bool = False) -> Sampled:
    hidden, anchors = noise(n_requests, N, D, seed=n_requests), torch.arange(n_requests)
    return of(hidden, anchors, n_steps, want_margin=want_margin, trace=None)


@pytest.mark.parametrize("n_requests", [1, 2, 3, 4])
@pytest.mark.parametrize("n_steps", range(1, N + 1))
def test_every_shape_of_decoding_is_replayed_and_is_what_it_would_be(
    n_requests: int, n_steps: int
) -> None:
    replayer = Replayer()
    recorded, eager = stage(replayer), stage(None)
    assert recorded.n_recorded == 4 * N
    assert eager.n_recorded == 0
    found, expected = ask(recorded, n_requests, n_steps), ask(eager, n_requests, n_steps)
    assert replayer.n_replayed == 1
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert found.ids.shape == (n_requests, n_steps)


def test_a_replay_reads_its_own_rounds_inputs() -> None:
    recorded = stage(Replayer())
    first = [tensor.clone() for tensor in ask(recorded, 2, N)]
    other = recorded(
        noise(2, N, D, seed=99), torch.tensor([7, 8]), N, want_margin=False, trace=None
    )
    assert not torch.equal(first[1], other.conf_logit)
    again = ask(recorded, 2, N)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_other_rounds_run_as_they_stand() -> None:
    """More requests than decode shapes, margins, a trace."""
    replayer = Replayer()
    recorded = stage(replayer)
    assert ask(recorded, 5, N).ids.shape == (5, N)
    assert bool((ask(recorded, 1, N, want_margin=True).margin > 0).all())
    seen: list[str] = []
    recorded(
        noise(1, N, D, seed=1),
        torch.tensor([1]),
        N,
        want_margin=False,
        trace=lambda name, _: seen.append(name),
    )
    assert "conf_logit" in seen
    assert replayer.n_replayed == 0


def test_no_more_requests_are_recorded_than_there_are_slots() -> None:
    assert stage(Replayer(), max_requests=2).n_recorded == 2 * N
    assert stage(Replayer(), max_requests=32).n_recorded == 4 * N


def test_where_one_shape_cannot_be_recorded_none_is_used(caplog: pytest.LogCaptureFixture) -> None:
    replayer = Replayer(fails_at=7)
    with caplog.at_level(logging.WARNING):
        recorded = stage(replayer)
    assert recorded.n_recorded == 0
    (record,) = caplog.records
    assert record.getMessage() == (
        "the heads run launch by launch: operation not permitted when stream is capturing"
    )
    assert ask(recorded, 1, N).ids.shape == (1, N)
    assert replayer.n_replayed == 0


def test_graphs_are_for_cuda_and_for_weights_that_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    cuda = torch.device("cuda", 0)
    plain = heads()
    assert recorder_for(plain, CPU) is None
    assert recorder_for(plain, cuda) is not None
    for budget, is_recorded in ((1 << 20, True), (0, False)):
        cache = DecodedCache(budget, torch.float32, CPU)
        head = Exl3Linear(packed(), D, V, cache, is_expert=False)
        head.pin()
        for stored in (head, Exl3Sliced((head,))):
            recorder = recorder_for(dataclasses.replace(plain, head=stored), cuda)
            assert (recorder is not None) is is_recorded
