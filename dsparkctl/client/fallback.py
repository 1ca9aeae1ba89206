"""What a round came to, as both ranks learn it: drafted, or why not (§4.1, §10).

Decides names and numbers of the status word. Refuses to know what is done instead: that is the
policy's business.
"""

from enum import IntEnum


class Outcome(IntEnum):
    """The status word of the broadcast. All but DRAFTED and APPENDED are counted as fallbacks."""

    DRAFTED = 0
    """The reply was accepted and holds drafts for at least one request."""
    APPENDED = 1
    """The reply was accepted; no request needed drafts."""

    # Nothing was sent: neutral for the breaker (§10, v1.8).
    DISABLED = 2
    """For good: identity, configuration or version differ (§9.1)."""
    SWITCHED_OFF = 3
    COOLDOWN = 4
    NO_CONNECTION = 5
    NEWER_CONNECTION = 6
    """The connection is not the one that the round's entries were built for."""

    # A STEP was sent: a failed attempt.
    TIMEOUT = 7
    TRANSPORT = 8
    BAD_REPLY = 9
    FRAME_ERROR = 10
    ENTRY_ERRORS = 11
    """Every request that needed drafts got an error of its own (§9.2)."""

    OWN_FAULT = 12
    """A fault of rank 0's own, survived: a round without drafts, and a failed attempt."""

    RAISED = 13
    """`VLLM_DSPARK_REMOTE_ON_FAIL=raise`, or a fault nobody survives: every rank ends here."""

    @property
    def counter(self) -> str:
        """The key of the counter that this outcome moves by one."""
        return _COUNTERS[self]


_COUNTERS = {
    outcome: outcome.name.lower()
    if outcome <= Outcome.APPENDED
    else f"fallback_{outcome.name.lower()}"
    for outcome in Outcome
}
