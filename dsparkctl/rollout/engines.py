"""The kinds of engine: how each is stopped, started, and gets the client's variables.

Decides argument lists. docker: a container keeps the environment that it was created with, so it is
created anew by the operator's own command, never restarted.
"""

from pathlib import PurePosixPath

from dsparkctl.config.engine import EngineSettings


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


def stop(engine: EngineSettings) -> tuple[str, ...] | None:
    """None: the operator's own launcher ends it."""
    if engine.stop is not None:
        return engine.stop
    match engine.kind:
        case "systemd":
            return ("systemctl", "stop", str(engine.unit))
        case "docker":
            return ("docker", "rm", "--force", str(engine.container))
        case _:
            return None


def start(engine: EngineSettings) -> tuple[str, ...] | None:
    """Returns when the rank is on its way. None: the operator's own launcher starts it."""
    if engine.start is not None:
        return engine.start
    if engine.kind == "systemd":
        return ("systemctl", "start", "--no-block", str(engine.unit))
    return None
