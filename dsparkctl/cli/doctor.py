"""`dsparkctl doctor`: what is wrong with hosts and links, and what to do about it."""

from typing import Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.remote import ConfigFile, HostKey, Json, fleet_of, reaching
from dsparkctl.rollout.doctor import Finding, Verdict
from dsparkctl.rollout.examination import examine
from dsparkctl.rollout.ssh.known_hosts import Trust

app = new_app("Look for what is wrong with hosts, links and variables; nothing is changed.")


@app.command()
def env(host_key: HostKey = Trust.STRICT, config: ConfigFile = None, as_json: Json = False) -> None:
    """Say of every VLLM_DSPARK_* variable on the Sparks whether any installed code reads it."""
    from dsparkctl.cli.doctor_env import env as tell

    tell(config, host_key, as_json=as_json)


@app.callback(invoke_without_command=True)
def doctor(
    context: typer.Context,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="HOST", help="This host alone.")
    ] = None,
    host_key: HostKey = Trust.STRICT,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Look at every host of dspark.yaml and measure its direct links; nothing is changed.

    Exit code 3 when something must be mended before a deploy, 4 when a host cannot be reached.
    """
    if context.invoked_subcommand is not None:
        return
    fleet = fleet_of(config)
    if not fleet.hosts or (limit is not None and limit not in fleet.hosts):
        raise Stop(Exit.USAGE, f"hosts: expected {limit or 'at least one'} among them")
    found: list[Finding] = []
    with reaching(fleet, host_key) as hosts:
        for finding in examine(fleet, hosts, [limit] if limit else list(fleet.hosts)):
            found.append(finding)
            if not as_json:
                _show(finding)
    if as_json:
        render.json_line({"findings": [finding._asdict() for finding in found]})
    failed = [finding for finding in found if finding.verdict is Verdict.FAIL]
    if failed:
        code = Exit.SSH if any(one.check == "ssh" for one in failed) else Exit.PREFLIGHT
        raise Stop(code, f"{len(failed)} of {len(found)} checks failed")


def _show(finding: Finding) -> None:
    line = f"{finding.verdict:<4}  {finding.host}: {finding.check}: {finding.seen}"
    render.data(f"{line}; {finding.todo}" if finding.todo else line)
