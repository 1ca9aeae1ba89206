"""Two network namespaces with a cable between them: a direct link that a test may spoil."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.unit.rollout.local import LocalHost

_COUNTER = itertools.count()

MISSING = "network namespaces need root, ip and tc"


def can_have_namespaces() -> bool:
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        return False
    name = f"dspark-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    return made


@dataclass(frozen=True)
class Cable:
    """x86host (10.202.28.1) and spark-a (10.202.28.2), each on its `link0`."""

    worker: str
    spark: str
    """Names of the namespaces."""

    def at_worker(self, *argv: str) -> None:
        _do("ip", "netns", "exec", self.worker, *argv)

    def at_spark(self, *argv: str) -> None:
        _do("ip", "netns", "exec", self.spark, *argv)

    def hosts(self) -> dict[str, LocalHost]:
        return {
            "x86host": LocalHost("x86host", ("ip", "netns", "exec", self.worker)),
            "spark-a": LocalHost("spark-a", ("ip", "netns", "exec", self.spark)),
        }


@contextmanager
def cable() -> Iterator[Cable]:
    """The namespaces and what is in them are gone afterwards."""
    number = f"{os.getpid()}-{next(_COUNTER)}"
    made = Cable(f"dspark-{number}-x", f"dspark-{number}-s")
    try:
        for name in (made.worker, made.spark):
            _do("ip", "netns", "add", name)
        near = ("link0", "mtu", "9000", "netns", made.worker)
        far = ("link0", "mtu", "9000", "netns", made.spark)
        _do("ip", "link", "add", *near, "type", "veth", "peer", "name", *far)
        for act, address in ((made.at_worker, "10.202.28.1"), (made.at_spark, "10.202.28.2")):
            act("ip", "link", "set", "lo", "up")
            act("ip", "address", "add", f"{address}/24", "dev", "link0")
            act("ip", "link", "set", "link0", "up")
        yield made
    finally:
        for name in (made.worker, made.spark):
            if Path("/run/netns", name).exists():
                _do("ip", "netns", "delete", name)


def _do(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
