"""What the codec costs per message, in µs of CPU time: `python benchmarks/codec.py`.

Measures building and parsing with all checks, as both sides do in every engine round; the rows
are a view and cost nothing. Each number is the least of many repeats, and the bars are those of
the project's first issue. Nothing fails here: a busy machine is slower than its least.
"""

from time import process_time
from timeit import Timer
from typing import Any, NamedTuple

from dsparkctl.contract.codes import HAS_MARGIN, NEED_DRAFT
from dsparkctl.contract.messages import (
    Limits,
    parse_header,
    parse_step,
    parse_step_reply,
    step_head,
    step_reply_frame,
)
from dsparkctl.contract.records import ReplyHeader, ReqEntry, ReqStatus
from dsparkctl.state.reply import Asked, refusal

N_REPEATS = 60
N_RUNS = 2_000

ROW_BYTES = 30_720
NUM_SPEC = 5


class Line(NamedTuple):
    """One measurement: a statement, and its bar in µs, or None where there is none."""

    what: str
    bar_us: float | None
    statement: str


def cpu_us(statement: str, names: dict[str, Any]) -> float:
    """The least CPU time of the statement, over repeats of many runs each."""
    timer = Timer(statement, globals=names, timer=process_time)
    return min(timer.repeat(N_REPEATS, N_RUNS)) / N_RUNS * 1e6


def decode_round(n_req: int) -> dict[str, Any]:
    """The names that statements use: a round of `n_req` requests, six rows each."""
    entries = [ReqEntry(i, NEED_DRAFT, 5, 0, 7, 1000, 6, 42, 1006) for i in range(n_req)]
    step: dict[str, Any] = {
        "seq": 5,
        "session": 9,
        "step_id": 9,
        "step_flags": 1,
        "row_bytes": ROW_BYTES,
        "entries": entries,
    }
    n = n_req * NUM_SPEC
    answer: dict[str, Any] = {
        "seq": 5,
        "session": 9,
        "head": ReplyHeader(9, n_req, NUM_SPEC, HAS_MARGIN, 1500, 1600, (0, 0)),
        "statuses": [ReqStatus(0, 128, 7)] * n_req,
        "draft_ids": [42] * n,
        "confidence": [0.5] * n,
        "margin": [0.5] * n,
    }
    message = memoryview(step_head(**step) + bytes(6 * n_req * ROW_BYTES))
    reply_body = memoryview(step_reply_frame(**answer))[32:]
    called = (parse_header, parse_step, parse_step_reply, refusal, step_head, step_reply_frame)
    return {
        **{function.__name__: function for function in called},
        "limits": Limits(max_slots=4, max_rows_per_step=512, row_bytes=ROW_BYTES),
        "step": step,
        "message": message,
        "body": message[32:],
        "answer": answer,
        "reply_body": reply_body,
        "reply": parse_step_reply(reply_body),
        "asked": Asked(9, entries, NUM_SPEC, 128, 129_280),
    }


def lines(build_bar_us: float, parse_bar_us: float) -> list[Line]:
    return [
        Line("build STEP head", build_bar_us, "step_head(**step)"),
        Line("parse STEP, all checks", parse_bar_us, "parse_step(body, limits)"),
        Line("parse AppHeader", None, "parse_header(message)"),
        Line("build STEP reply", None, "step_reply_frame(**answer)"),
        Line("parse STEP reply", None, "parse_step_reply(reply_body)"),
        Line("judge STEP reply", None, "refusal(reply, asked)"),
    ]


def main() -> None:
    print(f"{'':<24}{'requests':>10}{'µs CPU':>10}{'bar':>8}")
    for n_req, bars in ((1, (1.5, 2.0)), (4, (2.5, 3.0))):
        names = decode_round(n_req)
        for line in lines(*bars):
            bar = "" if line.bar_us is None else f"{line.bar_us:.1f}"
            spent_us = cpu_us(line.statement, names)
            print(f"{line.what:<24}{n_req:>10}{spent_us:>10.2f}{bar:>8}")


if __name__ == "__main__":
    main()
