"""Looking at a worker again and again, and the three ways of showing it: JSON, lines, a live table.

Decides what a failed look means: the first one ends the command, a later one is said and tried
again, since workers are restarted while someone watches. What the counters mean is `trend`'s.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from dsparkctl.cli.endpoints import in_one_line, request, request_once
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.trend import (
    Reading,
    StatsError,
    parse_stats,
    started_again,
)
from dsparkctl.contract.codes import Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.dial import dial
from dsparkctl.net.transport import Deadline, Link


class Look(NamedTuple):
    """A reading and the one before it, or, in `failure`, why there is no reading."""

    before: Reading | None
    now: Reading | None
    failure: str = ""

    @property
    def started_again(self) -> bool:
        """Whether another worker answers than the last time."""
        return None not in (self.before, self.now) and started_again(*self[:2])  # type: ignore[arg-type]


def look_once(endpoint: Endpoint, timeout_s: float) -> dict[str, Any]:
    """The STATS object; every failure is a Stop."""
    try:
        return parse_stats(request_once(endpoint, Op.STATS, b"", timeout_s))
    except StatsError as error:
        raise Stop(Exit.FAILED, f"{endpoint}: {error}") from None


def looks(endpoint: Endpoint, *, interval_s: float, timeout_s: float) -> Iterator[Look]:
    """A look every `interval_s`, for ever; Stop when already the first one fails."""
    link: Link | None = None
    last: Reading | None = None
    try:
        while True:
            try:
                with in_one_line():
                    link = link or dial(endpoint, Deadline(timeout_s))
                    found = parse_stats(request(link, Op.STATS, b"", timeout_s))
            except (Stop, StatsError) as error:
                if link is not None:
                    link.close()
                    link = None
                reason = str(error) if isinstance(error, Stop) else f"{endpoint}: {error}"
                if last is None:
                    raise Stop(error.code if isinstance(error, Stop) else Exit.FAILED, reason) from None
                yield Look(last, None, reason)
            else:
                now = Reading(found, time.monotonic())
                yield Look(last, now)
                last = now
            time.sleep(interval_s)
    finally:
        if link is not None:
            link.close()
