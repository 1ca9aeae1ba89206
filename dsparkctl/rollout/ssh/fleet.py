"""The hosts of one `dspark.yaml`, each with at most one connection.

Decides how a host's section becomes a route. What is left out there is ssh_config's to say.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dsparkctl.config.fleet import Fleet
from dsparkctl.config.hosts import HostSettings
from dsparkctl.rollout.host import SshError
from dsparkctl.rollout.ssh.config import route_to
from dsparkctl.rollout.ssh.known_hosts import Trust
from dsparkctl.rollout.ssh.machine import SshHost
from dsparkctl.rollout.ssh.sudo import AskPassword


class Hosts:
    """By name; a name that dspark.yaml does not know is taken for an alias of ssh_config."""

    def __init__(
        self,
        fleet: Fleet | None,
        *,
        trust: Trust,
        ask_password: AskPassword,
        ssh_config: Path | None,
        closing: ExitStack,
    ) -> None:
        self._settings = fleet.hosts if fleet else {}
        self._trust = trust
        self._ask_password = ask_password
        self._ssh_config = ssh_config
        self._closing = closing
        self._open: dict[str, SshHost] = {}

    def __getitem__(self, name: str) -> SshHost:
        if name not in self._open:
            if name.startswith("-") or not name.isprintable() or not name:
                raise SshError(f"{name!a}: no name for a host")
            self._open[name] = host = self._made(name, self._settings.get(name) or HostSettings())
            self._closing.callback(host.close)
        return self._open[name]

    def _made(self, name: str, settings: HostSettings) -> SshHost:
        route = route_to(
            settings.ssh or name,
            user=settings.user,
            port=settings.port,
            jump=settings.jump,
            file=self._ssh_config,
        )
        return SshHost(
            name,
            route,
            pinned=settings.host_key,
            trust=self._trust,
            sudo=settings.sudo,
            ask_password=self._ask_password,
        )


@contextmanager
def open_hosts(
    fleet: Fleet | None,
    *,
    trust: Trust = Trust.STRICT,
    ask_password: AskPassword,
    ssh_config: Path | None = None,
) -> Iterator[Hosts]:
    """Hosts that connect at their first use, and are closed together."""
    with ExitStack() as closing:
        yield Hosts(
            fleet,
            trust=trust,
            ask_password=ask_password,
            ssh_config=ssh_config,
            closing=closing,
        )
