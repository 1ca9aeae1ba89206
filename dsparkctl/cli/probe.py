"""`dsparkctl probe`: PING round trips to a worker (§6.6); its admin listener by itself (R37)."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dsparkctl.cli import render
from dsparkctl.cli.endpoints import (
    ConfigFile,
    TakeOver,
    Target,
    choose_endpoint,
    in_one_line,
    request,
)
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.spread import histogram, summary
from dsparkctl.cli.via import Dial, Via, dialling
from dsparkctl.config import defaults
from dsparkctl.contract.codes import Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import HEADER_BYTES, MAX_MESSAGE_BYTES
from dsparkctl.net.transport import Deadline, Link, TransportError

app = new_app()

_MAX_PAYLOAD_BYTES: Final = MAX_MESSAGE_BYTES - HEADER_BYTES
_GIVE_UP_AFTER: Final = 10
"""Losses in a row after which nobody is waited for any more."""
_AFTER_A_LOSS_S: Final = 0.1
"""Pause before the next connection, so that a worker that starts again is not hammered."""


@dataclass
class Tally:
    """What became of the PINGs so far."""

    rtt_us: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """The reason of each loss."""

    @property
    def n_sent(self) -> int:
        return len(self.rtt_us) + len(self.lost)


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
    measured_from: Annotated[
        str | None,
        typer.Option("--from", metavar="HOST", help="Measure on this host, e.g. a Spark."),
    ] = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line.")] = False,
) -> None:
    """Measure PING round trips to a worker.

    Exit code 0 when all PINGs were answered, 6 when some were lost, 1 when none was answered.
    """
    chosen = choose_endpoint(endpoint, config, take_over=take_over)
    n = count or (1000 if rtt else 4)
    pause_s = interval if interval is not None else 0.0 if rtt else 0.2
    tally = Tally()
    if measured_from is not None and via is not None:
        raise Stop(Exit.USAGE, "--from measures on that host, --via from here: leave one out")
    if measured_from is not None:
        asked = {"count": n, "pause_s": pause_s, "payload": payload, "timeout_s": timeout}
        tally = _from(measured_from, chosen, config, asked)
        _end(chosen, payload, tally, as_json, measured_from)
        return
    try:
        with dialling(via, config, is_named=endpoint is not None) as by:
            with in_one_line():
                first = by(chosen, Deadline(timeout))
            _measure(tally, first, by, n, pause_s, bytes(payload), timeout)
    finally:  # also what was measured before Ctrl-C
        _show(chosen, payload, tally, as_json)
    _refuse_losses(tally)


def _from(host: str, endpoint: Endpoint, config: Path | None, asked: Mapping[str, Any]) -> Tally:
    """The PINGs of another host, over its own links."""
    from dsparkctl.cli.remote import fleet_of, reaching
    from dsparkctl.rollout.probe_from import probe_from

    known = config is not None or defaults.CONFIG.exists()
    with reaching(fleet_of(config) if known else None) as hosts:
        found = probe_from(hosts[host], endpoint, **asked)
    return Tally([float(us) for us in found["rtt_us"]], [str(why) for why in found["lost"]])


def _end(endpoint: Endpoint, payload: int, tally: Tally, as_json: bool, host: str) -> None:
    if not as_json:
        render.note(f"measured on {host}")
    _show(endpoint, payload, tally, as_json)
    _refuse_losses(tally)


def _refuse_losses(tally: Tally) -> None:
    if tally.lost:
        code = Exit.PARTIAL if tally.rtt_us else Exit.FAILED
        raise Stop(code, f"{len(tally.lost)} of {tally.n_sent} PINGs were lost: {tally.lost[-1]}")


def _measure(
    tally: Tally, first: Link, by: Dial, n: int, pause_s: float, payload: bytes, timeout_s: float
) -> None:
    """`n` PINGs, the next connection after every loss; fewer when nobody seems to be there."""
    link: Link | None = first
    n_in_a_row = 0
    try:
        for seq in range(1, n + 1):
            if seq > 1:
                time.sleep(pause_s if not n_in_a_row else max(pause_s, _AFTER_A_LOSS_S))
            try:
                link = link or by(first.endpoint, Deadline(timeout_s))
                started_s = time.perf_counter()
                request(link, Op.PING, payload, timeout_s, seq)
                tally.rtt_us.append((time.perf_counter() - started_s) * 1e6)
                n_in_a_row = 0
            except TransportError as error:
                link = None
                tally.lost.append(str(error))
                n_in_a_row += 1
                if n_in_a_row == _GIVE_UP_AFTER:
                    return
    finally:
        if link is not None:
            link.close()


def _show(endpoint: Endpoint, payload_bytes: int, tally: Tally, as_json: bool) -> None:
    spread = summary(tally.rtt_us)
    if as_json:
        render.json_line(_facts(endpoint, payload_bytes, tally, spread))
        return
    if not spread:
        return
    render.table(
        ("endpoint", "sent", "answered", "loss", *(f"{name} us" for name in spread)),
        [
            (
                str(endpoint),
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
    endpoint: Endpoint, payload_bytes: int, tally: Tally, spread: dict[str, float]
) -> dict[str, Any]:
    return {
        "endpoint": str(endpoint),
        "payload_bytes": payload_bytes,
        "sent": tally.n_sent,
        "answered": len(tally.rtt_us),
        "lost": len(tally.lost),
        "rtt_us": spread,
    }
