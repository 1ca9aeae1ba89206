"""What a Spark looks like now, as a value, and how it is asked.

Decides how the answer reads. Refuses to judge it: `environ` and `ranks` do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsparkctl.config.engine import EngineSettings
from dsparkctl.rollout import engines
from dsparkctl.rollout.host import Host, HostError
from dsparkctl.rollout.programs import ask


@dataclass(frozen=True, slots=True)
class Process:
    """One running process of the engine, and the variables that it was started with."""

    pid: int
    command: str
    variables: tuple[tuple[str, str], ...]
    """`VLLM_DSPARK_*` alone."""
    started_s: float = 0.0
    """Unix time on its host."""
    sees_switch: bool | None = None
    """Whether it finds the switch file; None: not asked, or it may not look."""
    python_path: str = ""
    """Its PYTHONPATH: folders as the process sees them."""


@dataclass(frozen=True, slots=True)
class SparkFacts:
    """One Spark."""

    host: str
    account: str = "root"
    env_text: str | None = None
    drop_in_text: str | None = None
    package_digest: str | None = None
    """Over the installed files of ours; None where there are none."""
    package_version: str = ""
    package_came_s: float = 0.0
    """Unix time on its host at which the youngest of them came to be."""
    processes: tuple[Process, ...] = ()
    container: str | None = None
    """docker: its id, running or not; None: there is none."""
    listens: bool = False
    """Somebody listens on the port that was asked about."""

    @property
    def is_up(self) -> bool:
        """The engine runs there."""
        return bool(self.processes)


def look(host: Host, engine: EngineSettings, **more: Any) -> SparkFacts:
    """Everything about a Spark; `more` goes to the program. HostError when it does not say."""
    asked = {**engines.files(engine), **engines.processes(engine), **more}
    return told(host.name, ask(host, "engine_facts", asked, as_root=True))


def told(host: str, answer: Mapping[str, Any]) -> SparkFacts:
    """The answer of `on_host/engine_facts.py`; HostError when it is none."""
    try:
        package = answer.get("package") or {}
        container = answer.get("container") or {}
        return SparkFacts(
            host,
            str(answer["account"]),
            answer.get("env_file_text"),
            answer.get("drop_in_text"),
            package.get("digest"),
            str(package.get("version", "")),
            float(package.get("came_s", 0)),
            tuple(_process(one) for one in answer["processes"]),
            container.get("id"),
            bool(answer.get("listens")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HostError(f"{host}: facts that cannot be read: {error!r}"[:300]) from None


def _process(one: Mapping[str, Any]) -> Process:
    return Process(
        int(one["pid"]),
        str(one["command"]),
        tuple(sorted(one["variables"].items())),
        float(one["started_s"]),
        one.get("sees_switch"),
        str(one.get("python_path", "")),
    )
