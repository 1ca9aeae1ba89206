"""How many draft positions rank 0 asks for (§6.3, v1.3): `n_out`, 0 for all N.

Decides when the engine provably reads no position past the schedule's cap. Refuses to know where
schedule, mode and policy were read. Whenever in doubt the answer is 0: asking for all N costs half
a millisecond, a missing draft would cost tokens.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

MASKING_MODES: Final = ("conf", "confb", "confr")
"""Depth modes that zero the confidences past the cap, so that no row there is ever accepted."""

SHADOW: Final = "shadow"
"""The policy that compares every position (§10)."""


class ScheduleError(ValueError):
    """A dynamic speculation schedule that cannot be meant; the message is one line."""


class Range(NamedTuple):
    """k drafts are verified while `lo`..`hi` requests run, both included."""

    lo: int
    hi: int
    k: int


class Caps(NamedTuple):
    """The caps of §6.3; no ranges: n_out is always 0, and `reason` says why."""

    ranges: tuple[Range, ...]
    reason: str


def caps(
    schedule: Sequence[Sequence[int]] | None,
    depth_policy: str | None,
    has_depth_file: bool,
    policy: str,
    n_out_enabled: bool,
    num_spec: int,
) -> Caps:
    """What n_out may be in this engine; ScheduleError when `schedule` makes no sense.

    `schedule` is `[[lo, hi, k], ...]`; `depth_policy` the text of VLLM_DSPARK_DEPTH_POLICY, whose
    mode is what stands before a colon.
    """
    ranges = () if schedule is None else parse_schedule(schedule, num_spec)
    mode = (depth_policy or "").partition(":")[0]
    if not n_out_enabled:
        return Caps((), "turned off")
    if policy == SHADOW:
        return Caps((), "shadow compares every position")
    if not ranges:
        return Caps((), "no dynamic schedule")
    if mode not in MASKING_MODES:
        return Caps((), f"depth mode {mode or 'unset'} does not mask past the cap")
    if has_depth_file:
        return Caps((), "a depth file could change the mode")
    return Caps(ranges, "")


def n_out(caps: Caps, n_requests: int) -> int:
    """The cap with `n_requests` requests in the step; 0 (all N) where the schedule has none."""
    for lo, hi, k in caps.ranges:
        if lo <= n_requests <= hi:
            return k
    return 0


def parse_schedule(schedule: Any, num_spec: int) -> tuple[Range, ...]:
    """The schedule as ranges in ascending order; ScheduleError names the range at fault."""
    if not isinstance(schedule, list | tuple):
        raise ScheduleError(f"schedule: expected [[lo, hi, k], ...], got {_quote(schedule)}")
    ranges = sorted(_range(item, num_spec) for item in schedule)
    for before, after in pairwise(ranges):
        if after.lo <= before.hi:
            raise ScheduleError(f"schedule: {[*before]} and {[*after]} overlap")
    return tuple(ranges)


def _range(item: Any, num_spec: int) -> Range:
    is_triple = isinstance(item, list | tuple) and len(item) == 3
    if not is_triple or any(type(value) is not int for value in item):
        raise ScheduleError(f"schedule: expected three integers [lo, hi, k], got {_quote(item)}")
    found = Range(*item)
    if not 1 <= found.lo <= found.hi:
        raise ScheduleError(f"schedule: {[*found]}: expected 1 <= lo <= hi")
    if not 0 <= found.k <= num_spec:
        raise ScheduleError(f"schedule: {[*found]}: expected k from 0 to {num_spec}")
    return found


def _quote(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:76]}..."
