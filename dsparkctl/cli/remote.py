"""What the commands that reach out to hosts have in common: options, hosts, and how an end is told.

Decides exit codes of what a host said. Refuses to know what is done there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.ssh import HostKey as HostKey
from dsparkctl.cli.ssh import ask_password, ssh_config
from dsparkctl.config import defaults
from dsparkctl.config.fleet import Fleet
from dsparkctl.config.source import load_fleet
from dsparkctl.rollout.deploy import Deploy, PreflightError
from dsparkctl.rollout.host import HostError, SshError, SudoError
from dsparkctl.rollout.lock import Locked
from dsparkctl.rollout.plan import Plan, Tell
from dsparkctl.rollout.ssh.fleet import Hosts, open_hosts
from dsparkctl.rollout.ssh.known_hosts import Trust

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", envvar="DSPARK_CONFIG", help="Instead of ./dspark.yaml."
    ),
]
LockWait = Annotated[
    float,
    typer.Option("--lock-wait", metavar="S", min=0, max=86_400, help="Wait for another's lock."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done; exit code 5 if anything.")
]
Diff = Annotated[bool, typer.Option("--diff", help="The same, with the files that would change.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on one line.")]


def fleet_of(config: Path | None) -> Fleet:
    """The configuration in use."""
    return load_fleet(config or defaults.CONFIG)


def worker_host(fleet: Fleet) -> str:
    """The name of the worker's host; Stop when none is named."""
    if fleet.worker.host is None:
        raise Stop(Exit.USAGE, "worker.host: missing; expected one of hosts, where the worker runs")
    return fleet.worker.host


@contextmanager
def reaching(fleet: Fleet | None, trust: Trust = Trust.STRICT) -> Iterator[Hosts]:
    """Hosts, closed at the end; what they say becomes the command's end."""
    try:
        with open_hosts(
            fleet,
            trust=trust,
            ask_password=ask_password,
            ssh_config=ssh_config(),
        ) as hosts:
            yield hosts
    except HostError as error:
        raise Stop(code_of(error), str(error)) from None


@contextmanager
def at_worker(config: Path | None, trust: Trust, lock_wait_s: float = 0.0) -> Iterator[Deploy]:
    """The worker's host of the configuration in use, and all that is done there."""
    fleet = fleet_of(config)
    with reaching(fleet, trust) as hosts:
        yield Deploy(fleet, hosts[worker_host(fleet)], telling(), lock_wait_s)


def code_of(error: HostError) -> Exit:
    """The exit code of what went wrong on a host."""
    match error:
        case SshError():
            return Exit.SSH
        case Locked():
            return Exit.LOCKED
        case PreflightError() | SudoError():
            return Exit.PREFLIGHT
        case _:
            return Exit.FAILED


def telling() -> Tell:
    """Lines to stderr, and a bar for uploads on a terminal."""
    return Tell(render.note, render.upload)


def show_plan(plan: Plan, *, as_json: bool, with_diff: bool) -> None:
    """Print what would be done; exit code 5 when that is anything."""
    steps = [_facts(plan, number) for number in range(len(plan.steps))]
    if as_json:
        render.json_line({"changes": not plan.is_empty, "hash": plan.hash, "steps": steps})
    elif plan.is_empty:
        render.data("no changes")
    for step in () if as_json else plan.steps:
        render.data(f"{step.host}: would {step.title}")
        if with_diff and step.diff:
            render.data(step.diff)
    if not plan.is_empty:
        raise typer.Exit(Exit.DRIFT)


def _facts(plan: Plan, number: int) -> dict[str, Any]:
    step = plan.steps[number]
    acts = [str(act) for act in step.acts]
    return {
        "key": step.key,
        "host": step.host,
        "title": step.title,
        "acts": acts,
        "diff": step.diff,
    }
