"""`dsparkctl inventory`: dspark.yaml as an Ansible inventory, for the roles in `ansible/`."""

from pathlib import Path
from typing import Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.remote import ConfigFile, fleet_of
from dsparkctl.contract.receipt import parse_digest
from dsparkctl.rollout import env_file
from dsparkctl.rollout.inventory import inventory as inventory_of
from dsparkctl.rollout.render import RenderError
from dsparkctl.rollout.wheelhouse import WheelhouseError, read_wheelhouse

app = new_app()


@app.command()
def inventory(
    wheelhouse: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Wheels to install; by itself release.wheelhouse."),
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="drafter_identity for the Sparks; without it, no Sparks."),
    ] = None,
    markov: Annotated[
        str | None, typer.Option(metavar="HEX", help="markov_identity, where there is one.")
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Print dspark.yaml as an Ansible inventory (one line of JSON)."""
    fleet = fleet_of(config)
    folder = wheelhouse or fleet.release.wheelhouse
    if folder is None:
        raise Stop(Exit.USAGE, "release.wheelhouse: missing; say which wheels by --wheelhouse DIR")
    try:
        wheels = read_wheelhouse(folder)
        values = None
        if identity is not None:
            values = env_file.variables(fleet, parse_digest(identity), markov)
        made_s = max(wheel.path.stat().st_mtime for wheel in wheels)
        render.json_line(inventory_of(fleet, wheels, made_s, values))
    except (RenderError, WheelhouseError, ValueError) as error:
        raise Stop(Exit.USAGE, str(error)) from None
