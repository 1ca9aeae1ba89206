"""`dsparkctl stats`: a worker's counters once, or again and again (§6.5, R35)."""

import sys
from contextlib import closing
from typing import Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.endpoints import ConfigFile, TakeOver, Target
from dsparkctl.cli.group import new_app
from dsparkctl.cli.reach import Via, find
from dsparkctl.cli.trend import value_text
from dsparkctl.cli.watching import look_once, looks, show_json, show_lines, show_live

app = new_app()


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
    if as_json:
        render.json_line(found)
    else:
        render.fields({name: value_text(value) for name, value in found.items()})
