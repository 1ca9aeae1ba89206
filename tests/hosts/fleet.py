"""Three booted hosts, and what happens to hosts: power cuts, links that break, keys that change."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).parent
SCRIPT = HERE / "testbed.sh"
BED = Path("/var/tmp/dspark-testbed")
CHECKPOINT = HERE.parents[1] / "dsparkctl" / "demo" / "checkpoint-exl3"
PATIENCE_S = 600.0
NEEDED = ("systemd-nspawn", "mmdebstrap", "ip", "nft", "ssh", "sshd")


class Said(NamedTuple):
    """How a command line ended."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"


def why_not() -> str:
    """Why no hosts can be booted here, or an empty string."""
    if os.getuid() != 0:
        return "not root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    return f"without {', '.join(missing)} (make system-packages)" if missing else ""


def bed_verb(*arguments: str) -> None:
    """One verb of testbed.sh, its words shown when it fails."""
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, f"testbed.sh {' '.join(arguments)}: {done.stdout}{done.stderr}"


@dataclass
class Bed:
    """The hosts, and the operator's folder with a `dspark.yaml`."""

    folder: Path
    wheelhouse: Path
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config = {
            "version": 1,
            "hosts": {name: {"user": "deploy"} for name in ("x86host", "spark-a", "spark-b")},
            "links": [
                {"host": "spark-a", "bind": "10.202.28.2", "peer": "10.202.28.1", "rate_gbit": 1.0},
                {"host": "spark-b", "bind": "10.202.28.6", "peer": "10.202.28.5", "rate_gbit": 1.0},
            ],
            "worker": {
                "host": "x86host",
                "checkpoint": "/srv/dspark/checkpoint",
                "receipt": "/srv/dspark/checkpoint/DSPARK_COPY_DONE",
                "listen": "tcp://10.202.28.1:18620",
                "admin": ["tcp://127.0.0.1:18630", "tcp://10.202.28.1:18630"],
                "max_model_len": 4096,
            },
            "release": {
                "wheelhouse": str(self.wheelhouse),
                "settle_s": 1.0,
                "gate_timeout_s": 120.0,
                "lock_lease_s": 8.0,
            },
        }
        self.write()

    def write(self) -> None:
        (self.folder / "dspark.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False))

    def command(self, *arguments: str) -> list[str]:
        """`dsparkctl` at the operator's seat."""
        program = "from dsparkctl.cli.app import main; main()"
        return ["ip", "netns", "exec", "tb-ops", sys.executable, "-P", "-c", program, *arguments]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "DSPARK_SSH_CONFIG": str(BED / "ssh_config")}

    def cli(self, *arguments: str) -> Said:
        done = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment(),
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: str) -> Said:
        """The same; it has to end with 0."""
        said = self.cli(*arguments)
        assert said.code == 0, said
        return said

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """The same in the background; its stderr can be read line by line."""
        return subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
        )

    def root(self, host: str, *argv: str) -> str:
        """A command as root on a host, past our own code: by ssh itself."""
        import shlex

        done = subprocess.run(
            ["ip", "netns", "exec", "tb-ops", "ssh", "-F", str(BED / "ssh_config"),
             f"root@{host}", shlex.join(argv)],
            capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{host}: {argv}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def files(self, host: str) -> Path:
        """The host's own root, seen from here."""
        return BED / "hosts" / host / "root"

    def serves(self) -> str:
        """The release that serves, once its worker says that it drafts."""
        end_s = time.monotonic() + 60
        while True:
            state = self.root("x86host", "sh", "-c", "systemctl is-active dspark-worker || true")
            if state == "active":
                return self.root("x86host", "readlink", "/opt/dspark/current").split("/")[-1]
            assert time.monotonic() < end_s, state
            time.sleep(0.5)

    def power_cut(self, host: str) -> None:
        bed_verb("poweroff", host)

    def power_on(self, host: str) -> None:
        bed_verb("poweron", host)

    def history(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.ok("history", "--json", "-n", "1000").out)[
            "history"
        ]
        return found
