"""Replies that hold to §6.3 and §7.2 are never refused; a single wrong value always is (v1.4)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkctl.contract.codes import NEED_DRAFT, EntryStatus
from dsparkctl.contract.messages import StepReply
from dsparkctl.contract.records import ReplyHeader, ReqEntry, ReqStatus
from dsparkctl.state.reply import Asked, refusal

NAN, INF = float("nan"), float("inf")
REPLAYABLE = settings(max_examples=150)


class Round(NamedTuple):
    """A STEP and a good reply to it. `consumed` are the positions of the arrays that are read."""

    asked: Asked
    reply: StepReply
    consumed: frozenset[int]


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """Every kind of good answer: drafts whole or up to n_out, appends, errors, short windows."""
    n, window, vocab = draw(st.integers(1, 6)), draw(st.integers(1, 130)), draw(st.integers(1, 300))
    with_margin = draw(st.booleans())
    entries: list[ReqEntry] = []
    statuses: list[ReqStatus] = []
    ids: list[int] = []
    confidence: list[float] = []
    margin: list[float] = []
    consumed: set[int] = set()
    for i in range(draw(st.integers(1, 4))):
        flags = draw(st.integers(0, 7))
        n_out = draw(st.sampled_from([0, 1, n - 1, n, n + 1, 255]))
        anchor_pos = draw(st.one_of(st.integers(0, 140), st.integers(0, (1 << 63) - 1)))
        generation = draw(st.integers(0, 0xFFFFFFFF))
        entries.append(ReqEntry(i, flags, 0, n_out, generation, 0, 0, 1, anchor_pos))
        expected = min(window, anchor_pos)
        status = draw(st.sampled_from(EntryStatus))
        if status is EntryStatus.PARTIAL_WINDOW and expected == 0:
            status = EntryStatus.OK
        rows = draw(st.integers(0, expected))
        if flags & NEED_DRAFT and status is EntryStatus.OK:
            rows = expected
        elif flags & NEED_DRAFT and status is EntryStatus.PARTIAL_WINDOW:
            rows = min(rows, expected - 1)
        statuses.append(ReqStatus(status, rows, generation))
        drafts = flags & NEED_DRAFT and status <= EntryStatus.PARTIAL_WINDOW
        n_consumed = min(n_out or n, n) if drafts else 0
        for j in range(n):
            is_read = j < n_consumed
            consumed |= {i * n + j} if is_read else set()
            ids.append(draw(st.integers(0, vocab - 1)) if is_read else 0)
            confidence.append(draw(st.floats(0.0, 1.0)) if is_read else 0.0)
            margin.append(draw(st.floats(0.0, 1e30)) if is_read else 0.0)
    head = ReplyHeader(9, len(entries), n, int(with_margin), 1, 2, (0, 0))
    reply = StepReply(
        head, statuses, tuple(ids), tuple(confidence), tuple(margin) if with_margin else None
    )
    return Round(Asked(9, entries, n, window, vocab), reply, frozenset(consumed))


@REPLAYABLE
@given(rounds())
def test_a_good_reply_is_never_refused(good: Round) -> None:
    """§6.3."""
    assert refusal(good.reply, good.asked) == ""


@REPLAYABLE
@given(rounds(), st.data())
def test_one_wrong_echo_is_refused(good: Round, data: st.DataObject) -> None:
    """§6.3: step_id, n_req, num_spec."""
    field = data.draw(st.sampled_from(["step_id", "n_req", "num_spec"]))
    other: dict[str, Any] = {
        field: getattr(good.reply.head, field) + data.draw(st.sampled_from([-1, 1]))
    }
    reply = good.reply._replace(head=good.reply.head._replace(**other))
    assert field in refusal(reply, good.asked)


def wrong_statuses(asked: Asked, entry: ReqEntry, status: ReqStatus) -> list[ReqStatus]:
    """Every way in which one ReqStatus alone can break §6.3."""
    expected = min(asked.window, entry.anchor_pos)
    wrong = [
        status._replace(generation=status.generation ^ 1),
        status._replace(generation=status.generation ^ 0x80000000),
        status._replace(status=5),
        status._replace(status=0xFFFF),
        status._replace(window_rows=expected + 1),
        status._replace(window_rows=0xFFFF),
    ]
    if entry.req_flags & NEED_DRAFT:
        wrong.append(ReqStatus(EntryStatus.PARTIAL_WINDOW, expected, status.generation))
        if expected:
            wrong.append(ReqStatus(EntryStatus.OK, expected - 1, status.generation))
            wrong.append(ReqStatus(EntryStatus.OK, 0, status.generation))
    return wrong


@REPLAYABLE
@given(rounds(), st.data())
def test_one_wrong_status_is_refused(good: Round, data: st.DataObject) -> None:
    """§6.3: codes, generations, and window_rows against the status."""
    i = data.draw(st.integers(0, len(good.asked.entries) - 1))
    statuses = [*good.reply.statuses]
    wrong = wrong_statuses(good.asked, good.asked.entries[i], statuses[i])
    statuses[i] = data.draw(st.sampled_from(wrong))
    assert f"entry {i}" in refusal(good.reply._replace(statuses=statuses), good.asked)


WRONG: dict[str, Callable[[Asked, bool], list[Any]]] = {
    "draft_ids": lambda asked, is_read: (
        [-1, asked.vocab_size, 0x7FFFFFFF, -0x80000000] if is_read else [1, -1]
    ),
    "confidence": lambda asked, is_read: (
        [-1e-9, 1.0 + 1e-9, NAN, INF, -INF] if is_read else [1e-30, 1.0, NAN]
    ),
    "margin": lambda asked, is_read: [-1e-9, NAN, INF, -INF] if is_read else [1e-30, -1.0, NAN],
}


@REPLAYABLE
@given(rounds(), st.data())
def test_one_wrong_value_is_refused_wherever_it_stands(good: Round, data: st.DataObject) -> None:
    """§6.3: at consumed positions and at all others."""
    names = [name for name in WRONG if getattr(good.reply, name) is not None]
    name = data.draw(st.sampled_from(names))
    values = [*getattr(good.reply, name)]
    at = data.draw(st.integers(0, len(values) - 1))
    values[at] = data.draw(st.sampled_from(WRONG[name](good.asked, at in good.consumed)))
    changed: dict[str, Any] = {name: tuple(values)}
    i, j = divmod(at, good.asked.num_spec)
    assert f"entry {i}, position {j}" in refusal(good.reply._replace(**changed), good.asked)
