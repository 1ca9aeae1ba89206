"""`dsparkctl record`: what a flight recorder kept, as a timeline; played again; compared."""

import contextlib
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from dsparkctl.cli import render
from dsparkctl.cli.asking import ask
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.conform.line import Line, NoAnswer, op_name, status_name
from dsparkctl.conform.replaying import (
    Compared,
    Exchanged,
    differences,
    exchanges,
    replay,
    step_reply,
)
from dsparkctl.conform.stream import open_stream
from dsparkctl.contract.endpoint import EndpointError, parse_endpoint
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.messages import parse_header
from dsparkctl.net.flight.pcapng import FlightError, Packet, read
from dsparkctl.net.flight.recorder import NEWEST, OLDER

app = new_app("Show, replay and compare what a flight recorder kept.")

Recording = Annotated[
    Path, typer.Argument(metavar="FILE|DIR", help="A recording, or the recorder's folder.")
]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON object on one line (show: a line each).")
]
_MAX_TOLD = 20


@app.command()
def show(
    recording: Recording,
    last: Annotated[int, typer.Option("-n", metavar="N", min=1, help="The last so many.")] = 100,
    as_json: Json = False,
) -> None:
    """Print a timeline: when, what was asked, what came, after how long."""
    rows = [_row(one) for one in exchanges(_packets(recording))][-last:]
    if as_json:
        for row in rows:
            render.json_line(row)
    elif rows:
        render.table(tuple(rows[0]), [tuple(map(str, row.values())) for row in rows])
    else:
        render.note(f"{recording}: nothing is recorded")


@app.command("replay")
def replay_command(
    recording: Recording,
    endpoint: Annotated[str, typer.Option(metavar="URL", help="A worker's data listener.")],
    yes: Annotated[bool, typer.Option("--yes", help="It serves no engine: do not ask.")] = False,
    timeout: Annotated[float, typer.Option(metavar="S", min=0.05, max=600)] = 10.0,
    as_json: Json = False,
) -> None:
    """Send a recording with rows to a worker and compare its drafts; exit code 5 when any differ.

    What was drafted before the ring begins is not in it, so windows fill up first: entries whose
    window is not as full as it was are left out, and counted.
    """
    try:
        place = parse_endpoint(endpoint)
    except EndpointError as error:
        raise Stop(Exit.USAGE, str(error)) from None
    if not yes:
        ask(f"An engine that drafts on {place} loses its connection. Go on?", "nothing was sent")
    found = exchanges(_packets(recording))
    try:
        with contextlib.closing(Line(partial(open_stream, place), timeout)) as line:
            told = list(replay(line, found, random.SystemRandom().randrange(1, 2**32)))
    except NoAnswer as error:
        raise Stop(Exit.FAILED, f"{place}: {error}") from None
    _compare(told, as_json=as_json)


@app.command()
def diff(first: Recording, second: Recording, as_json: Json = False) -> None:
    """Compare two recordings' replies, STEP by STEP of one engine (by step_id); exit code 5 when
    any differ."""
    told = list(differences(exchanges(_packets(first)), exchanges(_packets(second))))
    if not told:
        raise Stop(Exit.FAILED, "no STEP is in both recordings with its reply")
    _compare(told, as_json=as_json)


def _compare(told: list[Compared], *, as_json: bool) -> None:
    other = [one for one in told if one.is_comparable and not one.is_same]
    left_out = sum(not one.is_comparable for one in told)
    same = sum(one.is_same for one in told)
    counts = {"same": same, "other": len(other), "not_comparable": left_out}
    if as_json:
        rows = [one._asdict() for one in other]
        render.json_line({**counts, "differences": rows})
    else:
        for one in other[:_MAX_TOLD]:
            render.data(f"step {one.step_id}, entry {one.entry}: {one.said}")
        render.data(f"{same} entries the same, {len(other)} other, {left_out} not comparable")
    if other:
        raise Stop(Exit.DRIFT, f"{len(other)} entries were answered otherwise")
    if not same:
        raise Stop(Exit.FAILED, "nothing could be compared")


def _packets(recording: Path) -> Iterator[Packet]:
    """Of a file, or of a folder's ring in its order."""
    paths: Iterable[Path] = [recording]
    if recording.is_dir():
        paths = [path for name in (OLDER, NEWEST) if (path := recording / name).exists()]
        if not paths:
            raise Stop(Exit.USAGE, f"{recording}: no {NEWEST} in it; name a kept-….pcapng")
    for path in paths:
        try:
            yield from read(path)
        except FlightError as error:
            raise Stop(Exit.USAGE, str(error)) from None


def _row(one: Exchanged) -> dict[str, Any]:
    """One exchange of a timeline."""
    header, reply = one.header, step_reply(one.reply)
    at = datetime.fromtimestamp(one.request.time_ns / 1e9, UTC)
    took = "" if one.reply is None else f"{(one.reply.time_ns - one.request.time_ns) / 1e6:.2f}"
    return {
        "utc": at.strftime("%H:%M:%S.%f"),
        "op": op_name(header.op) if header else "?",
        "seq": header.seq if header else "",
        "bytes": one.request.n_bytes,
        "ms": took,
        "status": _status(one),
        "entries": " ".join(f"{s.status}/{s.window_rows}" for s in reply.statuses) if reply else "",
        "said": one.remark or one.request.comment,
    }


def _status(one: Exchanged) -> str:
    if one.reply is None:
        return "-"
    try:
        return status_name(parse_header(one.reply.data, one.reply.n_bytes).status)
    except WireError as error:
        return f"no message: {error}"[:60]
