"""The engine on the Sparks: where the client goes, and how the ranks are stopped and started.

Decides what has to be known of each kind of installation. Refuses to know vLLM's own settings.
"""

from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from dsparkctl.config.fields import HostName, RemotePath, Section, UnitName

Argument = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]
Command = Annotated[tuple[Argument, ...], Field(min_length=1, max_length=256)]
"""An argument list; no shell ever reads it."""


class EngineSettings(Section):
    """One engine, its ranks on their Sparks."""

    kind: Literal["env-file", "systemd", "docker", "venv"] = Field(
        description="env-file: your own launcher reads env_file; systemd: a unit; docker: a "
        "container that is recreated; venv: commands of yours"
    )
    ranks: tuple[HostName, ...] = Field(
        min_length=1, max_length=8, description="the ranks' hosts, rank 0 first"
    )
    start_order: tuple[int, ...] = Field(
        (0, 1), max_length=8, description="ranks in the order in which they start"
    )
    env_file: RemotePath = Field(
        PurePosixPath("/etc/dspark/client.env"), description="the client's variables, written whole"
    )
    python: RemotePath | None = Field(
        None, description="the engine's Python, into whose environment the client is installed"
    )
    mount: RemotePath | None = Field(
        None, description="instead: a folder of the host that the engine has on its PYTHONPATH"
    )
    unit: UnitName | None = Field(None, description="systemd: the engine's unit")
    container: Argument | None = Field(None, description="docker: the container's name")
    stop: Command | None = Field(None, description="ends the rank; by itself per kind")
    start: Command | None = Field(
        None, description="starts the rank anew (docker: recreates it), ends when it is on its way"
    )
    process: Argument = Field(
        "vllm", description="what the command line of the engine's running process contains"
    )
    rendezvous_port: int | None = Field(
        None, ge=1, le=65535, description="port that rank 0 opens before another rank may start"
    )
    start_timeout_s: float = Field(
        900.0, gt=0, le=86_400, description="for one rank to be up again"
    )
    stop_timeout_s: float = Field(120.0, gt=0, le=3_600, description="for one rank to be gone")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if sorted(self.start_order) != list(range(len(self.ranks))):
            raise ValueError(
                f"expected start_order to name each of {len(self.ranks)} ranks once, "
                f"got {list(self.start_order)}"
            )
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"expected each host once in ranks, got {', '.join(self.ranks)}")
        if (self.python is None) == (self.mount is None):
            raise ValueError(
                "expected python or mount, the place of the client, got "
                + ("neither" if self.python is None else "both")
            )
        needed = {"systemd": ("unit",), "docker": ("container", "start")}.get(self.kind, ())
        for key in needed:
            if getattr(self, key) is None:
                raise ValueError(f"expected {key} for an engine of kind {self.kind}, got nothing")
        if self.kind == "docker" and self.mount is None:
            raise ValueError(
                "expected mount for an engine of kind docker, got python: what is installed into a "
                "container goes with it"
            )
        return self
