"""How the worker logs: to stderr, text or one JSON object a line, never a flood.

Decides form and rate. What repeats (an engine whose every round is refused) is said once in a
while, with the count of what was left out: the log never grows with the rounds.
"""

import json
import logging
import select
import sys
import time
from typing import TextIO

_REPEAT_S = 10.0


class Sparse(logging.Filter):
    """Lets each message template pass once per `_REPEAT_S`; the next one says how many it ate."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        passed_at, n_eaten = self._seen.get(record.msg, (-_REPEAT_S, 0))
        # A clock that was set back must not silence anybody.
        is_repeat = 0 <= record.created - passed_at < _REPEAT_S
        if record.levelno < logging.INFO or not is_repeat:
            self._seen[record.msg] = (record.created, 0)
            if n_eaten:
                record.msg = f"{record.msg} (and {n_eaten} more like it)"
            return True
        self._seen[record.msg] = (passed_at, n_eaten + 1)
        return False


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message and, where there is one, trace."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class Unhindered(logging.StreamHandler[TextIO]):
    """Drops what the stream would not take now: a pipe that nobody reads must not stop rounds."""

    def emit(self, record: logging.LogRecord) -> None:
        if select.select((), (self.stream,), (), 0)[1]:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- logging's name
        """The reader is gone: there is nobody to tell."""


def configure(*, as_json: bool) -> None:
    """Send the process's log to stderr: what the worker does, and what others warn of.

    torch tells of caches of its own, at INFO, when a process ends.
    """
    handler = Unhindered(sys.stderr)
    handler.addFilter(Sparse())
    if as_json:
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for ours in ("dspark_worker", "dsparkctl"):
        logging.getLogger(ours).setLevel(logging.INFO)
