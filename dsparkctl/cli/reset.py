"""`dsparkctl reset`: discard windows of a worker's slots (§6.4), by its admin listener (R39)."""

from contextlib import closing
from typing import Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.asking import ask
from dsparkctl.cli.endpoints import ConfigFile, TakeOver, Target
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.reach import Via, find
from dsparkctl.config.defaults import SLOTS_LIMIT
from dsparkctl.contract.codes import ALL_SLOTS, Op
from dsparkctl.contract.layout import pack
from dsparkctl.contract.records import Reset

app = new_app()

_SLOTS = {str(slot) for slot in range(SLOTS_LIMIT)}


@app.command()
def reset(
    endpoint: Target = None,
    slots: Annotated[
        str | None, typer.Option(metavar="LIST", help="Slots by number, e.g. 0,2.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every slot.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    timeout: Annotated[
        float, typer.Option(metavar="S", min=0.001, max=3600, help="To wait for the answer.")
    ] = 5.0,
    take_over: TakeOver = False,
    via: Via = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line.")] = False,
) -> None:
    """Discard windows of a worker's slots; a living engine resyncs them from its own copy."""
    if (slots is None) == (not every):
        raise Stop(Exit.USAGE, "say which slots: either --slots 0,2 or --all")
    numbers = [] if slots is None else _numbers(slots)
    which = f"slots {', '.join(map(str, numbers))}" if numbers else "all slots"
    mask = sum(1 << number for number in numbers) if numbers else ALL_SLOTS
    with closing(find(endpoint, config, take_over=take_over, via=via)) as reach:
        if not yes:
            ask(f"Discard the windows of {which} of {reach}?", "nothing was discarded")
        reach.request_once(Op.RESET, pack(Reset(mask)), timeout)
    if as_json:
        render.json_line({**reach.facts(), "slots": numbers or "all", "slot_mask": mask})
    else:
        render.data(f"{reach}: the windows of {which} are discarded")


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if all(part in _SLOTS for part in parts):
        return sorted({int(part) for part in parts})
    raise Stop(
        Exit.USAGE, f"--slots: expected numbers from 0 to {SLOTS_LIMIT - 1}, e.g. 0,2, got {text!a}"
    )
