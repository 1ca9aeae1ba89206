"""This machine in the role of a host: real commands, real files below a folder of its own.

A test double in two respects: `/opt/dspark`, `/etc/systemd/system` and their like stand below a
prefix, and `systemctl`, `journalctl` and `useradd` are scripts that keep their state in files there
(a started unit is a real process). Everything else is what a host would run. Needs root, since
plans give folders to owners.
"""

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from dsparkctl.rollout.host import (
    CommandFailed,
    CommandTimedOut,
    HostError,
    Progress,
    Ran,
)

MOVED: Final = ("/opt/dspark", "/etc/systemd/system", "/etc/dspark", "/run/dspark")
"""Folders of a host that stand below the prefix here, in arguments and paths."""


class LocalHost:
    """One machine below `prefix`; a `Host`."""

    def __init__(self, prefix: Path, name: str = "x86host") -> None:
        self._name = name
        self.prefix = prefix
        self.verbs: list[str] = []
        for folder in (*MOVED, "/bin"):
            at = Path(f"{prefix}{folder}")
            (at.parent if folder == "/opt/dspark" else at).mkdir(parents=True, exist_ok=True)
        for command, text in _COMMANDS.items():
            path = prefix / "bin" / command
            path.write_text(f"#!{sys.executable} -P\n{text}")
            path.chmod(0o755)

    @property
    def name(self) -> str:
        return self._name

    def local(self, text: object) -> str:
        """What stands for a host's path, or for a text with one in it, on this machine."""
        moved = str(text)
        for folder in MOVED:
            moved = moved.replace(folder, f"{self.prefix}{folder}")
        return moved

    def about_to(self, verb: str) -> None:
        """Called before every verb; tests let it raise."""
        self.verbs.append(verb)

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("HOME", "LANG") if key in os.environ}
        path = f"{self.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {**kept, "PATH": path, "PREFIX": str(self.prefix), "MOVED": ":".join(MOVED)}

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> Ran:
        self.about_to(" ".join(argv))
        try:
            ran = subprocess.run(
                [self.local(word) for word in argv],
                input=stdin,
                capture_output=True,
                timeout=timeout_s,
                env=self.environment,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            raise CommandTimedOut(f"{self._name}: {argv[0]}: over {timeout_s} s") from None
        except FileNotFoundError:
            return Ran(tuple(argv), 127, b"", f"{argv[0]}: not found".encode())
        code = 128 - ran.returncode if ran.returncode < 0 else ran.returncode
        return Ran(tuple(argv), code, ran.stdout, ran.stderr)

    def check(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> Ran:
        ran = self.run(argv, stdin=stdin, as_root=as_root, timeout_s=timeout_s)
        if ran.code:
            said = ran.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
            words = " ".join(argv)[:200]
            raise CommandFailed(f"{self._name}: {words}: exit code {ran.code}: {said[-1]}", ran)
        return ran

    def follow(
        self, argv: Sequence[str], line: Callable[[str], None], *, as_root: bool = False
    ) -> int:
        ran = self.run(argv)
        for text in ran.text.splitlines():
            line(text)
        return ran.code

    def put_file(
        self, local: Path, remote: PurePosixPath, *, sha256: str, progress: Progress | None = None
    ) -> None:
        self.about_to(f"put {remote}")
        part = Path(self.local(remote) + ".part")
        shutil.copyfile(local, part)
        if hashlib.sha256(part.read_bytes()).hexdigest() != sha256:
            raise HostError(f"{self._name}: {remote}: arrived with another sha256")
        part.replace(self.local(remote))

    def put_tree(
        self, files: Sequence[Path], remote: PurePosixPath, *, progress: Progress | None = None
    ) -> None:
        for file in files:
            self.about_to(f"put {remote / file.name}")
            shutil.copyfile(file, Path(self.local(remote)) / file.name)

    def write(
        self,
        path: PurePosixPath,
        data: bytes,
        *,
        mode: int = 0o644,
        owner: str | None = None,
        as_root: bool = False,
        timeout_s: float = 60.0,
    ) -> None:
        self.about_to(f"write {path}")
        final = Path(self.local(path))
        beside = final.with_name(f".{final.name}.new")
        try:
            beside.write_bytes(data)
            beside.chmod(mode)
            beside.replace(final)
        except OSError as error:
            raise HostError(f"{self._name}: {path}: {error.strerror}") from None

    def connect(self, address: str, port: int, *, timeout_s: float) -> socket.socket:
        try:
            return socket.create_connection((address, port), timeout_s)
        except OSError as error:
            raise HostError(f"{self._name}: {address}:{port}: {error}") from None

    def close(self) -> None:
        pass

    def power_off(self) -> None:
        """End what the fake systemd started."""
        for path in self.prefix.glob("*.pids"):
            for pid in path.read_text().split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue

    @property
    def journal(self) -> str:
        path = self.prefix / "journal"
        return path.read_text() if path.exists() else ""


_SYSTEMCTL: Final = '''
"""systemctl, as far as plans use it: state in files below $PREFIX, units are real processes."""
import json, os, pathlib, re, shlex, signal, subprocess, sys, time

PREFIX = pathlib.Path(os.environ["PREFIX"])
UNITS = PREFIX / "etc/systemd/system"
words = [word for word in sys.argv[1:] if not word.startswith("-")]
flags = [word for word in sys.argv[1:] if word.startswith("-")]
verb, name = words[0], words[1] if len(words) > 1 else ""
state_path = PREFIX / f"{name}.json"


def state():
    try:
        found = json.loads(state_path.read_text())
    except FileNotFoundError:
        found = {"active": "inactive", "pid": 0, "code": 0, "enabled": False}
    if found["active"] == "active" and not pathlib.Path(f"/proc/{found['pid']}").exists():
        code = PREFIX / f"{name}.{found['pid']}.code"
        found.update(active="failed", code=int(code.read_text() or 1) if code.exists() else 9)
        keep(found)
    return found


def keep(found):
    beside = state_path.with_suffix(".new")
    beside.write_text(json.dumps(found))
    beside.replace(state_path)


def start():
    text = (UNITS / name).read_text()
    command = re.search(r"^ExecStart=(.*)$", text, re.M)[1]
    for folder in os.environ["MOVED"].split(":"):
        command = command.replace(folder, f"{PREFIX}{folder}")
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        log = open(PREFIX / "journal", "ab")
        null = open(os.devnull)
        for fd in (0, 1, 2):
            os.dup2((null if fd == 0 else log).fileno(), fd)
        child = subprocess.Popen(shlex.split(command), cwd="/")
        with open(PREFIX / f"{name}.pids", "a") as pids:
            pids.write(f"{child.pid} ")
        os.write(write, str(child.pid).encode())
        os.close(write)
        code = child.wait()
        (PREFIX / f"{name}.{child.pid}.code").write_text(str(code))
        os._exit(0)
    os.close(write)
    pid = int(os.read(read, 20))
    keep(dict(state(), active="active", pid=pid))


def stop():
    now = state()
    if now["active"] == "active":
        os.kill(now["pid"], signal.SIGTERM)
        for _ in range(1000):
            if not pathlib.Path(f"/proc/{now['pid']}").exists():
                break
            time.sleep(0.01)
    keep(dict(now, active="inactive", pid=0))


if verb not in ("show", "is-active") and name and not (UNITS / name).exists():
    sys.exit(5)
if verb == "start":
    start()
elif verb == "stop":
    stop()
elif verb in ("enable", "disable"):
    if "--now" in flags:
        stop()
    keep(dict(state(), enabled=verb == "enable"))
elif verb == "is-active":
    print(state()["active"])
elif verb == "show":
    now = state()
    sub = {"active": "running", "failed": "failed"}.get(now["active"], "dead")
    unit = "enabled" if now["enabled"] else "disabled"
    said = {
        "ActiveState": now["active"],
        "SubState": sub,
        "UnitFileState": unit if (UNITS / name).exists() else "",
        "MainPID": now["pid"],
        "Result": "exit-code" if now["active"] == "failed" else "success",
        "ExecMainStatus": now["code"],
        "NRestarts": 0,
    }
    wanted = next(flag for flag in flags if flag.startswith("--property="))
    for key in wanted.partition("=")[2].split(","):
        print(said[key] if "--value" in flags else f"{key}={said[key]}")
'''

_JOURNALCTL: Final = """
import os, pathlib
path = pathlib.Path(os.environ["PREFIX"]) / "journal"
print("\\n".join(path.read_text().splitlines()[-20:]) if path.exists() else "")
"""

_COMMANDS: Final = {
    "systemctl": _SYSTEMCTL,
    "journalctl": _JOURNALCTL,
    "useradd": "",
    "userdel": "",
}
