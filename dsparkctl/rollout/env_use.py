"""Whether each VLLM_DSPARK_* variable of a Spark is read by the code that is installed there.

Decides what inert means: a name that stands in no source of vllm, a plugin or ours. Our own names
are put together from a prefix, so those are looked up in our table's names instead of as literals.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from dsparkctl.config.engine import EngineSettings
from dsparkctl.config.policy import PolicySettings
from dsparkctl.rollout import env_file
from dsparkctl.rollout.host import Host
from dsparkctl.rollout.programs import ask
from dsparkctl.rollout.sparks import SparkFacts

SCAN_TIMEOUT_S = 120.0


class Use(NamedTuple):
    """One variable on one Spark."""

    host: str
    name: str
    where: str
    """file or engine: where it is set"""
    is_used: bool
    seen: str


def known_names() -> set[str]:
    """Every variable of the client that this release installs (R40)."""
    policy = {env_file.variable_of(key) for key in PolicySettings.model_fields}
    return {
        f"{env_file.PREFIX}{name}"
        for name in (*policy, "ENDPOINT", "IDENTITY", "MARKOV_IDENTITY", "RECORD")
    }


def uses(host: Host, engine: EngineSettings, facts: SparkFacts) -> Iterator[Use]:
    """Every variable that the env file or a running engine sets, and whether anybody reads it."""
    places: dict[str, set[str]] = {}
    for name in env_file.read(facts.env_text or ""):
        places.setdefault(name, set()).add("file")
    for process in facts.processes:
        for name, _ in process.variables:
            places.setdefault(name, set()).add("engine")
    others = sorted(name for name in places if not name.startswith(env_file.PREFIX))
    asked = {"names": others, "python": str(engine.python or ""), "mount": str(engine.mount or "")}
    found = ask(host, "env_use", asked, timeout_s=SCAN_TIMEOUT_S)["used"] if others else {}
    yield from judged(host.name, places, found, has_client=facts.package_digest is not None)


def judged(
    host: str,
    places: Mapping[str, Iterable[str]],
    found: Mapping[str, list[str]],
    *,
    has_client: bool,
) -> Iterator[Use]:
    """Pure: `found` are the files that name each variable which is not ours."""
    known = known_names()
    for name, where in sorted(places.items()):
        if name.startswith(env_file.PREFIX):
            is_used = name in known and has_client
            seen = "the client" if is_used else "no such variable" if has_client else "no client"
        else:
            files = found.get(name, [])
            is_used, seen = bool(files), ", ".join(files) or "no installed code names it"
        yield Use(host, name, "+".join(sorted(where)), is_used, seen)
