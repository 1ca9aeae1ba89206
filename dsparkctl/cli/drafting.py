"""`dsparkctl drafting on|off|status`: the client's switch file on rank 0's host (R40), no restart.

Only rank 0 speaks to the worker (§4.1), so only its file counts; it looks once a second. Exit code
1 when the engine that runs there does not see what the file says.
"""

from pathlib import Path

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.remote import ConfigFile, HostKey, Json, fleet_of, reaching
from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout.drafting import Drafting, look, record, switch
from dsparkctl.rollout.host import HostError, Hosts
from dsparkctl.rollout.ssh.known_hosts import Trust

app = new_app("Switch drafting on and off on rank 0's host, without a restart.")


@app.command()
def on(host_key: HostKey = Trust.STRICT, config: ConfigFile = None, as_json: Json = False) -> None:
    """Remove the switch file on rank 0's host: the next rounds are sent again."""
    _switched(True, config, host_key, as_json=as_json)


@app.command()
def off(host_key: HostKey = Trust.STRICT, config: ConfigFile = None, as_json: Json = False) -> None:
    """Make the switch file on rank 0's host: nothing is sent while it is there."""
    _switched(False, config, host_key, as_json=as_json)


@app.command()
def status(
    host_key: HostKey = Trust.STRICT, config: ConfigFile = None, as_json: Json = False
) -> None:
    """Say whether the switch file is there, and whether rank 0's engine sees it."""
    _switched(None, config, host_key, as_json=as_json)


def _switched(wanted: bool | None, config: Path | None, trust: Trust, *, as_json: bool) -> None:
    fleet = fleet_of(config)
    with reaching(fleet, trust) as hosts:
        host = hosts[_rank_0(fleet)]
        if wanted is not None:
            switch(host, fleet.policy.switch_file, on=wanted)
        found = look(host, fleet)
        _show(found, as_json=as_json)
        if wanted is not None:
            _recorded(hosts, fleet, on=wanted)
    if wanted not in (None, found.is_on) or found.doubt:
        reason = found.doubt or f"{found.switch_file} did not change"
        raise Stop(Exit.FAILED, f"{found.host}: {reason}")


def _recorded(hosts: Hosts, fleet: Fleet, *, on: bool) -> None:
    """A worker's host that is out of reach is a reason to switch drafting off, and hides nothing of
    what was done."""
    if fleet.worker.host is None:
        return
    try:
        record(hosts[fleet.worker.host], fleet, _rank_0(fleet), on=on)
    except HostError as error:
        render.note(f"switched, but not in the history: {error}")


def _show(found: Drafting, *, as_json: bool) -> None:
    if as_json:
        state = {"drafting": "on" if found.is_on else "off", "doubt": found.doubt}
        names = {"host": found.host, "switch_file": found.switch_file}
        render.json_line({**names, **state, "engine_runs": found.is_running})
    else:
        render.data(str(found))


def _rank_0(fleet: Fleet) -> str:
    if fleet.engine is None:
        raise Stop(Exit.USAGE, "engine: missing; expected where the engine's ranks run")
    return fleet.engine.ranks[0]
