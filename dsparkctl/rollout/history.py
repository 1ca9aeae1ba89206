"""What was done to a host, by whom, with what result: one JSON line an act, kept on the host.

Decides the keys. Lines are appended and never changed.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dsparkctl.rollout.host import Host
from dsparkctl.rollout.layout import Layout

_APPEND: Final = ("sh", "-c", 'cat >> "$1"; sync -- "$1"', "append")
MAX_LINES: Final = 10_000


def append(host: Host, layout: Layout, entry: Mapping[str, Any]) -> None:
    """Add a line, with the time in UTC in front."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = json.dumps({"utc": stamp, **entry}) + "\n"
    host.check((*_APPEND, str(layout.history)), stdin=line.encode(), as_root=True)


def read(host: Host, layout: Layout, n_lines: int) -> list[dict[str, Any]]:
    """The last lines, oldest first; lines that are none are left out."""
    script = 'if [ -e "$1" ]; then tail -n "$2" -- "$1"; fi'
    argv = ("sh", "-c", script, "read", str(layout.history), str(min(n_lines, MAX_LINES)))
    found = []
    for line in host.check(argv, as_root=True).stdout.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
