"""`dsparkctl drafting on|off|status`: the client's switch file on rank 0's host (R40), no restart.

Only rank 0 speaks to the worker (§4.1), so only its file counts; it looks once a second.
"""

from pathlib import Path

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.remote import ConfigFile, HostKey, Json, fleet_of, reaching
from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout.ssh.known_hosts import Trust

app = new_app("Switch drafting on and off on rank 0's host, without a restart.")

_STATE = ("sh", "-c", 'if [ -e "$1" ]; then echo off; else echo on; fi', "state")


@app.command()
def on(host_key: HostKey = Trust.STRICT, config: ConfigFile = None, as_json: Json = False) -> None:
    """Remove the switch file: the next rounds are sent again."""
    _switched("on", config, host_key, as_json=as_json)


@app.command()
def off(host_key: HostKey = Trust.STRICT, config: ConfigFile = None, as_json: Json = False) -> None:
    """Make the switch file: nothing is sent while it is there."""
    _switched("off", config, host_key, as_json=as_json)


@app.command()
def status(
    host_key: HostKey = Trust.STRICT, config: ConfigFile = None, as_json: Json = False
) -> None:
    """Say whether the switch file is there."""
    _switched(None, config, host_key, as_json=as_json)


def _switched(wanted: str | None, config: Path | None, trust: Trust, *, as_json: bool) -> None:
    fleet = fleet_of(config)
    rank_0, path = _rank_0(fleet), str(fleet.policy.switch_file)
    folder = str(fleet.policy.switch_file.parent)
    with reaching(fleet, trust) as hosts:
        host = hosts[rank_0]
        if wanted == "off":
            host.check(("mkdir", "-p", "--", folder), as_root=True)
            host.check(("touch", "--", path), as_root=True)
        elif wanted == "on":
            host.check(("rm", "-f", "--", path), as_root=True)
        found = host.check((*_STATE, path), as_root=True).text
    if wanted not in (None, found):
        raise Stop(Exit.FAILED, f"{rank_0}: {path}: drafting is {found} still")
    if as_json:
        render.json_line({"host": rank_0, "switch_file": path, "drafting": found})
    else:
        render.data(f"{rank_0}: drafting is {found} ({path})")


def _rank_0(fleet: Fleet) -> str:
    if fleet.engine is None:
        raise Stop(Exit.USAGE, "engine: missing; expected where the engine's ranks run")
    return fleet.engine.ranks[0]
