"""How a command of the CLI ends early: an exit code, and the one line that says why."""

from dsparkctl.exits import Exit as Exit


class Stop(Exception):  # noqa: N818 -- it is raised as a verdict: raise Stop(Exit.USAGE, "...")
    """Ends the command with `code`; `reason` is one line: what, where, what to do."""

    def __init__(self, code: Exit, reason: str) -> None:
        super().__init__(reason)
        self.code = code
