"""What OpenSSH would do for a host: `ssh -G`, which knows aliases, Include, Match and all the rest.

Decides which of its answers count. Re-implementing ssh_config is how tools go wrong (no Include,
Match taken for true), so it is asked. Where there is no ssh, paramiko's own reader takes its place,
and `is_partial` says so.
"""

import getpass
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dsparkctl.rollout.host import SshError

_ASK_TIMEOUT_S: Final = 10.0
_MAX_HOPS: Final = 8


@dataclass(frozen=True, slots=True)
class Route:
    """How one host is reached."""

    target: str
    """What was asked for: an alias or a name."""
    address: str
    port: int
    user: str
    known_as: str
    """The name under which its key is known: HostKeyAlias, or the address with a port not 22."""
    known_hosts: tuple[Path, ...] = ()
    """The user's files first."""
    identities: tuple[Path, ...] = ()
    identities_only: bool = False
    agent: str | None = None
    """The agent's socket; None: no agent."""
    proxy_command: str | None = None
    hops: tuple["Route", ...] = field(default=(), repr=False)
    """The hosts to go through, nearest first."""
    is_partial: bool = False
    """Whether only a part of ssh_config was understood."""


def route_to(
    target: str,
    *,
    user: str | None = None,
    port: int | None = None,
    jump: str | None = None,
    file: Path | None = None,
) -> Route:
    """The route to `target`; what is given wins over the configuration, which may be `file`.

    SshError when ssh itself cannot make sense of it.
    """
    overrides: list[str] = []
    if user is not None:
        overrides += ["-l", user]
    if port is not None:
        overrides += ["-p", str(port)]
    if jump is not None:
        overrides += ["-J", jump]
    return _route(target, overrides, file, depth=0)


def _route(target: str, overrides: Sequence[str], file: Path | None, depth: int) -> Route:
    if depth > _MAX_HOPS:
        raise SshError(f"{target}: more than {_MAX_HOPS} hosts to jump through; a loop?")
    if shutil.which("ssh") is None:
        return _partial(target, overrides, file)
    said = _ask(target, overrides, file)
    found = read_answer(target, said)
    jumps = said.get("proxyjump", [""])[0]
    if jumps in ("", "none"):
        return found
    hops: list[Route] = []
    for hop in jumps.split(","):
        name, flags = split_hop(hop)
        hops += _flat(_route(name, flags, file, depth + 1))
    return replace(found, hops=tuple(hops))


def _flat(route: Route) -> list[Route]:
    """A hop that has hops of its own comes behind them."""
    return [*route.hops, replace(route, hops=())]


def split_hop(hop: str) -> tuple[str, list[str]]:
    """`[user@]host[:port]` or `ssh://…` of ProxyJump -> the name, and flags for ssh."""
    rest = hop.strip().removeprefix("ssh://").rstrip("/")
    user, at, place = rest.rpartition("@")
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdecimal() or ("]" not in host and ":" in host):
        host, port = place, ""
    flags = ["-l", user] if at else []
    flags += ["-p", port] if port else []
    return host.strip("[]"), flags


def _ask(target: str, overrides: Sequence[str], file: Path | None) -> dict[str, list[str]]:
    """Every answer of `ssh -G` by its key, in order."""
    given = [] if file is None else ["-F", str(file)]
    command = ["ssh", "-G", *given, *overrides, "--", target]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SshError(f"{target}: ssh -G does not answer: {error}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SshError(f"{target}: ssh -G refuses it: {reason}")
    answers: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        answers.setdefault(key, []).append(value)
    return answers


def read_answer(target: str, said: dict[str, list[str]]) -> Route:
    """The route in the answers of `ssh -G`, without its hops."""

    def one(key: str, default: str = "") -> str:
        return said.get(key, [default])[0]

    address, port = one("hostname", target), int(one("port", "22"))
    alias = one("hostkeyalias", "none")
    command = one("proxycommand", "none")
    known = f"{one('userknownhostsfile')} {one('globalknownhostsfile')}".split()
    return Route(
        target=target,
        address=address,
        port=port,
        user=one("user") or getpass.getuser(),
        known_as=name_of(address, port) if alias == "none" else alias,
        known_hosts=tuple(_expanded(name) for name in known if name not in ("none", "/dev/null")),
        identities=tuple(
            _expanded(name) for name in said.get("identityfile", ()) if name != "none"
        ),
        identities_only=one("identitiesonly", "no") == "yes",
        agent=_agent(one("identityagent", "SSH_AUTH_SOCK")),
        proxy_command=None if command == "none" else command,
    )


def name_of(address: str, port: int) -> str:
    """As known_hosts files spell it."""
    return address if port == 22 else f"[{address}]:{port}"


def _agent(said: str) -> str | None:
    if said == "none":
        return None
    if said == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if said.startswith("$"):
        return os.environ.get(said.strip("${}")) or None
    return str(_expanded(said))


def _expanded(name: str) -> Path:
    return Path(name).expanduser()


def _partial(target: str, overrides: Sequence[str], file: Path | None) -> Route:
    """Without an ssh: no Include, no Match, no ProxyJump."""
    import paramiko

    source = file or Path("~/.ssh/config").expanduser()
    config = paramiko.SSHConfig.from_path(str(source)) if source.is_file() else paramiko.SSHConfig()
    found: Mapping[str, Any] = config.lookup(target)
    said = {key: value if isinstance(value, list) else [value] for key, value in found.items()}
    flags = dict(zip(overrides[::2], overrides[1::2], strict=True))
    for flag, key in (("-l", "user"), ("-p", "port")):
        if flag in flags:
            said[key] = [flags[flag]]
    if "-J" in flags or "proxyjump" in said:
        raise SshError(f"{target}: jumping through another host needs OpenSSH's ssh; install it")
    said.setdefault("userknownhostsfile", ["~/.ssh/known_hosts"])
    said.setdefault("globalknownhostsfile", ["/etc/ssh/ssh_known_hosts"])
    said.setdefault("identityfile", [f"~/.ssh/id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")])
    return replace(read_answer(target, said), is_partial=True)
