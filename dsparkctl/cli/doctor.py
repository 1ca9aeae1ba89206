"""`dsparkctl doctor`: everything that a deploy, and then the engine, will need of the hosts.

Shows what `rollout.doctor` found.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.endpoints import ConfigFile
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.remote import Json
from dsparkctl.cli.ssh import HostKey, open_host
from dsparkctl.config import defaults
from dsparkctl.rollout.ssh.known_hosts import Trust

if TYPE_CHECKING:
    from dsparkctl.config.fleet import Fleet
    from dsparkctl.rollout.doctor.finding import Finding

app = new_app()

Limit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="HOST", help="Only this host (may be given again)."),
]


@app.command()
def env(host_key: HostKey = Trust.STRICT, config: ConfigFile = None, as_json: Json = False) -> None:
    """Say of every VLLM_DSPARK_* variable on the Sparks whether any installed code reads it."""
    from dsparkctl.cli.doctor_env import env as tell

    tell(config, host_key, as_json=as_json)


@app.callback(invoke_without_command=True)
def doctor(
    context: typer.Context,
    limit: Limit = None,
    host_key: HostKey = Trust.STRICT,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Examine the hosts of dspark.yaml: ok, warn or fail, what was seen, and what to do.

    Changes nothing anywhere. Exit code 0 when nothing failed, 3 when something did, 4 when no host
    could be reached, 6 when only some could and nothing else is wrong.
    """
    if context.invoked_subcommand is not None:
        return
    from dsparkctl.config.source import load_fleet
    from dsparkctl.rollout.doctor.finding import exit_code

    fleet = load_fleet(config or defaults.CONFIG)
    findings = _examine(fleet, _names(fleet, limit or []), host_key)
    _show(findings, as_json)
    raise typer.Exit(exit_code(findings))


def _names(fleet: "Fleet", limit: Sequence[str]) -> list[str]:
    """The hosts to look at, in the order of the file."""
    if not fleet.hosts:
        raise Stop(Exit.USAGE, "hosts: expected at least one among them")
    for name in limit:
        if name not in fleet.hosts:
            known = ", ".join(fleet.hosts)
            raise Stop(Exit.USAGE, f"--limit {name}: dspark.yaml names {known}")
    return [name for name in fleet.hosts if not limit or name in limit]


def _examine(fleet: "Fleet", names: Sequence[str], trust: Trust) -> "list[Finding]":
    from dsparkctl.rollout.doctor.examine import examine
    from dsparkctl.rollout.host import Host

    opened: list[Host] = []

    def open_one(name: str) -> Host:
        opened.append(open_host(fleet, name, trust))
        return opened[-1]

    try:
        return examine(fleet, names, open_one)
    finally:
        for host in opened:
            host.close()


def _show(findings: "Sequence[Finding]", as_json: bool) -> None:
    from dsparkctl.rollout.doctor.finding import Level

    if as_json:
        render.json_line({"findings": [one._asdict() for one in findings]})
        return
    width = max((len(one.host) for one in findings), default=0)
    for one in findings:
        render.data(f"{one.level:<4}  {one.host:<{width}}  {one.check:<10}  {one.saw}")
        if one.todo:
            render.data(f"{'':<{width + 20}}-> {one.todo}")
    levels = Counter(one.level for one in findings)
    render.note(", ".join(f"{levels[level]} {level}" for level in Level))
