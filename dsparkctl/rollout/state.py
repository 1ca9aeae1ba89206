"""What runs where, and whether it is what was installed: for `status`.

Decides what drift is: files of the serving release that changed, a unit that is not the release's,
a client or variables that differ from what this `dspark.yaml` and this wheel would install.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from dsparkctl.rollout import env_file
from dsparkctl.rollout.environ import faults
from dsparkctl.rollout.facts import WorkerFacts
from dsparkctl.rollout.spark_facts import SparkFacts
from dsparkctl.rollout.sparks import Client


class Fact(NamedTuple):
    """One line of a status; `drift` says how it differs, or nothing."""

    host: str
    what: str
    seen: str
    drift: str = ""


def worker_state(facts: WorkerFacts, stats: dict[str, Any] | str) -> Iterator[Fact]:
    """`stats` is what the worker says, or why it says nothing."""
    release = facts.release(facts.current)
    if release is None:
        yield Fact(facts.host, "release", "none", "" if facts.current is None else "is missing")
        return
    altered = f"changed: {', '.join(release.altered[:3])}" if release.altered else ""
    yield Fact(facts.host, "release", f"{release.id} ({release.version})", altered)
    unit = f"{facts.unit.active}, {facts.unit.enabled}, {facts.unit.n_restarts} restarts"
    drift = "" if facts.unit.text == release.unit_text else "its file is not the release's"
    yield Fact(facts.host, "unit", unit, drift)
    if isinstance(stats, str):
        yield Fact(facts.host, "worker", stats, "does not answer")
        return
    versions = f"{stats['build_version']}, contract {stats['contract_version']}"
    yield Fact(facts.host, "worker", f"{versions}, {stats['backend']} on {stats['device']}")
    is_other = facts.identity is not None and stats["drafter_identity"] != facts.identity
    drift = f"the receipt says {facts.identity}" if is_other else ""
    yield Fact(facts.host, "drafter_identity", str(stats["drafter_identity"]), drift)
    yield Fact(facts.host, "markov_identity", str(stats["markov_identity"]))
    yield Fact(facts.host, "steps", f"{stats['steps']}, session {stats['session']}")


def spark_state(facts: Sequence[SparkFacts], client: Client) -> Iterator[Fact]:
    """Each Spark against what a deploy would install."""
    wanted = env_file.write(client.values).decode()
    for one in facts:
        is_ours = one.package_digest == client.package_digest
        drift = "" if is_ours else f"a deploy would install {client.wheel.version} anew"
        yield Fact(one.host, "client", one.package_version or "none", drift)
        drift = "" if one.env_text == wanted else "a deploy would write it anew"
        said = str(client.engine.env_file) if one.env_text is not None else "missing"
        yield Fact(one.host, "variables", said, drift)
        if not one.is_up:
            yield Fact(one.host, "engine", "does not run")
            continue
        bad = [text.removeprefix(f"{one.host}: ") for text in faults(one, client.values)]
        n = len(one.processes)
        said = f"{n} process{'' if n == 1 else 'es'} run{'s' if n == 1 else ''}"
        yield Fact(one.host, "engine", said, ", ".join(bad[:3]))
