"""`dsparkctl probe`: PING round trips to a worker (§6.6); its admin listener by itself (R37)."""

import sys
from contextlib import closing
from typing import Annotated, Any, Final

import typer

from dsparkctl.cli import render
from dsparkctl.cli.endpoints import ConfigFile, TakeOver, Target, in_one_line
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.reach import From, Reach, Via, find
from dsparkctl.cli.spread import histogram, summary
from dsparkctl.contract.framing import HEADER_BYTES, MAX_MESSAGE_BYTES
from dsparkctl.net.ping import Course, Tally

app = new_app()

_MAX_PAYLOAD_BYTES: Final = MAX_MESSAGE_BYTES - HEADER_BYTES


@app.command()
def probe(
    endpoint: Target = None,
    rtt: Annotated[
        bool, typer.Option("--rtt", help="Measure: 1000 PINGs, one right behind the other.")
    ] = False,
    count: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=1_000_000, help="PINGs (default: 4).")
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(metavar="S", min=0, max=3600, help="Seconds between PINGs (default: 0.2)."),
    ] = None,
    payload: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            min=0,
            max=_MAX_PAYLOAD_BYTES,
            help="Zeros behind the PING, which the worker ignores (R13).",
        ),
    ] = 0,
    timeout: Annotated[
        float, typer.Option(metavar="S", min=0.001, max=3600, help="To wait for one answer.")
    ] = 1.0,
    take_over: TakeOver = False,
    via: Via = None,
    origin: From = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line.")] = False,
) -> None:
    """Measure PING round trips to a worker.

    Exit code 0 when all PINGs were answered, 6 when some were lost, 1 when none was answered.
    """
    reach = find(endpoint, config, take_over=take_over, via=via, origin=origin)
    pause_s = interval if interval is not None else 0.0 if rtt else 0.2
    course = Course(count or (1000 if rtt else 4), pause_s, payload, timeout)
    tally = Tally()
    try:
        with in_one_line(), closing(reach):
            reach.measure(course, tally)
    finally:  # also what was measured before Ctrl-C
        _show(reach, payload, tally, as_json)
    if tally.lost:
        code = Exit.PARTIAL if tally.rtt_us else Exit.FAILED
        raise Stop(code, f"{len(tally.lost)} of {tally.n_sent} PINGs were lost: {tally.lost[-1]}")


def _show(reach: Reach, payload_bytes: int, tally: Tally, as_json: bool) -> None:
    spread = summary(tally.rtt_us)
    if as_json:
        render.json_line(_facts(reach, payload_bytes, tally, spread))
        return
    if not spread:
        return
    render.table(
        ("endpoint", "sent", "answered", "loss", *(f"{name} us" for name in spread)),
        [
            (
                str(reach),
                tally.n_sent,
                len(tally.rtt_us),
                f"{len(tally.lost) / tally.n_sent:.1%}",
                *spread.values(),
            )
        ],
    )
    if sys.stdout.isatty() and len(tally.rtt_us) > 1:
        for line in histogram(tally.rtt_us):
            render.data(line)


def _facts(
    reach: Reach, payload_bytes: int, tally: Tally, spread: dict[str, float]
) -> dict[str, Any]:
    return {
        **reach.facts(),
        "payload_bytes": payload_bytes,
        "sent": tally.n_sent,
        "answered": len(tally.rtt_us),
        "lost": len(tally.lost),
        "rtt_us": spread,
    }
