"""Which keys are offered to a host, and in which order.

Decides what `IdentitiesOnly` means (an agent's other keys are never tried) and that a server's
limit on attempts is not spent on keys that nobody named. Refuses passwords: a key is made in a
minute.
"""

import base64
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import paramiko
from paramiko.agent import AgentSSH

from dsparkctl.rollout.ssh.config import Route

_AGENT_TIMEOUT_S = 10.0


class Offer(NamedTuple):
    """One key to try."""

    key: paramiko.PKey
    where: str


class Ring:
    """The keys for one route; `passed_over` says of each that could not be used why."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self.passed_over: list[str] = []
        self._agent = _Agent(route.agent) if route.agent else None

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()

    def offers(self) -> Iterator[Offer]:
        """Keys that the configuration names, by the agent where it holds them; then the rest of the
        agent's, unless IdentitiesOnly."""
        held = [] if self._agent is None else list(self._agent.get_keys())
        offered: set[bytes] = set()
        for path in self._route.identities:
            public = _public_blob(path)
            by_agent = next((key for key in held if key.asbytes() == public), None)
            found = Offer(by_agent, f"agent, {path}") if by_agent else self._from_disk(path)
            if found is not None and found.key.asbytes() not in offered:
                offered.add(found.key.asbytes())
                yield found
        if not self._route.identities_only:
            for key in held:
                if key.asbytes() not in offered:
                    yield Offer(key, f"agent, {getattr(key, 'comment', '') or key.get_name()}")

    def _from_disk(self, path: Path) -> Offer | None:
        if not path.is_file():
            return None
        try:
            return Offer(paramiko.PKey.from_path(path), str(path))
        except (paramiko.SSHException, OSError, ValueError, TypeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            # What an encrypted key raises differs from format to format.
            is_encrypted = "password" in reason or "passphrase" in reason
            said = "is encrypted: ssh-add it" if is_encrypted else f"cannot be used: {reason}"
            self.passed_over.append(f"{path} {said}")
        return None


class _Agent(AgentSSH):
    """The agent at a socket of our choice; paramiko's own asks the environment alone."""

    def __init__(self, path: str) -> None:
        super().__init__()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(_AGENT_TIMEOUT_S)
        try:
            sock.connect(path)
            self._connect(sock)  # type: ignore[attr-defined]
        except (OSError, paramiko.SSHException):
            sock.close()  # an agent that is gone holds no keys

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def _public_blob(path: Path) -> bytes | None:
    """The public half that lies beside a private key: what an agent knows it by."""
    try:
        return base64.b64decode(path.with_name(path.name + ".pub").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
