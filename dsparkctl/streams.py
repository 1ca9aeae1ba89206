"""The standard streams of a process whose starter closed some of them."""

import os
import sys
from pathlib import Path


def open_missing() -> None:
    """A stream that was closed before we started (`>&-`) leads nowhere, and is one again.

    Each opening takes the lowest number that is free: the stream's own, not left to a socket.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 -- it stays open
