"""The client's switch file on rank 0's host (R40): made, removed, and what the engine makes of it.

Decides what is certain of it. The file alone switches nothing: an engine that was started with
another path, in a container without that folder, or under an account that may not look there, goes
on drafting; so its processes are asked what they see. Rank 0 alone speaks to the worker (§4.1), so
only its host counts.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout import engines, env_file, history
from dsparkctl.rollout.environ import told
from dsparkctl.rollout.host import Host, HostError
from dsparkctl.rollout.layout import Layout
from dsparkctl.rollout.lock import who
from dsparkctl.rollout.programs import ask
from dsparkctl.rollout.spark_facts import SparkFacts
from dsparkctl.rollout.spark_facts import told as facts_told

SWITCH: Final = f"{env_file.PREFIX}SWITCH_FILE"
ENDPOINT: Final = f"{env_file.PREFIX}ENDPOINT"
_STATE: Final = ("sh", "-c", 'if [ -e "$1" ] || [ -L "$1" ]; then echo off; else echo on; fi', "-")


@dataclass(frozen=True, slots=True)
class Drafting:
    """Where the switch stands."""

    host: str
    switch_file: str
    is_on: bool
    """No such file is on the host."""
    doubt: str
    """Why the running engine may do otherwise; empty: it sees what the host has."""
    is_running: bool

    def __str__(self) -> str:
        state = f"{self.host}: drafting is {'on' if self.is_on else 'off'} ({self.switch_file}"
        if not self.is_running:
            return f"{state}; no engine runs there)"
        return f"{state}; rank 0's engine {'may do otherwise' if self.doubt else 'sees it'})"


def switch(host: Host, path: PurePosixPath, *, on: bool) -> None:
    """Remove the file, or make it in a folder that everybody may look into."""
    if on:
        host.check(("rm", "-f", "--", str(path)), as_root=True)
        return
    folder = str(path.parent)
    if host.run(("test", "-d", folder), as_root=True).code:
        host.check(("install", "-d", "-m", "0755", "--", folder), as_root=True)
    host.check(("touch", "--", str(path)), as_root=True)


def record(worker: Host, fleet: Fleet, rank_0: str, *, on: bool) -> None:
    """Into the history, which stands on the worker's host."""
    command = f"drafting {'on' if on else 'off'}"
    entry = {"who": who(), "command": command, "step": "drafting", "host": rank_0, "result": "ok"}
    history.append(worker, Layout(fleet.release.root), entry)


def look(host: Host, fleet: Fleet) -> Drafting:
    """What the host has, and what rank 0's engine sees of it."""
    if fleet.engine is None:
        raise HostError(f"{host.name}: engine: missing; expected where the engine's ranks run")
    path = str(fleet.policy.switch_file)
    is_on = host.check((*_STATE, path), as_root=True).text == "on"
    asked = engines.processes(fleet.engine) | {"switch_file": path}
    facts = facts_told(host.name, ask(host, "engine_facts", asked, as_root=True))
    return Drafting(host.name, path, is_on, doubt(facts, path, is_on=is_on), facts.is_up)


def doubt(facts: SparkFacts, path: str, *, is_on: bool) -> str:
    """Pure: why the engine that runs does not do what the file says, or an empty string."""
    for process in told(facts):
        variables = dict(process.variables)
        if ENDPOINT not in variables:
            return "the engine was started without remote drafting: deploy spark --restart"
        if SWITCH not in variables:
            return f"the engine was started without {SWITCH}: deploy spark --restart"
        if variables[SWITCH] != path:
            return f"the engine was started with {SWITCH}={variables[SWITCH]}, and looks there"
        if process.sees_switch is None:
            return f"process {process.pid} may not look into {PurePosixPath(path).parent}"
        if process.sees_switch is is_on:
            there = "a file" if is_on else "no file"
            return (
                f"process {process.pid} sees {there} at {path}: is {PurePosixPath(path).parent} "
                "the host's own folder in its container?"
            )
    return ""
