"""The exit codes of every command of this distribution."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    """Wrong usage, configuration or input file."""
    PREFLIGHT = 3
    SSH = 4
    """SSH, its authentication or a host key."""
    DRIFT = 5
    """Drift or changes were found."""
    PARTIAL = 6
    LOCKED = 7
    ROLLED_BACK = 8
    """A gate failed and everything was rolled back."""
    ROLLBACK_FAILED = 9
    MISMATCH = 10
    """Another identity or another contract than expected."""
    INTERRUPTED = 130
