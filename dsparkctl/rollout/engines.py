"""The kinds of engine: how each is stopped, started, looked at, and told of its variables.

Decides argument lists and what of a host is looked at. docker: a container keeps the environment
that it was created with, so it is removed and created anew by the operator's own command, never
restarted.
"""

import math
from pathlib import PurePosixPath
from typing import Any

from dsparkctl.config.engine import EngineSettings
from dsparkctl.rollout.render import RenderError

Command = tuple[str, ...]


def drop_in(engine: EngineSettings) -> tuple[PurePosixPath, bytes] | None:
    """The file that tells a systemd unit of the variables, and its path; other kinds read the env
    file by the operator's own command."""
    if engine.kind != "systemd":
        return None
    path = PurePosixPath(f"/etc/systemd/system/{engine.unit}.d/dspark.conf")
    text = f"# Written by dsparkctl.\n[Service]\nEnvironmentFile={engine.env_file}\n"
    if engine.mount is not None:
        text += f"Environment=PYTHONPATH={engine.mount}\n"
    return path, text.encode()


def processes(engine: EngineSettings) -> dict[str, Any]:
    """What `on_host/engine_facts.py` has to know to find the running engine."""
    match engine.kind:
        case "systemd":
            return {"unit": engine.unit}
        case "docker":
            return {"container": engine.container}
        case _:
            return {"process": engine.process}


def files(engine: EngineSettings) -> dict[str, Any]:
    """What it has to know to see the files that a deploy writes."""
    extra = drop_in(engine)
    return {
        "env_file": str(engine.env_file),
        "drop_in": str(extra[0]) if extra else None,
        "python": str(engine.python) if engine.python else None,
        "mount": str(engine.mount) if engine.mount else None,
    }


def stop(engine: EngineSettings) -> Command:
    """Ends the rank. RenderError when nobody has said how."""
    if engine.stop is not None:
        return engine.stop
    match engine.kind:
        case "systemd":
            return ("systemctl", "stop", str(engine.unit))
        case "docker":
            patience_s = max(1, math.floor(engine.stop_timeout_s) - 10)
            return ("docker", "stop", "--time", str(patience_s), str(engine.container))
        case _:
            raise _unknown(engine, "stop")


def remove(engine: EngineSettings) -> Command | None:
    """What has to go before `start` can create it anew."""
    if engine.kind == "docker" and engine.stop is None:
        return ("docker", "rm", str(engine.container))
    return None


def start(engine: EngineSettings) -> Command:
    """Ends when the rank is on its way. RenderError when nobody has said how."""
    if engine.start is not None:
        return engine.start
    if engine.kind == "systemd":
        return ("systemctl", "start", "--no-block", str(engine.unit))
    raise _unknown(engine, "start")


def journal(engine: EngineSettings, n_lines: int) -> Command | None:
    """Shows what a rank said last; None where nobody has said where that stands."""
    if engine.kind == "docker":
        return ("docker", "logs", "--tail", str(n_lines), str(engine.container))
    if engine.unit is None:
        return None
    return unit_journal(engine.unit, n_lines)


def unit_journal(unit: str, n_lines: int) -> Command:
    """The same of any unit."""
    return ("journalctl", "-u", unit, "-n", str(n_lines), "--no-pager", "-o", "short-iso")


def _unknown(engine: EngineSettings, key: str) -> RenderError:
    return RenderError(
        f"engine.{key}: missing; --restart needs it for an engine of kind {engine.kind}: the "
        "command, as a list"
    )
