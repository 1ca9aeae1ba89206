"""The heads' part of a round, recorded once for each shape of decoding (issue 4, §1).

Behind the last layer nothing depends on values: base logits, the Markov chain and the confidence
are some eighty launches whose shapes follow from the number of requests and of steps. On CUDA they
are recorded at start for 1 to 4 requests and every number of steps, and one launch replays them.
The layers before are not: which experts run is known only once the router has spoken.

Decides which rounds are replayed; all others, and every round where nothing could be recorded, run
the same function as it stands. Not run on a GPU yet; the decision is tested on a CPU.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dspark_worker.model.exl3.linear import Exl3Linear, Exl3Sliced
from dspark_worker.model.heads import Heads, Sampled
from dspark_worker.model.scratch import Scratch
from dspark_worker.model.trace import Trace

log = logging.getLogger(__name__)

MAX_REQUESTS = 4

Run = Callable[[], Sampled]


class Recording(NamedTuple):
    """What a recorder makes of a function: calling `replay` computes `outputs` anew."""

    replay: Callable[[], object]
    outputs: Sampled


Recorder = Callable[[Run], Recording]


class _Shape(NamedTuple):
    n_requests: int
    n_steps: int


class _Recorded(NamedTuple):
    """A recording with the tensors it reads."""

    hidden: Tensor
    anchors: Tensor
    recording: Recording
    scratch: Scratch


class HeadStage:
    """Heads that know which shapes come again; `record` is None where nothing is recorded."""

    def __init__(self, heads: Heads, record: Recorder | None) -> None:
        self._heads = heads
        self._record = record
        self._recorded: dict[_Shape, _Recorded] = {}

    @property
    def n_recorded(self) -> int:
        return len(self._recorded)

    def warm(self, hidden: Tensor, max_requests: int) -> None:
        """Record every shape of decoding; `hidden` [1, N, D] is an example of dtype and device.

        Where one cannot be recorded none is used: a round is then what it would be without.
        """
        if self._record is None:
            return
        n_spec = hidden.shape[1]
        try:
            for n_requests in range(1, min(max_requests, MAX_REQUESTS) + 1):
                for n_steps in range(1, n_spec + 1):
                    self._recorded[_Shape(n_requests, n_steps)] = self._make(
                        hidden.repeat(n_requests, 1, 1), n_steps
                    )
        except RuntimeError as error:
            self._recorded.clear()
            log.warning("the heads run launch by launch: %s", str(error).splitlines()[0])

    def __call__(
        self,
        hidden: Tensor,
        anchors: Tensor,
        n_steps: int,
        *,
        want_margin: bool,
        trace: Trace | None,
    ) -> Sampled:
        """`hidden` [b, N, D], `anchors` int64 [b]; the result is good until the next call."""
        found = self._recorded.get(_Shape(len(hidden), n_steps))
        if found is None or want_margin or trace is not None:
            return self._run(hidden, anchors, n_steps, want_margin=want_margin, trace=trace)
        found.hidden.copy_(hidden)
        found.anchors.copy_(anchors)
        found.recording.replay()
        return found.recording.outputs

    def _run(
        self,
        hidden: Tensor,
        anchors: Tensor,
        n_steps: int,
        *,
        want_margin: bool,
        trace: Trace | None,
    ) -> Sampled:
        base = self._heads.base_logits(hidden)
        return self._heads.sample(
            base, hidden, anchors, n_steps, want_margin=want_margin, trace=trace
        )

    def _make(self, hidden: Tensor, n_steps: int) -> _Recorded:
        assert self._record is not None
        anchors = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
        # Of its own: what it wrote to while it was recorded may never move.
        scratch = Scratch()
        own = HeadStage(dataclasses.replace(self._heads, scratch=scratch), None)
        recording = self._record(
            lambda: own(hidden, anchors, n_steps, want_margin=False, trace=None)
        )
        return _Recorded(hidden, anchors, recording, scratch)


def recorder_for(heads: Heads, device: torch.device) -> Recorder | None:
    """CUDA graphs, where there are any, nothing asks the host in between (as the Markov cache does,
    by token), and the head's weights stay where they are."""
    moves = isinstance(heads.head, (Exl3Linear, Exl3Sliced)) and not heads.head.is_resident
    return (
        None
        if device.type != "cuda" or moves or heads.cache is not None
        else _cuda_recorder(device)
    )


def _cuda_recorder(device: torch.device) -> Recorder:
    """One pool of memory for all: a result is read before the next replay."""
    pool = torch.cuda.graph_pool_handle()

    def record(run: Run) -> Recording:
        # What allocates or chooses an algorithm at its first call does so before the recording.
        side: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            run()
            run()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outputs = run()
        return Recording(graph.replay, outputs)

    return record
