"""`dsparkctl stats`: a worker's counters once, or again and again (§6.5, R35)."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from dsparkctl.cli import render
from dsparkctl.cli.alarms import differences
from dsparkctl.cli.endpoints import ConfigFile, TakeOver, Target
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.reach import Via, find
from dsparkctl.cli.trend import StatsError, parse_stats, value_text
from dsparkctl.cli.watching import look_once, looks, show_json, show_lines, show_live
from dsparkctl.config.files import read_whole

app = new_app()

MAX_BASELINE_BYTES = 1 << 20


@app.command()
def stats(
    endpoint: Target = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="S", min=0.05, max=3600, help="Seconds between two looks.")
    ] = 1.0,
    timeout: Annotated[
        float, typer.Option(metavar="S", min=0.001, max=3600, help="To wait for one answer.")
    ] = 5.0,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with stats --json of a good time; exit code 5."),
    ] = None,
    take_over: TakeOver = False,
    via: Via = None,
    config: ConfigFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on one line (--watch: a line a look).")
    ] = False,
) -> None:
    """Show a worker's counters; --watch follows them, through a restart too, until Ctrl-C."""
    with closing(find(endpoint, config, take_over=take_over, via=via)) as reach:
        if watch:
            show = show_json if as_json else show_live if sys.stdout.isatty() else show_lines
            show(reach, looks(reach, interval_s=interval, timeout_s=timeout))
            return
        found = look_once(reach, timeout)
    if baseline is not None:
        _compare(baseline, found, as_json=as_json)
    elif as_json:
        render.json_line(found)
    else:
        render.fields({name: value_text(value) for name, value in found.items()})


def _compare(path: Path, found: dict[str, Any], *, as_json: bool) -> None:
    """Stop with DRIFT where something is other, slower or worse than it was."""
    try:
        good = parse_stats(read_whole(path, max_bytes=MAX_BASELINE_BYTES))
    except StatsError:
        raise Stop(Exit.USAGE, f"{path}: expected what stats --json prints") from None
    rows = differences(good, found)
    if as_json:
        names = ("key", "then", "now", "verdict")
        render.json_line({"baseline": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        render.table(("key", "then", "now", ""), rows)
    bad = [key for key, _, _, verdict in rows if verdict]
    if bad:
        raise Stop(Exit.DRIFT, f"other than in {path}: {', '.join(bad)}")
