"""What can be wrong with a file that a person wrote or named; light, so that the CLI can ask."""

from dataclasses import dataclass
from pathlib import Path


class FileError(Exception):
    """A file that a person named; the message is one line and names it."""


class ReadError(FileError):
    """It cannot be read, or is larger than such a file may be."""


class WriteError(FileError):
    """It could not be written; what stood there before stands there still."""


class InTheWay(WriteError):  # noqa: N818 -- what is found
    """Something stands there that nobody said to replace, or that must not be."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a configuration file."""

    path: Path
    line: int
    key: str
    """Dotted, e.g. `worker.admin[1]`; empty when the file itself is at fault."""
    reason: str

    def __str__(self) -> str:
        return ": ".join(
            part for part in (f"{self.path}:{self.line}", self.key, self.reason) if part
        )


class ConfigError(Exception):
    """A configuration file that cannot be used; the message has a line a problem."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
