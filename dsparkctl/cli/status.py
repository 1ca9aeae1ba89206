"""`dsparkctl status`: what runs where, and whether it is what was installed."""

from typing import Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.deploy import cache_folder
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.remote import (
    ConfigFile,
    HostKey,
    Json,
    fleet_of,
    reaching,
    telling,
    worker_host,
)
from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout.deploy import Deploy
from dsparkctl.rollout.deploy_sparks import SparkDeploy
from dsparkctl.rollout.gate import NotAnswering, stats_of
from dsparkctl.rollout.ssh.fleet import Hosts
from dsparkctl.rollout.ssh.known_hosts import Trust
from dsparkctl.rollout.state import Fact, spark_state, worker_state

app = new_app()


@app.command()
def status(
    drift: Annotated[
        bool, typer.Option("--drift", help="Exit code 5 when anything differs.")
    ] = False,
    host_key: HostKey = Trust.STRICT,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Say what runs on every host, and where it differs from what was installed."""
    fleet = fleet_of(config)
    with reaching(fleet, host_key) as hosts:
        found = _look(fleet, hosts)
    if as_json:
        render.json_line({"facts": [fact._asdict() for fact in found]})
    else:
        rows = [(one.host, one.what, one.seen, one.drift) for one in found]
        render.table(("host", "what", "seen", "drift"), rows)
    bad = [one for one in found if one.drift]
    if drift and bad:
        raise Stop(Exit.DRIFT, f"{len(bad)} of {len(found)} differ from what was installed")


def _look(fleet: Fleet, hosts: Hosts) -> list[Fact]:
    deploy = Deploy(fleet, hosts[worker_host(fleet)], telling())
    facts = deploy.facts()
    try:
        stats = stats_of(deploy.host, deploy.admin)
    except NotAnswering as error:
        said = str(error).removeprefix(f"{deploy.host.name}: ")
        return list(worker_state(facts, said))
    found = list(worker_state(facts, stats))
    if fleet.engine is not None:
        sparks = SparkDeploy(fleet, deploy.host, hosts)
        client = sparks.client(stats, None, cache_folder())
        found += spark_state(sparks.facts(fleet.engine.ranks), client)
    return found
