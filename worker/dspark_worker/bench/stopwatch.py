"""Where a round's time goes: parts of a model, each behind a clock.

Decides what belongs to which part. A drafter is opened up and its parts are put back wrapped; the
model itself knows nothing of it.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from dspark_worker.model.drafter import TorchDrafter
from dspark_worker.model.heads import Heads, Sampled

INSIDE = ("main_proj", "context KV", "attention", "MoE", "head", "Markov", "confidence")
"""The parts of a drafter, in the order in which a round comes to them."""


class Stopwatch:
    """Seconds by part, since the last `take`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.spent: dict[str, float] = defaultdict(float)

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, spent = self.clock, self.spent

        def run(*args: Any, **kwargs: Any) -> Any:
            began = clock()
            answer = call(*args, **kwargs)
            spent[part] += clock() - began
            return answer

        return run

    def take(self) -> dict[str, float]:
        taken = dict(self.spent)
        self.spent.clear()
        return taken


def clock_of(device: str, n_threads: int) -> Callable[[], float]:
    """Thread time where one thread does it all; it does not see what neighbours do to this machine.

    Elapsed time otherwise, on a GPU after it has caught up.
    """
    if device.startswith("cuda"):

        def caught_up() -> float:
            torch.cuda.synchronize()
            return time.perf_counter()

        return caught_up
    return time.thread_time if n_threads == 1 else time.perf_counter


@dataclass(frozen=True)
class _TimedHeads(Heads):
    """The chain is what `sample` spends beside the confidence."""

    watch: Stopwatch | None = None

    def base_logits(self, hidden: Tensor) -> Tensor:
        assert self.watch is not None
        found: Tensor = self.watch.timed("head", super().base_logits)(hidden)
        return found

    def sample(self, *args: Any, **kwargs: Any) -> Sampled:
        assert self.watch is not None
        spent = self.watch.spent
        before = spent["confidence"]
        found: Sampled = self.watch.timed("Markov", super().sample)(*args, **kwargs)
        spent["Markov"] -= spent["confidence"] - before
        return found

    def conf_logits(self, hidden: Tensor, given: Tensor) -> Tensor:
        assert self.watch is not None
        found: Tensor = self.watch.timed("confidence", super().conf_logits)(hidden, given)
        return found


def watch(drafter: TorchDrafter, stopwatch: Stopwatch) -> None:
    """Put a clock around the drafter's parts."""
    drafter.rebuild(lambda model: _timed(model, stopwatch))


def _timed(model: Any, stopwatch: Stopwatch) -> Any:
    blocks = tuple(
        block._replace(
            attention=stopwatch.timed("attention", block.attention),
            experts=stopwatch.timed("MoE", block.experts),
        )
        for block in model.blocks
    )
    held = {one.name: getattr(model.heads, one.name) for one in fields(Heads)}
    return model._replace(
        main_proj=stopwatch.timed("main_proj", model.main_proj),
        main_norm=stopwatch.timed("main_proj", model.main_norm),
        context_kv=stopwatch.timed("context KV", model.context_kv),
        blocks=blocks,
        heads=_TimedHeads(**held, watch=stopwatch),
    )
