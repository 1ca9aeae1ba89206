"""Whether each VLLM_DSPARK_* variable of a Spark is read by the code that is installed there.

Decides what consumed and inert mean. Ours (`VLLM_DSPARK_REMOTE_*`) are looked up in the table of
the client that is installed on the Spark, not in this machine's; the others have to stand, whole,
in a source of vllm, of one of its plugins, or of ours. What nobody could look at is unknown: it is
never called inert.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from dsparkctl.config.engine import EngineSettings
from dsparkctl.rollout import env_file
from dsparkctl.rollout.host import Host, HostError
from dsparkctl.rollout.programs import ask
from dsparkctl.rollout.spark_facts import SparkFacts

SCAN_TIMEOUT_S: Final = 120.0
OURS: Final = "VLLM_DSPARK_"


class Fate(StrEnum):
    """What a variable comes to."""

    CONSUMED = "consumed"
    INERT = "INERT"
    UNKNOWN = "unknown"


class Use(NamedTuple):
    """One variable on one Spark."""

    host: str
    name: str
    where: str
    """file, engine or both: where it is set"""
    fate: Fate
    seen: str
    """By what, or why nobody can say."""


class Scan(NamedTuple):
    """What the installed code was seen to name."""

    used: Mapping[str, Sequence[str]]
    """Of each name that is not our client's: the sources in which it stands."""
    table: frozenset[str] | None
    """Names that the installed client knows, with their prefix; None: no client is installed."""
    has_vllm: bool
    """False: vllm's own files were not found, so that nothing follows from a name's absence."""
    is_cut: bool = False
    """More files than are ever read."""


def places(facts: SparkFacts) -> dict[str, set[str]]:
    """Where each VLLM_DSPARK_* variable is set."""
    found: dict[str, set[str]] = {}
    for name in env_file.read(facts.env_text or ""):
        if name.startswith(OURS):
            found.setdefault(name, set()).add("file")
    for process in facts.processes:
        for name, _ in process.variables:
            found.setdefault(name, set()).add("engine")
    return found


def uses(host: Host, engine: EngineSettings, facts: SparkFacts) -> Iterator[Use]:
    """Every variable that the env file or a running engine sets, and whether anybody reads it."""
    found = places(facts)
    scan = _scan(host, engine, facts, sorted(found)) if found else Scan({}, None, False)
    yield from judged(host.name, found, scan)


def judged(host: str, found: Mapping[str, Iterable[str]], scan: Scan | str) -> Iterator[Use]:
    """Pure. `scan` may be why there is none."""
    for name, where in sorted(found.items()):
        fate, seen = (Fate.UNKNOWN, scan) if isinstance(scan, str) else _judged(name, scan)
        yield Use(host, name, "+".join(sorted(where)), fate, seen)


def _judged(name: str, scan: Scan) -> tuple[Fate, str]:
    if name.startswith(env_file.PREFIX):
        if scan.table is None:
            return Fate.INERT, "no client is installed"
        if name in scan.table:
            return Fate.CONSUMED, "the installed client"
        return Fate.INERT, "the installed client knows no such variable, and ends the engine"
    if files := scan.used.get(name):
        return Fate.CONSUMED, ", ".join(files)
    if not scan.has_vllm:
        return Fate.UNKNOWN, "vllm's files were not found there"
    if scan.is_cut:
        return Fate.UNKNOWN, "more sources than are read"
    return Fate.INERT, "no installed source names it"


def _scan(
    host: Host, engine: EngineSettings, facts: SparkFacts, names: Sequence[str]
) -> Scan | str:
    """Where the engine's files are: inside its container, or beside its Python."""
    asked: dict[str, Any] = {
        "names": [name for name in names if not name.startswith(env_file.PREFIX)],
        "python": str(engine.python or ""),
        "mount": ":".join([str(engine.mount or ""), *(one.python_path for one in facts.processes)]),
        "pids": [one.pid for one in facts.processes],
    }
    through: tuple[str, ...] = ()
    if engine.kind == "docker":
        if not facts.is_up:
            return f"container {engine.container} does not run, and its files are inside"
        # Paths and process ids of the host mean nothing inside; PYTHONPATH is the container's own.
        through = ("docker", "exec", "-i", str(engine.container))
        asked |= {"python": "", "pids": []}
    try:
        answer = ask(
            host, "env_use", asked, as_root=True, timeout_s=SCAN_TIMEOUT_S, through=through
        )
    except HostError as error:
        if not through:
            raise
        return str(error).removeprefix(f"{host.name}: ")
    return _read(host.name, answer)


def _read(host: str, answer: Mapping[str, Any]) -> Scan:
    try:
        table = answer["table"]
        names = None if table is None else frozenset(env_file.PREFIX + str(one) for one in table)
        return Scan(dict(answer["used"]), names, bool(answer["has_vllm"]), bool(answer["is_cut"]))
    except (KeyError, TypeError, ValueError) as error:
        raise HostError(f"{host}: an answer that cannot be read: {error!r}"[:300]) from None
