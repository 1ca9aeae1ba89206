"""The kill switch: while a file exists, rank 0 sends nothing (R40's `SWITCH_FILE`).

Decides when to look and what a look means. Refuses to know what being off leads to (a neutral
round, dirty slots), and the clock: `now` is an argument.

A look that fails says nothing about the file, so the last answer stands: whoever had switched
drafting off has not switched it on again by taking a folder's permissions away, and a folder that
was never readable has not switched anything off. `trouble` then tells why, for the log.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

LOOK_EVERY_S: Final = 1.0


def is_there(path: Path) -> bool:
    """Whether the path names anything, a dangling link included; OSError when nobody can say."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


class Switch:
    """Off while `path` exists; without a path, never off."""

    def __init__(self, path: Path | None, exists: Callable[[Path], bool] = is_there) -> None:
        self.trouble = ""
        """Why the last look failed; empty when it did not."""
        self._path = path
        self._exists = exists
        self._is_off = False
        self._next_look_at_s = float("-inf")

    def is_off(self, now: float) -> bool:
        """Looks at most once a second. `now` is in seconds on a clock that never goes back."""
        if self._path is not None and now >= self._next_look_at_s:
            self._next_look_at_s = now + LOOK_EVERY_S
            try:
                self._is_off = self._exists(self._path)
            except OSError as error:
                self.trouble = f"{self._path}: cannot be looked at: {error.strerror or error}"
            else:
                self.trouble = ""
        return self._is_off
