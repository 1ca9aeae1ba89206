"""All checks in their order, and what becomes of one that a worker does not survive.

Decides that a check which gets no answer is a FAIL of its own, and that nothing more is asked of a
worker that is gone. Refuses to know how findings are shown.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from dsparkctl.conform.checks import (
    bodies,
    content,
    entries,
    framing,
    fuzz,
    greeting,
    services,
    sessions,
    walk,
)
from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.conform.line import NoAnswer
from dsparkctl.conform.subject import Subject

Check = Callable[[Subject], Iterator[Finding]]


class Part(NamedTuple):
    """Checks that belong together."""

    clause: str
    name: str
    check: Check


def parts(n_rounds: int, n_fuzz: int) -> list[Part]:
    """Everything that is examined, in its order."""
    return [
        Part("§6.2", "HELLO's reply", greeting.reply),
        Part("§6.2", "HELLO, field by field", greeting.fields),
        Part("§6.2", "HELLO's size", greeting.sizes),
        Part("§6.2", "HELLO of noise", greeting.noise),
        Part("§6.2 R6", "max_model_len", greeting.clamp),
        Part("§6.1", "headers", framing.headers),
        Part("§6.1", "echoes", framing.echoes),
        Part("§5", "framing that is lost", framing.lost),
        Part("§5", "messages in pieces", framing.pieces),
        Part("§7.5", "before HELLO", sessions.before_hello),
        Part("§7.5", "sequence numbers", sessions.sequence),
        Part("§6.2", "a new session", sessions.new_session),
        Part("§7.5", "newest wins", sessions.newest_wins),
        Part("§6.3", "STEPs that contradict themselves", bodies.contradictions),
        Part("§6.3", "a reply's echoes", bodies.echoes),
        Part("§6.3", "n_out", bodies.n_out),
        Part("§6.3", "margins", bodies.margins),
        Part("§6.3", "the largest STEP", bodies.widest),
        Part("§7.2", "entries, edge by edge", entries.edges),
        Part("§7.2", "a full window", entries.wide),
        Part("§6.3 R29", "neighbours", entries.neighbours),
        Part("§7.2", "drafts repeat", content.repeats),
        Part("§7.2", "outside the window", content.outside),
        Part("§7.2", "inside the window", content.inside),
        Part("§6.6", "PING", services.ping),
        Part("§6.4", "RESET", services.reset),
        Part("§6.5", "STATS", services.stats),
        Part("§7.2", "random steps", partial(walk.walk, n_rounds=n_rounds)),
        Part("§5", "spoilt messages", partial(fuzz.fuzz, n_inputs=n_fuzz)),
    ]


def examine(on: Subject, *, n_rounds: int, n_fuzz: int) -> Iterator[Finding]:
    """Findings as they come."""
    gone = ""
    for number, part in enumerate(parts(n_rounds, n_fuzz)):
        clause = Clause(part.clause, part.name)
        if gone:
            yield clause.skipped(gone)
            continue
        try:
            yield from part.check(on)
        except NoAnswer as error:
            yield clause.judged(str(error), part.name)
            if number == 0:
                gone = (
                    "nothing can be said of a worker that does not accept these terms: --hello, or "
                    "--checkpoint and --markov, must be what it serves"
                )
            elif not on.is_alive():
                yield Clause("§5", "the worker is there").judged(
                    "it answers no PING any more", f"after: {part.name}"
                )
                gone = f"the worker was gone after: {part.name}"
