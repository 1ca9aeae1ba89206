"""Hosts and the direct links between them: who is reached how, and over what the engine drafts.

Decides how a host is named for SSH and what is expected of a link. Refuses to know what happens
there, and never takes an address for a name: `ssh` is for the operator, `links` for the engine.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from dsparkctl.config.fields import Address, EnvText, HostName, Section


class HostSettings(Section):
    """One host. What is left out is taken from ssh_config, as `ssh -G` resolves it."""

    ssh: EnvText | None = Field(
        None, description="alias or name for ssh; null: the host's name here"
    )
    user: EnvText | None = Field(None, description="account to log in with")
    port: int | None = Field(None, ge=1, le=65535, description="of its sshd")
    jump: EnvText | None = Field(None, description="hosts to go through, as in ProxyJump")
    sudo: bool = Field(True, description="use sudo where root is needed; false: log in as root")
    host_key: Annotated[str, StringConstraints(pattern=r"^SHA256:[A-Za-z0-9+/]{43}$")] | None = (
        Field(None, description="fingerprint its key must have, SHA256:...")
    )


class LinkSettings(Section):
    """One direct link from a Spark to the worker's host (§4.1); nothing here ever changes it."""

    host: HostName = Field(description="the Spark, one of hosts")
    bind: Address = Field(description="the Spark's own address on the link")
    peer: Address = Field(description="the worker's address on it")
    mtu: int = Field(9000, ge=576, le=65535, description="bytes, at both ends")
    rate_gbit: float = Field(
        10.0, gt=0, le=1000, description="what the link should carry, in Gbit/s"
    )
