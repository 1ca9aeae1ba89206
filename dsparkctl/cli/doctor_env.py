"""`dsparkctl doctor env`: which VLLM_DSPARK_* variables of the Sparks are read, which are inert.

An inert one is tuned for nothing: it stood in somebody's notes, or in another fork.
"""

from pathlib import Path

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.remote import fleet_of, reaching
from dsparkctl.rollout.env_use import Use, uses
from dsparkctl.rollout.sparks import look
from dsparkctl.rollout.ssh.known_hosts import Trust


def env(config: Path | None, trust: Trust, *, as_json: bool) -> None:
    """Print a line a variable; exit code 5 when one is inert."""
    fleet = fleet_of(config)
    if fleet.engine is None:
        raise Stop(Exit.USAGE, "engine: missing; expected where the engine's ranks run")
    found: list[Use] = []
    with reaching(fleet, trust) as hosts:
        for name in fleet.engine.ranks:
            facts = look(hosts[name], fleet.engine)
            found += uses(hosts[name], fleet.engine, facts)
    if as_json:
        render.json_line({"variables": [one._asdict() for one in found]})
    elif found:
        rows = [
            (one.host, one.name, one.where, "consumed" if one.is_used else "INERT", one.seen)
            for one in found
        ]
        render.table(("host", "variable", "set in", "use", "by"), rows)
    n_inert = sum(not one.is_used for one in found)
    if n_inert:
        raise Stop(Exit.DRIFT, f"{n_inert} of {len(found)} variables are inert")
