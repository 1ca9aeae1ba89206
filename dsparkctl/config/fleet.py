"""`dspark.yaml`: what stands where, as strict models.

Decides which sections there are and what must agree between them. Refuses to know the file: lines
and messages are `dsparkctl.config.source`'s; each section has a module of its own.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dsparkctl.config.engine import EngineSettings
from dsparkctl.config.fields import HostName, Section
from dsparkctl.config.hosts import HostSettings, LinkSettings
from dsparkctl.config.policy import PolicySettings, ReleaseSettings
from dsparkctl.config.worker import WorkerSection
from dsparkctl.contract.endpoint import Endpoint


class Fleet(Section):
    """The whole of `dspark.yaml`; a worker on this machine needs no more than its own section."""

    version: int = Field(ge=1, le=1, description="of this file's form")
    hosts: Annotated[dict[HostName, HostSettings], Field(max_length=64)] = Field(
        {}, description="the machines, by the names that the other sections use"
    )
    links: Annotated[tuple[LinkSettings, ...], Field(max_length=16)] = Field(
        (), description="the direct links between a Spark and the worker's host (§4.1)"
    )
    worker: WorkerSection
    engine: EngineSettings | None = Field(None, description="the engine on the Sparks")
    policy: PolicySettings = Field(PolicySettings(), description="the client's (§10)")
    release: ReleaseSettings = Field(ReleaseSettings(), description="how releases are kept")

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        named = [("worker.host", self.worker.host)]
        named += [(f"links[{i}].host", link.host) for i, link in enumerate(self.links)]
        if self.engine:
            named += [(f"engine.ranks[{i}]", host) for i, host in enumerate(self.engine.ranks)]
        for key, host in named:
            if host is not None and host not in self.hosts:
                raise ValueError(f"expected {key} to be one of hosts, got {host}")
        return self

    def link_of_rank_0(self) -> LinkSettings | None:
        """The link over which the only client reaches the worker (§4.1)."""
        if self.engine is None:
            return None
        return next((link for link in self.links if link.host == self.engine.ranks[0]), None)

    def engine_endpoint(self) -> Endpoint | None:
        """What rank 0 dials: the worker's data port on that link, from the Spark's own address."""
        link = self.link_of_rank_0()
        if link is None:
            return None
        listen = self.worker.listen
        return Endpoint(listen.scheme, link.peer, listen.port, bind=link.bind)
