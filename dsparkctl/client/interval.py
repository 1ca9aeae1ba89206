"""What rank 0 tells between rounds, once an interval: a log line, the metrics file.

Decides when. Refuses to know what is told (`counters`, `shadow`, `exposition`). A file that cannot
be written is said once and tried again: no figure is worth a round.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsparkctl.client.exposition import exposition, log_line, write_metrics
from dsparkctl.client.recording import Keeper
from dsparkctl.client.rounds import Rounds
from dsparkctl.client.shadow import ShadowReport
from dsparkctl.config.errors import WriteError
from dsparkctl.state.breaker import State

log = logging.getLogger(__name__)


class Interval:
    """Looks at the clock after every round. `every_s` 0: never tells anything."""

    def __init__(
        self,
        rounds: Rounds,
        shadow: ShadowReport | None,
        *,
        every_s: float,
        metrics_file: Path | None,
        clock: Callable[[], float],
        keeper: Keeper | None = None,
    ) -> None:
        self._rounds = rounds
        self._keeper = keeper
        self._shadow = shadow
        self._every_s = every_s
        self._metrics_file = metrics_file
        self._clock = clock
        self._next_at_s = clock() + every_s
        self._trouble = ""

    def snapshot(self) -> dict[str, Any]:
        """Every counter, and how things stand now."""
        rounds = self._rounds
        found = {
            **rounds.counters.snapshot(),
            "connected": rounds.link.is_connected,
            "disabled": bool(rounds.link.disabled),
            "breaker_open": rounds.breaker.state is not State.CLOSED,
            "connections": rounds.link.n_connections,
            "step_id": rounds.step_id,
            "last_error": rounds.link.disabled or rounds.link.last_error,
        }
        if self._shadow is not None:
            found["shadow"] = self._shadow.snapshot()
        return found

    def look(self) -> None:
        """Tell what there is to tell, if it is time; keep a recording of what went wrong."""
        if self._keeper is not None:
            self._keeper.look(self._rounds.counters, self._rounds.breaker)
        now_s = self._clock()
        if not self._every_s or now_s < self._next_at_s:
            return
        self._next_at_s = now_s + self._every_s
        found = self.snapshot()
        log.info("%s", log_line(found))
        if self._shadow is not None:
            log.info("%s", self._shadow.log_line())
        if self._metrics_file is not None:
            self._write(self._metrics_file, exposition(found))

    def _write(self, path: Path, text: str) -> None:
        try:
            write_metrics(path, text)
        except WriteError as error:
            if str(error) != self._trouble:
                log.warning("%s", error)
            self._trouble = str(error)
        else:
            self._trouble = ""
