"""Looking at a worker again and again, and the three ways of showing it: JSON, lines, a live table.

Decides what a failed look means: the first one ends the command, a later one is said and tried
again, since workers are restarted while someone watches. What the counters mean is `trend`'s.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dsparkctl.cli import render
from dsparkctl.cli.alarms import SPAN_S, alarms
from dsparkctl.cli.endpoints import in_one_line
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.reach import Reach
from dsparkctl.cli.trend import (
    Reading,
    StatsError,
    one_line,
    parse_stats,
    rates,
    started_again,
    table_rows,
)
from dsparkctl.contract.codes import Op
from dsparkctl.net.ping import request
from dsparkctl.net.transport import Deadline, Link
from dsparkctl.state.backoff import RESTED

_AGAIN = "the worker started again"
_KEPT = 1300
"""A minute's readings, at 20 a second."""


class Look(NamedTuple):
    """One look: a reading and the one before it, or, in `failure`, why there is no reading."""

    before: Reading | None
    now: Reading | None
    failure: str = ""
    alarms: tuple[str, ...] = ()
    """What is wrong by the last minute's readings."""

    @property
    def started_again(self) -> bool:
        """Whether another worker answers than the last time."""
        if self.before is None or self.now is None:
            return False
        return started_again(self.before, self.now)


class _Read(NamedTuple):
    """A look that brought a reading."""

    before: Reading | None
    now: Reading
    started_again: bool
    alarms: tuple[str, ...]


def look_once(reach: Reach, timeout_s: float) -> dict[str, Any]:
    """The STATS object; every failure is a Stop."""
    link = _dial(reach, timeout_s)
    with closing(link):
        return _stats(link, timeout_s)


def looks(reach: Reach, *, interval_s: float, timeout_s: float) -> Iterator[Look]:
    """A look every `interval_s`, for ever; Stop when already the first one fails.

    While SSH is what fails, the pauses grow: its server counts who knocks too often.
    """
    backoff = RESTED
    link: Link | None = None
    last: Reading | None = None
    kept: deque[Reading] = deque(maxlen=_KEPT)
    try:
        while True:
            try:
                link = link or _dial(reach, timeout_s)
                now = Reading(_stats(link, timeout_s), time.monotonic())
            except Stop as error:
                if last is None:
                    raise
                if link is not None:
                    link.close()
                    link = None
                backoff = backoff.failed(0.0) if error.code == Exit.SSH else RESTED
                yield Look(last, None, str(error))
            else:
                backoff = RESTED
                kept.append(now)
                while now.at_s - kept[0].at_s > SPAN_S:
                    kept.popleft()
                yield Look(last, now, "", tuple(alarms([*kept])))
                last = now
            time.sleep(max(interval_s, backoff.next_at_s))
    finally:
        if link is not None:
            link.close()


def _dial(reach: Reach, timeout_s: float) -> Link:
    with in_one_line():
        return reach.dial(Deadline(timeout_s))


def _stats(link: Link, timeout_s: float) -> dict[str, Any]:
    with in_one_line():
        body = request(link, Op.STATS, b"", timeout_s)
    try:
        return parse_stats(body)
    except StatsError as error:
        raise Stop(Exit.FAILED, f"{link.endpoint}: {error}") from None


# --- showing --------------------------------------------------------------------------------------


def show_json(reach: Reach, found: Iterable[Look]) -> None:
    """An object a reading on stdout: the STATS keys, `time`, `rates`, `started_again` and
    `alarms`."""
    for look in _readings(reach, found):
        ours = {"rates": rates(look.before, look.now), "started_again": look.started_again}
        render.json_line({"time": _utc(), **look.now.stats, **ours, "alarms": [*look.alarms]})


def show_lines(reach: Reach, found: Iterable[Look]) -> None:
    """A line a reading on stdout, for a log; an alarm on stderr when it begins."""
    raised: frozenset[str] = frozenset()
    for look in _readings(reach, found):
        render.data(f"{_utc()} {one_line(look.before, look.now)}")
        for alarm in look.alarms:
            if _kind(alarm) not in raised:
                render.note(f"{_utc()} ALARM {reach}: {alarm}")
        raised = frozenset(map(_kind, look.alarms))


def _kind(alarm: str) -> str:
    """An alarm without its numbers, which move."""
    return "".join(c for c in alarm if not c.isdigit())


def _readings(reach: Reach, found: Iterable[Look]) -> Iterator[_Read]:
    """The looks that brought a reading; an outage is said on stderr when it begins and ends."""
    is_failing = False
    for look in found:
        if look.now is None:
            if not is_failing:
                render.note(f"{_utc()} {look.failure}; trying again")
            is_failing = True
            continue
        if look.started_again or is_failing:
            said = _AGAIN if look.started_again else "the worker answers again"
            render.note(f"{_utc()} {reach}: {said}")
        is_failing = False
        yield _Read(look.before, look.now, look.started_again, look.alarms)


def show_live(reach: Reach, found: Iterable[Look]) -> None:
    """A table that stays in place."""
    from dsparkctl.cli.live import live_table  # rich is slow to load, and only this needs it

    rows: list[tuple[str, str, str]] = []
    raised: tuple[str, ...] = ()
    remark = ""
    with live_table() as show:
        for look in found:
            if look.started_again:
                remark = f"{_AGAIN} at {_utc()}"
            if look.now is not None:
                rows, raised = table_rows(look.before, look.now), look.alarms
            said = f"{look.failure}; trying again" if look.failure else remark
            said = "\n".join([*(f"ALARM {alarm}" for alarm in raised), *([said] if said else [])])
            show(f"{reach}  {_utc()}", rows, said)


def _utc() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
