"""The roles and the command leave equal files on real hosts (issue 5, part 4)."""

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.hosts.fleet import BED, Bed
from tests.hosts.test_sparks import sparks

__all__ = ["sparks"]

ROOT = Path(__file__).parents[2]
ANSIBLE = ROOT / ".venv-ansible" / "bin"
KEPT = (".complete", "dspark-worker.service", "dspark.yaml", "manifest.json")


def written(bed: Bed) -> dict[str, str]:
    """What a deploy writes but for environments, by place and sha256."""
    x86host = bed.files("x86host")
    (release,) = (x86host / "opt/dspark/releases").iterdir()
    files = {f"release/{name}": release / name for name in KEPT}
    files["unit"] = x86host / "etc/systemd/system/dspark-worker.service"
    for host in ("spark-a", "spark-b"):
        files[f"{host} env"] = bed.files(host) / "etc/dspark/client.env"
        files[f"{host} drop-in"] = bed.files(host) / (
            "etc/systemd/system/vllm-stub.service.d/dspark.conf"
        )
    files |= {f"wheels/{wheel.name}": wheel for wheel in (release / "wheels").iterdir()}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def inventory(bed: Bed) -> str:
    return str(bed.folder / "inventory.sh")


def at_the_seat(bed: Bed, program: str, *arguments: str) -> str:
    """One of Ansible's programs, in `ansible/`; what it said."""
    done = subprocess.run(
        ["ip", "netns", "exec", "tb-ops", str(ANSIBLE / program), *arguments],
        cwd=ROOT / "ansible", capture_output=True, text=True, timeout=900,
        env={**os.environ, "ANSIBLE_SSH_ARGS": f"-F {BED / 'ssh_config'}", "ANSIBLE_NOCOLOR": "1",
             "DSPARK_INVENTORY": inventory(bed), "PATH": f"{ANSIBLE}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def play(bed: Bed, *flags: str) -> dict[str, dict[str, int]]:
    """ok, changed, failed of every host."""
    said = at_the_seat(bed, "ansible-playbook", "-i", inventory(bed), "site.yml", *flags)
    recap = re.findall(r"^(\S+) +: (ok=.*)$", said, re.MULTILINE)
    return {
        host: {key: int(n) for key, n in re.findall(r"(\w+)=(\d+)", numbers)}
        for host, numbers in recap
    }


@pytest.mark.complete
@pytest.mark.timeout(1500)
def test_the_roles_and_the_command_leave_equal_files(sparks: Bed) -> None:
    if not ANSIBLE.is_dir():
        pytest.skip("ROLES NOT TESTED: no Ansible; make test-hosts installs it")
    sparks.ok("undeploy", "--purge")
    sparks.ok("deploy", "x86host")
    sparks.ok("deploy", "sparks")
    by_command = written(sparks)
    identity = json.loads(sparks.ok("stats", "--json").out)["drafter_identity"]
    sparks.ok("undeploy", "--purge")
    for host in ("spark-a", "spark-b"):
        sparks.root(host, "rm", "-rf", "/etc/dspark", "/opt/dspark-client", "/opt/dspark-site",
                    "/etc/systemd/system/vllm-stub.service.d")  # fmt: skip
    said = sparks.ok("inventory", "--identity", identity).out
    (sparks.folder / "inventory.json").write_text(said)
    script = sparks.folder / "inventory.sh"
    script.write_text(f"#!/bin/sh\nexec cat {sparks.folder / 'inventory.json'}\n")
    script.chmod(0o755)

    first = play(sparks)
    assert all(host["changed"] > 0 for host in first.values())
    assert set(first) == {"x86host", "spark-a", "spark-b"}
    assert written(sparks) == by_command
    assert sparks.serves()
    for flags in (("--check", "--diff"), ()):
        again = play(sparks, *flags)
        assert {
            host: (one["changed"], one["failed"]) for host, one in again.items()
        } == dict.fromkeys(first, (0, 0))
    said = at_the_seat(sparks, "molecule", "test")
    assert "dempotence" in said
    judged = sparks.ok("deploy", "x86host")
    assert "activate" in judged.err
    assert "build" not in judged.err
    assert sparks.ok("deploy", "x86host").out == "no changes\n"
    assert sparks.ok("deploy", "sparks").out == "no changes\n"
