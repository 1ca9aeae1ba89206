"""One message, and the answers that the contract allows: most checks are rows of such a table.

Decides how an answer is found among the allowed ones, and that an answer alone is not enough: the
line has to serve on, or be closed, and what was not applied must not show (§9.1, R32).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.conform.line import Answer, Kind, status_name
from dsparkctl.conform.subject import Talk, entry
from dsparkctl.contract.codes import EntryStatus, FrameStatus

CLOSED: Final = "closed"
Outcome = int | str
"""A frame status, or CLOSED."""

N_KEPT: Final = 4
"""Rows that slot 0 holds before each case, and must hold behind it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A message that is sent as it is, in an open session."""

    clause: str
    what: str
    message: Callable[[Talk], bytes]
    """Without its length prefix; it may use up a seq."""
    allowed: Mapping[Outcome, str]
    """What may come: with no text it is the contract's own word, with one the reading taken."""
    applies: Callable[[Talk], bool] = lambda _: True


def is_allowed(case: Clause, allowed: Mapping[Outcome, str], answer: Answer, sent: str) -> Finding:
    """The finding of one answer."""
    outcome: Outcome | None = CLOSED if answer.kind is Kind.CLOSED else answer.status
    if outcome is None or outcome not in allowed:
        wanted = " or ".join(_name(one) for one in allowed)
        return case.judged(f"{answer}; expected {wanted}", sent)
    if reading := allowed[outcome]:
        return case.taken(f"{_name(outcome)}: {reading}", sent)
    return case.judged("", sent, str(answer))


def play(talk: Talk, cases: list[Case]) -> Iterator[Finding]:
    """Each case, and behind it whether the session goes on with what it held."""
    keep(talk)
    for case in cases:
        clause = Clause(case.clause, case.what)
        if not case.applies(talk):
            yield clause.skipped("these terms do not allow it to be sent")
            continue
        answer = talk.line.ask(case.message(talk))
        finding = is_allowed(clause, case.allowed, answer, case.what)
        yield finding
        if answer.kind is not Kind.REPLY:
            return  # the line is of no more use; the caller opens another
        if fault := disturbed(talk):
            yield Clause(f"{case.clause} §9.1", f"nothing is applied: {case.what}").judged(
                fault, case.what
            )
            keep(talk)


def keep(talk: Talk) -> None:
    """Give slot 0 its rows."""
    talk.drafted([entry(0, 0, N_KEPT, req_flags=3)])


def disturbed(talk: Talk) -> str:
    """What has changed of slot 0, or an empty string."""
    (found,) = talk.drafted([entry(0, 0, 0, anchor_pos=N_KEPT)])
    if found.status.status == EntryStatus.OK and found.status.window_rows == min(
        N_KEPT, talk.hello.window
    ):
        return ""
    return f"the slot held {N_KEPT} rows, now {found.status.window_rows}"


def _name(outcome: Outcome) -> str:
    return outcome if isinstance(outcome, str) else status_name(outcome)


MALFORMED: Final[Mapping[Outcome, str]] = {FrameStatus.MALFORMED: ""}
IGNORED: Final[Mapping[Outcome, str]] = {FrameStatus.OK: ""}
