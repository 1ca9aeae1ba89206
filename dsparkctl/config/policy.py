"""The client's policy (§10) as `dspark.yaml` names it, and how releases are kept and judged.

Decides names, ranges and defaults; a test holds the first against the client's own table of
variables (R40). Refuses to know how an env file is written.
"""

from pathlib import PurePosixPath
from typing import Literal, Self

from pydantic import Field, model_validator

from dsparkctl.config.fields import FilePath, RemotePath, Section


class PolicySettings(Section):
    """`VLLM_DSPARK_REMOTE_*` but for endpoint and identities, which follow from the rest."""

    policy: Literal["capacity", "resilience", "shadow"] = Field(
        "capacity", description="what a failed round means (§10)"
    )
    timeout_ms: float = Field(50.0, gt=0, le=10_000, description="deadline of a round (§10)")
    trip: int = Field(3, ge=0, le=1_000_000, description="failures that open the breaker; 0: off")
    cooldown: int = Field(256, ge=1, le=1_000_000, description="rounds it then stays open")
    on_fail: Literal["fallback", "raise"] = Field(
        "fallback", description="raise ends the engine; for benchmarks"
    )
    shadow_use: Literal["local", "remote"] = Field("local", description="whose drafts shadow uses")
    n_out: bool = Field(True, description="ask only for the positions that the depth needs (§6.3)")
    asynchronous: bool = Field(
        False, description="the engine's thread does not wait for replies (§4.2)"
    )
    spin_us: int = Field(
        0, ge=0, le=1_000_000, description="how long to look for a reply before sleeping"
    )
    switch_file: RemotePath = Field(
        PurePosixPath("/run/dspark/off"), description="while it exists nothing is sent"
    )
    record: RemotePath | None = Field(
        None, description="folder of the flight recorder on the Sparks; null: nothing is recorded"
    )
    record_mb: int = Field(64, ge=1, le=1 << 20, description="bound of its ring, in MiB")
    record_rows: bool = Field(False, description="record tap rows too, for a replay")
    log_interval_s: float = Field(60.0, ge=0, le=86_400, description="of the counters; 0: never")
    metrics_file: RemotePath | None = Field(None, description="Prometheus text of the client")

    @model_validator(mode="after")
    def _is_no_contradiction(self) -> Self:
        """What the client refuses when the engine starts is refused here, hours before."""
        for setting, met, needed in (
            ("shadow_use: remote", self.shadow_use != "remote" or self.policy == "shadow",
             "policy: shadow"),
            ("on_fail: raise", self.on_fail != "raise" or self.policy == "capacity",
             "policy: capacity"),
            ("asynchronous: true", not self.asynchronous or self.policy == "capacity",
             "policy: capacity"),
            ("record_rows: true", not self.record_rows or self.record, "record, a folder"),
            ("metrics_file", self.metrics_file is None or self.log_interval_s,
             "log_interval_s above 0: it is written as often"),
        ):  # fmt: skip
            if not met:
                raise ValueError(f"{setting} needs {needed}")
        return self


class ReleaseSettings(Section):
    """Where releases lie on the worker's host, and what makes one good."""

    root: RemotePath = Field(PurePosixPath("/opt/dspark"), description="folder of the releases")
    keep: int = Field(3, ge=2, le=100, description="complete, healthy releases to keep")
    wheelhouse: FilePath | None = Field(
        None, description="folder of wheels for the worker's host; null: made from pip's index"
    )
    python: RemotePath = Field(
        PurePosixPath("/usr/bin/python3"), description="the host's Python, 3.11 or newer"
    )
    gate_timeout_s: float = Field(
        600.0, gt=0, le=86_400, description="for a new worker to hash, load and answer"
    )
    settle_s: float = Field(10.0, ge=0, le=3_600, description="before the gate looks once more")
    lock_lease_s: float = Field(
        60.0, ge=5, le=3_600, description="after which a lock nobody touches is free"
    )
