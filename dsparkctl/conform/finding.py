"""What one check found out, as a value: how it came out, of which clause, what was sent and seen.

Decides what the four levels mean. A FAIL is a clause that does not hold, and also a hang, a drop or
a silence where an answer is due. An INFO is a choice that the contract leaves: which one was taken.
"""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a check came out."""

    PASS = "PASS"
    FAIL = "FAIL"
    INFO = "INFO"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report."""

    level: Level
    clause: str
    """§ of the contract, and the reading: "§7.5 R2"."""
    what: str
    """What has to hold, as a sentence."""
    sent: str = ""
    came: str = ""
    """What came back; for an INFO the reading that was taken, for a SKIP the reason."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause that is about to be examined; makes its finding."""

    clause: str
    what: str

    def judged(self, fault: str, sent: str, came: str = "") -> Finding:
        """PASS when there is no fault; else FAIL with it."""
        level = Level.FAIL if fault else Level.PASS
        return Finding(level, self.clause, self.what, sent, fault or came)

    def taken(self, reading: str, sent: str) -> Finding:
        """One of several ways that the contract allows."""
        return Finding(Level.INFO, self.clause, self.what, sent, reading)

    def skipped(self, reason: str) -> Finding:
        return Finding(Level.SKIP, self.clause, self.what, "", reason)
