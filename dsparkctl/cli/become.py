"""How a command becomes the worker's program: the operator's side never imports torch."""

import os
import sys
from typing import NoReturn


def become(verb: str, *args: str) -> NoReturn:
    """Replace this process: signals, streams and the exit code are then the worker's own.

    `-P` keeps the folder we are called from out of its import path.
    """
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "dspark_worker", verb, *args]
    os.execv(sys.executable, command)
