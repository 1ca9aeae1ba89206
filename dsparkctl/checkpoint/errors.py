"""The one exception of a checkpoint that cannot be used.

Its message is one line a person can act on: which file, which key or tensor, what is wrong with it.
"""

from pathlib import Path


class CheckpointError(Exception):
    """A file of the checkpoint is missing, damaged, or says something this build cannot serve."""


def wrong(file: Path | str, what: str, *, at: str | None = None) -> CheckpointError:
    """`FILE: AT: WHAT` on one line; `at` is a config key or a tensor's name."""
    parts = [str(file), what] if at is None else [str(file), at, what]
    return CheckpointError(" ".join(": ".join(parts).split()))
