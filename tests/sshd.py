"""A real sshd on a loopback port, with its own keys and configuration in a folder of the test."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 30.0
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
MISSING = "this needs a real sshd: apt-get install openssh-server (make system-packages)"


@dataclass
class Sshd:
    """A server that accepts `identity`; `config` is a client's ssh_config that leads to it."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def identity(self) -> Path:
        return self.folder / "id_ed25519"

    @property
    def config(self) -> Path:
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def host_key(self) -> str:
        """`kind base64` of the server's key."""
        return " ".join((self.folder / "host_ed25519.pub").read_text().split()[:2])

    def children(self) -> list[int]:
        """The processes of its connections, the latest last."""
        return sorted(_children_of({self.process.pid}))

    def family(self) -> list[int]:
        """The processes of its connections, and theirs: each holds the socket."""
        found, new = set[int](), {self.process.pid}
        while new := _children_of(new):
            found |= new
        return sorted(found)


def _children_of(parents: set[int]) -> set[int]:
    """By everybody's own word: the kernel's list of a process's children skips some while others
    come and go."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent in parents:
                found.add(int(path.parent.name))
    return found


def make_key(path: Path, *, passphrase: str = "") -> Path:
    """An ed25519 key pair at `path` and `path`.pub."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", path.name]
    subprocess.run([*command, "-f", str(path)], check=True)
    return path


@contextmanager
def running_sshd(folder: Path, *lines: str) -> Iterator[Sshd]:
    """Serves until the block ends; `lines` are added to its configuration."""
    assert SSHD is not None, MISSING
    folder.mkdir(parents=True, exist_ok=True)
    make_key(folder / "host_ed25519")
    make_key(folder / "id_ed25519")
    (folder / "authorized_keys").write_text((folder / "id_ed25519.pub").read_text())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    configuration = [
        f"ListenAddress 127.0.0.1:{port}",
        f"HostKey {folder / 'host_ed25519'}",
        f"AuthorizedKeysFile {folder / 'authorized_keys'}",
        f"PidFile {folder / 'pid'}",
        "Subsystem sftp internal-sftp",
        *("StrictModes no", "UsePAM no", "PasswordAuthentication no", "MaxStartups 100"),
        *("KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password", "UseDNS no"),
        *lines,
    ]
    (folder / "sshd_config").write_text("\n".join(configuration) + "\n")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # what it gives up its rights in
    with (folder / "log").open("wb") as log:
        command = [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")]
        process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
    server = Sshd(folder, port, process)
    server.known_hosts.write_text(f"[127.0.0.1]:{port} {server.host_key()}\n")
    server.config.write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {port}\n"
        f"Host *\n  IdentityFile {server.identity}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {server.known_hosts}\n  GlobalKnownHostsFile none\n"
    )
    try:
        _wait_for_banner(server)
        yield server
    finally:
        for pid in [*server.children(), process.pid]:
            for number in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    break
        process.wait()


def _wait_for_banner(server: Sshd) -> None:
    end_s = time.monotonic() + START_S
    while True:
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
                assert sock.recv(4) == b"SSH-"
                return
        except ConnectionRefusedError:
            assert server.process.poll() is None, (server.folder / "log").read_text()
            assert time.monotonic() < end_s, "sshd does not listen"
            time.sleep(0.05)
