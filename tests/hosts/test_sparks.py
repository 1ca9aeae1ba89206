"""The client on two real hosts, doctor and status (issue 5, parts 2 and 5)."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.config.hello import HelloParams
from dsparkctl.contract.layout import pack
from dsparkctl.exits import Exit
from tests.hosts.fleet import BED, CHECKPOINT, Bed

UNIT = "vllm-stub.service"
ENV = "etc/dspark/client.env"


@pytest.fixture
def sparks(deployed: Bed) -> Iterator[Bed]:
    """A worker that serves, and a stub engine that is installed on both Sparks and does not run."""
    shape = read_model_config(find_files(CHECKPOINT))
    hello = HelloParams.from_checkpoint(shape, drafter_identity=bytes(32), max_model_len=4096)
    for rank, host in enumerate(("spark-a", "spark-b")):
        stub = deployed.files(host) / "opt" / "stub"
        stub.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("stub_engine.py"), stub)
        (stub / "hello.bin").write_bytes(pack(hello.record()))
        run = f"/usr/bin/python3 /opt/stub/stub_engine.py {rank} /opt/stub/hello.bin 10.202.28.9"
        (deployed.files(host) / "etc/systemd/system" / UNIT).write_text(
            f"[Unit]\nDescription=stub of vLLM\n[Service]\nExecStart={run}\n"
        )
        deployed.root(host, "systemctl", "daemon-reload")
    deployed.config["engine"] = {
        "kind": "systemd", "ranks": ["spark-a", "spark-b"], "unit": UNIT,
        "mount": "/opt/dspark-site", "rendezvous_port": 29501, "start_timeout_s": 60.0,
        "stop_timeout_s": 30.0,
    }  # fmt: skip
    deployed.write()
    yield deployed
    for host in ("spark-a", "spark-b"):
        deployed.root(host, "systemctl", "stop", UNIT)
    del deployed.config["engine"]
    deployed.write()


def test_the_client_is_installed_restarted_in_order_and_proved_live(sparks: Bed) -> None:
    sparks.ok("undeploy", "--sparks")
    planned = sparks.cli("deploy", "sparks", "--diff")
    assert planned.code == Exit.DRIFT
    assert "+VLLM_DSPARK_REMOTE_ENDPOINT=tcp://10.202.28.1:18620?bind=10.202.28.2" in planned.out
    first = sparks.ok("deploy", "sparks")
    assert "spark-a, spark-b: installed, not live: no engine runs there" in first.err
    assert sparks.root("spark-a", "sh", "-c", f"systemctl is-active {UNIT} || true") == "inactive"
    started = sparks.ok("deploy", "sparks", "--restart")
    order = [line for line in started.err.splitlines() if ": start rank" in line]
    assert order == ["spark-a: start rank 0", "spark-b: start rank 1"]
    for flags in ((), ("--restart",), ("--dry-run",)):
        assert sparks.ok("deploy", "spark", *flags).out == "no changes\n"
    assert sparks.ok("status", "--drift")
    stats = json.loads(sparks.ok("stats", "--json").out)
    assert stats["steps"] > 0

    # Rank 1 runs with something else than the file says: a stale variable is told by name.
    env = sparks.files("spark-b") / ENV
    text = env.read_text()
    env.write_text(text.replace("_TRIP=3", "_TRIP=9"))
    sparks.root("spark-b", "systemctl", "restart", UNIT)
    env.write_text(text)
    drifted = sparks.cli("status", "--drift")
    assert drifted.code == Exit.DRIFT
    assert "VLLM_DSPARK_REMOTE_TRIP is stale" in drifted.out
    sparks.ok("deploy", "sparks", "--restart")
    sparks.ok("status", "--drift")

    # Code that came after the engine began does not run in it, though every file is right.
    sparks.root("spark-b", "touch", "/opt/dspark-site/dsparkctl/__init__.py")
    older = sparks.cli("status", "--drift")
    assert older.code == Exit.DRIFT
    assert "the engine runs since before this client was installed" in older.out
    assert "spark-b: start rank 1" in sparks.ok("deploy", "sparks", "--restart").err
    sparks.ok("status", "--drift")

    # The engine that runs says itself that it sees the switch.
    assert "rank 0's engine sees it" in sparks.ok("drafting", "off").out
    assert "rank 0's engine sees it" in sparks.ok("drafting", "on").out
    told = sparks.ok("history").out
    assert "drafting off" in told
    assert "drafting on" in told

    # What an engine runs on is not taken from under it.
    refused = sparks.cli("undeploy", "--sparks")
    assert refused.code == Exit.FAILED
    assert "the engine runs on this client; stop it on every rank first" in refused.err
    for host in ("spark-a", "spark-b"):
        sparks.root(host, "systemctl", "stop", UNIT)
    sparks.ok("undeploy", "--sparks")
    assert sparks.ok("undeploy", "--sparks").out == "no changes\n"
    assert not (sparks.files("spark-a") / ENV).exists()


def test_drafting_is_switched_off_and_on_without_a_restart(sparks: Bed) -> None:
    file = sparks.files("spark-a") / "run/dspark/off"
    before = sparks.root("spark-a", "cat", "/proc/1/stat")
    assert "drafting is off" in sparks.ok("drafting", "off").out
    assert sparks.root("spark-a", "sh", "-c", "test -e /run/dspark/off && echo yes") == "yes"
    assert "drafting is off" in sparks.ok("drafting", "status").out
    assert "drafting is on" in sparks.ok("drafting", "on").out
    assert before
    assert not file.exists()


def test_a_file_that_changed_on_the_workers_host_is_drift(deployed: Bed) -> None:
    deployed.ok("status", "--drift")
    config = deployed.files("x86host") / "opt/dspark/current/dspark.yaml"
    real = deployed.files("x86host") / "opt/dspark/releases" / deployed.serves() / "dspark.yaml"
    text = real.read_text()
    real.write_text(text + "# by hand\n")
    try:
        said = deployed.cli("status", "--drift")
        assert said.code == Exit.DRIFT
        assert "changed: dspark.yaml" in said.out
    finally:
        real.write_text(text)
    assert config.name == "dspark.yaml"


def test_a_doctor_finds_these_hosts_well_and_an_mtu_that_differs_not(deployed: Bed) -> None:
    said = deployed.ok("doctor")
    assert "9000 bytes reach 10.202.28.1 in one piece" in said.out
    assert "ok    x86host  version     worker: " in said.out
    assert " Gbit/s (0.18 MB in " in said.out
    assert "fail" not in said.out
    far = ["ip", "-n", "tb-spark-a", "link", "set", "dA", "mtu"]
    subprocess.run([*far, "1500"], check=True)
    try:
        sick = deployed.cli("doctor")
        assert sick.code == Exit.PREFLIGHT
        assert "dA has 1500, 9000 is wanted" in sick.out
        assert "-> sudo ip link set dev dA mtu 9000" in sick.out
        assert "9000 bytes in one piece do not" in sick.out
    finally:
        subprocess.run([*far, "9000"], check=True)
    deployed.ok("doctor", "--limit", "spark-a")


def test_probe_and_stats_reach_the_worker_through_its_hosts_ssh(deployed: Bed) -> None:
    """R37: its admin listener is on loopback there."""
    said = deployed.ok("probe", "--json")
    assert json.loads(said.out)["answered"] == 4
    assert "through the SSH of x86host" in said.err
    named = deployed.ok("stats", "tcp://127.0.0.1:18630", "--via", "x86host", "--json")
    assert json.loads(named.out)["self_test_ok"] is True
    assert deployed.ok("reset", "--all", "--yes").out.startswith("tcp://127.0.0.1:18630")
    refused = deployed.cli("stats", "tcp://127.0.0.1:18631", "--via", "x86host")
    assert refused.code == Exit.FAILED
    assert "nothing answers there" in refused.err
    unknown = deployed.cli("stats", "tcp://127.0.0.1:18630", "--via", "nowhere.invalid")
    assert unknown.code == Exit.SSH


def test_the_direct_link_is_measured_on_a_spark_with_nothing_installed_there(deployed: Bed) -> None:
    """R38: the admin listener on the link's own address, from the far end of the link."""
    endpoint = "tcp://10.202.28.1:18630?bind=10.202.28.2"
    said = deployed.ok("probe", endpoint, "--from", "spark-a", "--count", "20", "--json")
    assert json.loads(said.out)["answered"] == 20
    refused = deployed.cli("probe", "tcp://10.202.28.1:18620", "--from", "spark-a")
    assert refused.code == Exit.USAGE
    assert "the data listener" in refused.err
    lost = deployed.cli("probe", "tcp://10.202.28.1:18631", "--from", "spark-a", "--count", "2")
    assert lost.code == Exit.FAILED


def test_a_variable_that_nobody_reads_is_inert(sparks: Bed) -> None:
    sparks.ok("deploy", "sparks")
    env = sparks.files("spark-a") / ENV
    env.write_text(env.read_text() + "VLLM_DSPARK_MAGIC=1\n")
    unknown = sparks.ok("doctor", "env")
    assert "of 1 of " in unknown.err, "there is no vllm that could read it"
    vllm = sparks.files("spark-a") / "usr/lib/python3/dist-packages/vllm"
    vllm.mkdir()
    (vllm / "envs.py").write_text('OTHER = "VLLM_DSPARK_OTHER"\n')
    said = sparks.cli("doctor", "env")
    shutil.rmtree(vllm)
    assert said.code == Exit.DRIFT
    rows = {line.split()[1]: line for line in said.out.splitlines() if line.startswith("spark-a")}
    assert "INERT" in rows["VLLM_DSPARK_MAGIC"]
    assert "consumed" in rows["VLLM_DSPARK_REMOTE_TRIP"]
    sparks.ok("deploy", "sparks")
    sparks.ok("doctor", "env")


def test_sudo_takes_a_right_password_and_refuses_a_wrong_one(bed: Bed) -> None:
    """A user whose sudo asks: the password travels on stdin, and the command's input behind it."""
    program = """
import sys
from pathlib import Path
from dsparkctl.rollout.host import SudoError
from dsparkctl.rollout.ssh.config import route_to
from dsparkctl.rollout.ssh.machine import SshHost
route = route_to("x86host", user="deploypw", file=Path(sys.argv[1]))
right = SshHost("x86host", route, ask_password=lambda _: "sudo-secret")
assert right.run(("id", "-u"), as_root=True).text == "0"
assert right.run(("cat",), stdin=b"all of it", as_root=True).stdout == b"all of it"
seen = right.run(("ps", "-eo", "args"), as_root=True).text
assert "sudo-secret" not in seen and "sudo-secret" not in repr(right._root)
right.close()
wrong = SshHost("x86host", route, ask_password=lambda _: "no")
try:
    wrong.run(("true",), as_root=True)
except SudoError as error:
    assert "sudo takes no such password" in str(error), error
else:
    raise AssertionError
wrong.close()
"""
    seat = bed.command()[:4]
    subprocess.run([*seat, sys.executable, "-c", program, str(BED / "ssh_config")], check=True)
