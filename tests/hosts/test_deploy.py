"""Deploys on real hosts (issue 5, parts 2 and 5): real systemd, real sshd, no internet there."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsparkctl.exits import Exit
from tests.hosts.fleet import BED, CHECKPOINT, Bed, bed_verb

UNIT = "dspark-worker.service"


@pytest.fixture
def changed(bed: Bed) -> Iterator[Bed]:
    """Whose dspark.yaml a test may change; it is put back."""
    before = (bed.folder / "dspark.yaml").read_text()
    config = json.loads(json.dumps(bed.config))
    yield bed
    bed.config = config
    (bed.folder / "dspark.yaml").write_text(before)


def broken(wheelhouse: Path, folder: Path) -> Path:
    """The same wheels, with a worker of ours that ends before it serves."""
    shutil.copytree(wheelhouse, folder)
    (wheel,) = folder.glob("dsparkctl-*.whl")
    spoilt = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(spoilt, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "dspark_worker/serve.py":
                data += b"\n\ndef serve(*_, **__):\n    raise SystemExit(1)\n"
            if not name.endswith("RECORD"):
                new.writestr(name, data)
        info = next(name for name in old.namelist() if name.endswith("RECORD"))
        new.writestr(info, "".join(f"{name},,\n" for name in old.namelist()))
    spoilt.replace(wheel)
    return folder


def test_a_first_deploy_from_nothing_needs_no_internet_there(bed: Bed) -> None:
    planned = bed.cli("deploy", "x86host", "--diff")
    assert planned.code == Exit.DRIFT, planned
    assert [line.split(": would ")[0] for line in planned.out.splitlines() if ": would " in line]
    said = bed.ok("deploy", "x86host")
    assert re.search(r"^done: \d{8}T\d{6}-[0-9a-f]{8}$", said.out, re.MULTILINE)
    stats = bed.root("x86host", "systemctl", "show", UNIT, "--property=Type,NotifyAccess,User")
    assert stats.splitlines() == ["Type=notify", "NotifyAccess=main", "User=dspark"]
    assert bed.serves() in said.out


def test_a_second_deploy_changes_nothing_and_says_so(deployed: Bed) -> None:
    before = deployed.root("x86host", "systemctl", "show", UNIT, "--property=MainPID")
    for flags in ((), ("--dry-run",), ("--diff",)):
        said = deployed.ok("deploy", "x86host", *flags)
        assert said.out == "no changes\n"
    assert deployed.root("x86host", "systemctl", "show", UNIT, "--property=MainPID") == before


def test_the_unit_is_sandboxed_and_listens_where_it_was_told(deployed: Bed) -> None:
    text = deployed.root("x86host", "systemd-analyze", "security", UNIT, "--no-pager")
    level = re.search(r"exposure level.*: ([0-9.]+)", text)
    assert level is not None
    assert float(level[1]) <= 1.5
    listening = deployed.root("x86host", "ss", "-Hltn").splitlines()
    ours = {line.split()[3] for line in listening if ":186" in line}
    assert ours == {"10.202.28.1:18620", "127.0.0.1:18630", "10.202.28.1:18630"}


def test_a_stopped_worker_is_started_by_the_next_deploy(deployed: Bed) -> None:
    deployed.root("x86host", "systemctl", "stop", UNIT)
    planned = deployed.cli("deploy", "x86host", "--dry-run")
    assert (planned.code, planned.out.count("would")) == (Exit.DRIFT, 1)
    deployed.ok("deploy", "x86host")
    assert deployed.serves()


def test_a_new_version_serves_and_a_rollback_brings_the_old_one_back(
    deployed: Bed, changed: Bed
) -> None:
    old = deployed.serves()
    changed.config["worker"]["max_slots"] = 3
    changed.write()
    said = changed.ok("deploy", "x86host")
    new = changed.serves()
    assert new != old
    assert new in said.out
    assert "upload" not in said.err, "every wheel is there"
    rows = json.loads(changed.ok("releases", "--json").out)["releases"]
    assert {row["use"]: row["release"] for row in rows if row["use"]} == {
        "current": new,
        "previous": old,
    }
    changed.ok("rollback")
    assert changed.serves() == old
    changed.ok("rollback", new)
    assert changed.serves() == new
    refused = changed.cli("rollback", "20200101T000000-00000000")
    assert refused.code == Exit.FAILED
    assert "no complete release of that name" in refused.err
    changed.ok("rollback")


def test_a_broken_version_is_taken_back_and_the_old_one_serves(
    deployed: Bed, tmp_path: Path
) -> None:
    old = deployed.serves()
    spoilt = broken(deployed.wheelhouse, tmp_path / "broken")
    said = deployed.cli("deploy", "x86host", "--wheelhouse", str(spoilt))
    assert said.code == Exit.ROLLED_BACK, said
    assert "it was taken back" in said.err
    assert "journal:" in said.err
    assert deployed.serves() == old
    last = [entry for entry in deployed.history() if entry["step"] == "activate"][-2:]
    assert [entry["result"] for entry in last] == ["failed", "undone"]
    assert deployed.ok("deploy", "x86host").out == "no changes\n"


@pytest.mark.parametrize(
    ("step", "after_s", "max_slots"),
    [
        pytest.param("upload", 0.2, 5, marks=pytest.mark.complete),
        pytest.param("build", 0.1, 6, marks=pytest.mark.complete),
        pytest.param("build", 3.0, 7, marks=pytest.mark.complete),
        pytest.param("build", 15.0, 10, marks=pytest.mark.complete),
        ("activate", 0.2, 11),
    ],
)
def test_a_power_cut_in_the_middle_of_a_deploy_is_healed_by_the_next(
    deployed: Bed, changed: Bed, step: str, after_s: float, max_slots: int
) -> None:
    if step == "upload":
        changed.ok("undeploy", "--purge")  # or there would be nothing to upload
    changed.config["worker"]["max_slots"] = max_slots
    changed.write()
    process = changed.start("deploy", "x86host", "--lock-wait", "20")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(f"x86host: {step} "):
            break
    time.sleep(after_s)
    changed.power_cut("x86host")
    _, said = process.communicate(timeout=120)
    changed.power_on("x86host")
    # In `activate` there is something to take back, and nobody there to do it on.
    assert process.returncode in (Exit.SSH, Exit.ROLLBACK_FAILED), said
    again = changed.ok("deploy", "x86host", "--lock-wait", "20")
    assert changed.serves() in again.out
    rows = json.loads(changed.ok("releases", "--json").out)["releases"]
    assert sum(row["use"] == "current" for row in rows) == 1


def test_after_a_power_cut_the_worker_comes_back_by_itself(deployed: Bed) -> None:
    release = deployed.serves()
    deployed.power_cut("x86host")
    deployed.power_on("x86host")
    assert deployed.serves() == release


def test_an_address_that_is_missing_at_boot_is_waited_for(deployed: Bed) -> None:
    ip = ["ip", "-n", "tb-x86host", "addr"]
    link = ["10.202.28.1/30", "dev", "dA"]
    subprocess.run([*ip, "del", *link], check=True)
    try:
        deployed.root("x86host", "systemctl", "restart", "--no-block", UNIT)
        time.sleep(3)
        shown = deployed.root("x86host", "systemctl", "show", UNIT, "-p", "ActiveState,StatusText")
        assert "ActiveState=activating" in shown
        assert "waiting for 10.202.28.1 to be an address of this host" in shown
    finally:
        subprocess.run([*ip, "add", *link], check=True)
    assert deployed.serves()


def test_a_wrong_receipt_stops_a_deploy_and_the_old_worker_serves(deployed: Bed) -> None:
    """The checkpoint is no longer what the receipt names: exit code 10 in the journal."""
    release = deployed.serves()
    shard = deployed.files("x86host") / "srv/dspark/checkpoint/model-exl3-head.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    try:
        deployed.root("x86host", "systemctl", "stop", UNIT)
        said = deployed.cli("deploy", "x86host")
        assert said.code in (Exit.ROLLED_BACK, Exit.ROLLBACK_FAILED), said
        assert "sha256 is" in said.err
        shown = deployed.root(
            "x86host", "systemctl", "show", UNIT, "-p", "ExecMainStatus,NRestarts"
        )
        assert "ExecMainStatus=10" in shown
    finally:
        shard.write_bytes(data)
    deployed.ok("deploy", "x86host")
    assert deployed.serves() == release


def test_a_full_disk_is_told_before_or_while_and_what_serves_serves(
    deployed: Bed, tmp_path: Path
) -> None:
    release = deployed.serves()
    more = tmp_path / "wheelhouse"
    shutil.copytree(deployed.wheelhouse, more)
    (more / "ballast-1-py3-none-any.whl").write_bytes(os.urandom(60 << 20))
    disk = ("mount", "-t", "tmpfs", "-o", "size=40m,mode=755", "tmpfs", "/opt/dspark/incoming")
    deployed.root("x86host", *disk)
    deployed.root("x86host", "chown", "deploy:deploy", "/opt/dspark/incoming")
    try:
        said = deployed.cli("deploy", "x86host", "--wheelhouse", str(more))
        assert said.code == Exit.FAILED, said
        assert "No space left on device" in said.err
        assert said.err.strip().splitlines()[-1].startswith("x86host: ")
    finally:
        deployed.root("x86host", "umount", "/opt/dspark/incoming")
    assert deployed.serves() == release


def test_a_lock_that_is_held_stops_a_second_deploy_and_an_old_one_does_not(deployed: Bed) -> None:
    lock = deployed.files("x86host") / "opt/dspark/lock"
    lock.write_text('{"token": "t", "owner": "somebody@elsewhere: deploy x86host"}')
    said = deployed.cli("deploy", "x86host")
    assert said.code == Exit.LOCKED, said
    assert "locked by somebody@elsewhere: deploy x86host, touched" in said.err
    assert "somebody@elsewhere" in deployed.ok("lock", "status").out
    deployed.ok("deploy", "x86host", "--lock-wait", "30")  # its lease of 8 s ends
    assert deployed.ok("lock", "status").out == "not locked\n"
    lock.write_text("{")
    assert deployed.ok("lock", "release").out.startswith("taken from")
    assert not lock.exists()


def test_a_changed_host_key_is_refused_with_exit_code_4(deployed: Bed) -> None:
    known = BED / "known_hosts"
    text = known.read_text()
    other = next(line for line in text.splitlines() if line.startswith("spark-a"))
    kept = [line for line in text.splitlines() if not line.startswith("x86host")]
    known.write_text("\n".join([*kept, f"x86host,10.77.0.11 {other.split(' ', 1)[1]}"]) + "\n")
    try:
        said = deployed.cli("deploy", "x86host")
        assert said.code == Exit.SSH
        assert "find out on the host itself why" in said.err
    finally:
        known.write_text(text)


def test_sudo_that_wants_a_password_nobody_can_type_is_exit_code_3(
    deployed: Bed, changed: Bed
) -> None:
    changed.config["hosts"]["x86host"]["user"] = "deploypw"
    changed.write()
    said = changed.cli("deploy", "x86host")
    assert said.code == Exit.PREFLIGHT
    assert "there is no terminal to ask at" in said.err


@pytest.mark.complete
def test_a_link_that_is_cut_during_an_upload_is_gone_on_with(
    deployed: Bed, changed: Bed, tmp_path: Path
) -> None:
    """The management network goes: an error within seconds, and the next run resumes."""
    big = tmp_path / "wheels"
    shutil.copytree(changed.wheelhouse, big)
    deployed.root("x86host", "sh", "-c", "rm -rf /opt/dspark/incoming/*")
    (torch,) = big.glob("torch-*.whl")
    with zipfile.ZipFile(torch, "a") as archive:
        archive.writestr("torch/extra.txt", "another wheel than the one that is there")
    process = changed.start("deploy", "x86host", "--wheelhouse", str(big))
    part = changed.files("x86host") / "opt/dspark/incoming"
    end_s = time.monotonic() + 60
    while not any(found.stat().st_size > 20e6 for found in part.glob("*/*.part")):
        assert time.monotonic() < end_s, process.poll()
        time.sleep(0.02)
    port = ["ip", "-n", "tb-ops", "link", "set", "m-x86host"]
    subprocess.run([*port, "down"], check=True)
    started_s = time.monotonic()
    _, said = process.communicate(timeout=60)
    subprocess.run([*port, "up"], check=True)
    assert time.monotonic() - started_s < 30
    assert process.returncode == Exit.SSH, said
    assert any(found.stat().st_size > 20e6 for found in part.glob("*/*.part"))
    changed.ok("deploy", "x86host", "--wheelhouse", str(big), "--lock-wait", "20")
    assert changed.serves()


def test_outputs_stay_right_while_a_new_worker_is_deployed_under_a_running_engine(
    deployed: Bed, changed: Bed, pytestconfig: pytest.Config
) -> None:
    """Our real client in spark-a's network, over the direct link; how long drafts were missing."""
    endpoint = "tcp://10.202.28.1:18620?bind=10.202.28.2"
    program = "from dsparkctl.cli.app import main; main()"
    engine = subprocess.Popen(
        ["ip", "netns", "exec", "tb-spark-a", sys.executable, "-P", "-c", program, "demo",
         "--endpoint", endpoint, "--checkpoint", str(CHECKPOINT), "--requests", "200",
         "--tokens", "512", "--step-ms", "20", "--max-seconds", "75", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(8)
    before = deployed.serves()
    changed.config["worker"]["max_slots"] = 8
    changed.write()
    changed.ok("deploy", "x86host")
    assert changed.serves() != before
    out, err = engine.communicate(timeout=300)
    assert engine.returncode == 0, err
    found = json.loads(out)
    assert found["outputs_match_reference"] is True
    assert found["connections"] >= 2
    missing = found["fallbacks"]
    lost_s = sum(missing.values()) * 0.02
    terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    assert terminal is not None
    terminal.write_line(f"a new worker under a running engine: {lost_s:.1f} s without drafts")
    assert lost_s < 60


def test_undeploy_stops_the_worker_and_keeps_history(deployed: Bed) -> None:
    deployed.ok("undeploy")
    assert deployed.ok("undeploy").out == "no changes\n"
    unit = deployed.files("x86host") / "etc/systemd/system" / UNIT
    assert not unit.exists()
    assert deployed.history()[-1]["step"] == "undeploy"
    deployed.ok("deploy", "x86host")
    assert deployed.serves()


def test_the_testbed_cuts_a_host_off_and_heals_it(bed: Bed) -> None:
    bed_verb("sever", "dA")
    ping = ["ip", "netns", "exec", "tb-spark-a", "ping", "-c", "1", "-W", "1", "10.202.28.1"]
    assert subprocess.run(ping, capture_output=True).returncode != 0
    bed_verb("heal", "dA")
    assert subprocess.run(ping, capture_output=True).returncode == 0
