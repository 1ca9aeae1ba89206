"""`dsparkctl rollback|releases|history|undeploy|lock|logs`: what stands on the worker's host.

Each command is an app of its own; they share their way to the host.
"""

from typing import Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.deploy import finish
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.remote import (
    ConfigFile,
    Diff,
    DryRun,
    HostKey,
    Json,
    LockWait,
    at_worker,
    fleet_of,
    reaching,
    show_plan,
    telling,
    worker_host,
)
from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout import engines
from dsparkctl.rollout import history as history_of
from dsparkctl.rollout import lock as lock_of
from dsparkctl.rollout.deploy import Deploy
from dsparkctl.rollout.host import Hosts
from dsparkctl.rollout.layout import UNIT
from dsparkctl.rollout.recipe import NoPlan, Recipe
from dsparkctl.rollout.spark_facts import SparkFacts, look
from dsparkctl.rollout.sparks import undeploy as undeploy_sparks
from dsparkctl.rollout.ssh.known_hosts import Trust

rollback_app, releases_app, history_app = new_app(), new_app(), new_app()
undeploy_app, logs_app = new_app(), new_app()
lock_app = new_app("Look at the lock of the worker's host, or take it away.")


@rollback_app.command()
def rollback(
    release: Annotated[
        str | None, typer.Argument(metavar="[RELEASE]", help="By itself the previous one.")
    ] = None,
    dry_run: DryRun = False,
    diff: Diff = False,
    lock_wait: LockWait = 0.0,
    host_key: HostKey = Trust.STRICT,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Go back to an earlier release of the worker, and see it draft."""
    with (
        at_worker(config, host_key, lock_wait) as deploy,
        deploy.locked("rollback", is_dry=dry_run or diff) as lease,
    ):
        try:
            plan = Recipe(deploy.fleet).rollback(deploy.facts(), release, "rollback")
        except NoPlan as error:
            raise Stop(Exit.FAILED, str(error)) from None
        if dry_run or diff:
            show_plan(plan, as_json=as_json, with_diff=diff)
        else:
            finish(plan, deploy.run(plan, lease), as_json=as_json)


@releases_app.command()
def releases(
    host_key: HostKey = Trust.STRICT, config: ConfigFile = None, as_json: Json = False
) -> None:
    """List the releases on the worker's host, the oldest first."""
    with at_worker(config, host_key) as deploy:
        facts = deploy.facts()
    used = {facts.previous: "previous", facts.current: "current"}
    rows = [
        {
            "release": one.id,
            "version": one.version,
            "state": "half" if not one.is_complete else "altered" if one.altered else "complete",
            "healthy": one.id in facts.healthy,
            "use": used.get(one.id, ""),
        }
        for one in facts.releases
    ]
    if as_json:
        render.json_line({"releases": rows})
    elif rows:
        render.table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    else:
        render.note("no releases")


@history_app.command()
def history(
    lines: Annotated[int, typer.Option("-n", metavar="N", min=1, max=10_000)] = 20,
    host_key: HostKey = Trust.STRICT,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show what was done to the worker's host, by whom, with what result."""
    with at_worker(config, host_key) as deploy:
        found = history_of.read(deploy.host, deploy.layout, lines)
    if as_json:
        render.json_line({"history": found})
        return
    keys = ("utc", "who", "command", "step", "result", "release", "said")
    if found:
        render.table(keys, [tuple(str(entry.get(key, "")) for key in keys) for entry in found])


@undeploy_app.command()
def undeploy(
    purge: Annotated[bool, typer.Option("--purge", help="Its releases and cache too.")] = False,
    sparks: Annotated[
        bool, typer.Option("--sparks", help="The client from the Sparks, and not the worker.")
    ] = False,
    dry_run: DryRun = False,
    lock_wait: LockWait = 0.0,
    host_key: HostKey = Trust.STRICT,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Stop the worker and remove it from its host; checkpoint and history stay.

    With --sparks: remove the client and its variables where no engine runs on them.
    """
    fleet = fleet_of(config)
    with reaching(fleet, host_key) as hosts:
        deploy = Deploy(fleet, hosts[worker_host(fleet)], telling(), lock_wait)
        with deploy.locked("undeploy", is_dry=dry_run) as lease:
            if sparks:
                plan = undeploy_sparks(fleet, _spark_facts(fleet, hosts), "undeploy --sparks")
            else:
                plan = Recipe(fleet).undeploy(deploy.facts(), "undeploy", purge=purge)
            if dry_run:
                show_plan(plan, as_json=as_json, with_diff=False)
            else:
                finish(plan, deploy.run(plan, lease, hosts), as_json=as_json)


def _spark_facts(fleet: Fleet, hosts: Hosts) -> list[SparkFacts]:
    if fleet.engine is None:
        raise Stop(Exit.USAGE, "engine: missing; expected where the engine's ranks run")
    return [look(hosts[name], fleet.engine) for name in fleet.engine.ranks]


@logs_app.command()
def logs(
    host: Annotated[
        str | None, typer.Argument(metavar="[HOST]", help="By itself the worker's.")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", metavar="N", min=0, max=100_000)] = 50,
    host_key: HostKey = Trust.STRICT,
    config: ConfigFile = None,
) -> None:
    """Show the journal of the worker's unit, or, on a Spark, what the engine says."""
    fleet = fleet_of(config)
    name = host or worker_host(fleet)
    argv = _log_command(fleet, name, lines, follow=follow)
    with reaching(fleet, host_key) as hosts:
        code = hosts[name].follow(argv, render.data, as_root=True)
    if code:
        raise Stop(Exit.FAILED, f"{name}: {argv[0]} ended with {code}")


def _log_command(fleet: Fleet, host: str, lines: int, *, follow: bool) -> list[str]:
    engine = fleet.engine
    if engine is not None and host in engine.ranks and host != fleet.worker.host:
        shown = engines.journal(engine, lines)
        if shown is None:
            raise Stop(Exit.USAGE, f"engine.unit: missing; {host} has no journal that is known")
    else:
        shown = engines.unit_journal(UNIT, lines)
    return [*shown, *(["-f"] if follow else [])]


@lock_app.command()
def status(
    host_key: HostKey = Trust.STRICT, config: ConfigFile = None, as_json: Json = False
) -> None:
    """Say who holds the lock."""
    with at_worker(config, host_key) as deploy:
        found = lock_of.holder(deploy.host, deploy.layout)
    if as_json:
        render.json_line({"locked": found is not None, **(found._asdict() if found else {})})
    else:
        render.data(f"locked by {found.owner}, {found.age_s:.0f} s ago" if found else "not locked")


@lock_app.command()
def release(
    host_key: HostKey = Trust.STRICT, config: ConfigFile = None, as_json: Json = False
) -> None:
    """Take the lock away from whoever holds it: they may still be at work."""
    with at_worker(config, host_key) as deploy:
        found = lock_of.release(deploy.host, deploy.layout)
        if found is not None:
            entry = {"who": lock_of.who(), "command": "lock release", "step": "lock"}
            said = f"taken from {found.owner}"
            history_of.append(deploy.host, deploy.layout, {**entry, "result": "ok", "said": said})
    if as_json:
        render.json_line({"released": found is not None, **(found._asdict() if found else {})})
    else:
        render.data(f"taken from {found.owner}" if found else "it was not locked")
