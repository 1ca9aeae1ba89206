"""`dsparkctl doctor env`: which VLLM_DSPARK_* variables of the Sparks are read, which are inert.

An inert one is tuned for nothing: it stood in somebody's notes, or in another fork.
"""

from collections.abc import Sequence
from pathlib import Path

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.remote import fleet_of, reaching
from dsparkctl.rollout.env_use import Fate, Use, uses
from dsparkctl.rollout.spark_facts import look
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
    _show(found, as_json=as_json)
    n_inert = sum(one.fate is Fate.INERT for one in found)
    if n_inert:
        raise Stop(Exit.DRIFT, f"{n_inert} of {len(found)} variables are inert")


def _show(found: Sequence[Use], *, as_json: bool) -> None:
    if as_json:
        render.json_line({"variables": [one._asdict() for one in found]})
    elif found:
        render.table(("host", "variable", "set in", "use", "by"), [tuple(one) for one in found])
    else:
        render.note("no VLLM_DSPARK_ variable is set, in a file or an engine")
    n_unknown = sum(one.fate is Fate.UNKNOWN for one in found)
    if n_unknown:
        render.note(f"of {n_unknown} of {len(found)} variables nobody can say")
