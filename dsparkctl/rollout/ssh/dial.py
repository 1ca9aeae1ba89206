"""One connection to a host: socket, hops, key exchange, the host's key, authentication.

Decides every timeout on the way and the order of ciphers, and notices a dead link: the kernel gives
up unanswered bytes, and a thread asks the far sshd itself every few seconds, since a host behind a
hop can be dead while the hop acknowledges. Refuses to know what runs over it.
"""

import contextlib
import logging
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Final

import paramiko

from dsparkctl.rollout.host import SshError
from dsparkctl.rollout.ssh.config import Route
from dsparkctl.rollout.ssh.keys import Ring
from dsparkctl.rollout.ssh.known_hosts import Trust, judge, known_keys, write_down

CONNECT_TIMEOUT_S: Final = 10.0
"""Of each part by itself: TCP, banner and key exchange, authentication, a channel."""
_PULSE_EVERY_S: Final = 4.0
_PULSE_TIMEOUT_S: Final = 9.0
_USER_TIMEOUT_MS: Final = 10_000
_WINDOW_BYTES: Final = 16 << 20
_MAX_OFFERS: Final = 5
"""Servers cut at six attempts (MaxAuthTries) and name no reason."""

_CIPHERS: Final = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "aes128-ctr",
    "aes192-ctr",
    "aes256-ctr",
)
"""Fastest first: GCM needs no second pass for a MAC in Python."""

logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class Connection:
    """An authenticated transport, and those of the hops beneath it."""

    def __init__(
        self, name: str, transport: paramiko.Transport, below: "Connection | None"
    ) -> None:
        self.name = name
        self.transport = transport
        self._below = below
        self._closed = threading.Event()
        self._pulse = threading.Thread(target=self._ask_again, name=f"pulse {name}", daemon=True)
        self._pulse.start()

    @property
    def is_alive(self) -> bool:
        return bool(self.transport.is_active())

    def channel(self, open_one: Callable[[paramiko.Transport], paramiko.Channel]) -> Any:
        """A channel of this connection; SshError when the host gives none."""
        try:
            return open_one(self.transport)
        except (paramiko.SSHException, OSError, EOFError) as error:
            if not self.is_alive:
                raise self.lost() from None
            raise SshError(f"{self.name}: it opens no channel: {_said(error)}") from None

    def lost(self) -> SshError:
        return SshError(f"{self.name}: the connection was lost; is the host up and reachable?")

    def close(self) -> None:
        self._closed.set()
        self.transport.close()
        if self._pulse is not threading.current_thread():
            self._pulse.join(1.0)
        if self._below is not None:
            self._below.close()

    def _ask_again(self) -> None:
        while not self._closed.wait(_PULSE_EVERY_S) and self.is_alive:
            if not _answers(self.transport):
                self.transport.close()
                return


def _answers(transport: paramiko.Transport) -> bool:
    """Whether the far sshd answers a request that it need not know."""
    done = threading.Event()

    def ask() -> None:
        with contextlib.suppress(Exception):
            transport.global_request("keepalive@openssh.com", wait=True)
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    return done.wait(_PULSE_TIMEOUT_S)


def connect(name: str, route: Route, *, pinned: str | None, trust: Trust) -> Connection:
    """To the end of the route. `name` is what dspark.yaml calls the host; SshError otherwise.

    `pinned` is the fingerprint of the last host's key; hops are known by known_hosts files alone.
    """
    below: Connection | None = None
    try:
        for hop in route.hops:
            below = _through(below, f"{name} (by way of {hop.target})", hop, None, trust)
        return _through(below, name, route, pinned, trust)
    except BaseException:
        if below is not None:
            below.close()
        raise


def _through(
    below: Connection | None, name: str, route: Route, pinned: str | None, trust: Trust
) -> Connection:
    sock = _socket(name, route, below)
    transport: paramiko.Transport | None = None
    try:
        transport = paramiko.Transport(sock, default_window_size=_WINDOW_BYTES)
        _greet(transport, name, route, pinned, trust)
        _log_in(transport, name, route)
    except BaseException:
        if transport is not None:
            transport.close()
        sock.close()
        raise
    return Connection(name, transport, below)


def _socket(name: str, route: Route, below: Connection | None) -> Any:
    place = (route.address, route.port)
    if below is not None:
        return below.channel(
            lambda via: via.open_channel(
                "direct-tcpip", place, ("127.0.0.1", 0), timeout=CONNECT_TIMEOUT_S
            )
        )
    if route.proxy_command is not None:
        return _ProxySocket(_expanded(route))
    try:
        sock = socket.create_connection(place, timeout=CONNECT_TIMEOUT_S)
    except OSError as error:
        where = f"{route.address} port {route.port}"
        raise SshError(f"{name}: no connection to {where}: {error.strerror or error}") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(AttributeError, OSError):  # Linux alone has it
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    return sock


class _ProxySocket:
    """The near end of a socket whose far end is the proxy command's input and output."""

    def __init__(self, line: str) -> None:
        self._near, far = socket.socketpair()
        with far:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", line], stdin=far.fileno(), stdout=far.fileno()
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._near, name)

    def close(self) -> None:
        self._near.close()
        self._process.terminate()
        self._process.wait()


def _expanded(route: Route) -> str:
    """The tokens of ProxyCommand (ssh_config(5)); the shell is the one that ssh would run."""
    values = {"%h": route.address, "%p": str(route.port), "%r": route.user, "%n": route.target}
    text = route.proxy_command or ""
    for token, value in values.items():
        text = text.replace(token, shlex.quote(value))
    return "exec " + text.replace("%%", "%")


def _greet(
    transport: paramiko.Transport, name: str, route: Route, pinned: str | None, trust: Trust
) -> None:
    """Exchange keys and look at the host's."""
    known = known_keys(route.known_as, route.known_hosts)
    transport.banner_timeout = transport.handshake_timeout = CONNECT_TIMEOUT_S
    transport.auth_timeout = transport.channel_timeout = CONNECT_TIMEOUT_S
    options = transport.get_security_options()
    options.ciphers = [cipher for cipher in _CIPHERS if cipher in options.ciphers]
    kinds = {one.kind for one in known}
    options.key_types = sorted(options.key_types, key=lambda kind: _family(kind) not in kinds)
    try:
        transport.start_client(timeout=2 * CONNECT_TIMEOUT_S)
        key = transport.get_remote_server_key()
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise SshError(
            f"{name}: {route.address} port {route.port} does not speak SSH with us: {_said(error)}"
        ) from None
    kind, blob = key.get_name(), key.asbytes()
    if judge(route.known_as, kind, blob, known, pinned=pinned, trust=trust):
        write_down(route.known_as, kind, blob, route.known_hosts[0])


def _family(kind: str) -> str:
    """The kind as known_hosts files name it."""
    return "ssh-rsa" if kind.startswith("rsa-sha2-") else kind


def _log_in(transport: paramiko.Transport, name: str, route: Route) -> None:
    ring = Ring(route)
    tried: list[str] = []
    try:
        for key, where in ring.offers():
            if len(tried) == _MAX_OFFERS:
                tried.append("and no more, a server cuts at six: name one with IdentityFile")
                break
            tried.append(where)
            try:
                if not transport.auth_publickey(route.user, key):
                    return
                raise SshError(f"{name}: it asks for more than a key, which cannot be given")
            except paramiko.BadAuthenticationType as error:
                ways = ", ".join(error.allowed_types)
                raise SshError(f"{name}: it takes no keys for {route.user}, but {ways}") from None
            except paramiko.AuthenticationException:
                if not transport.is_active():
                    break
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise SshError(f"{name}: logging in as {route.user} failed: {_said(error)}") from None
    finally:
        ring.close()
    raise SshError(
        f"{name}: {route.user} is not let in: "
        + (f"tried {'; '.join(tried)}" if tried else "no key to try")
        + "".join(f"; {reason}" for reason in ring.passed_over)
    )


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
