"""probe, stats, reset and doctor through a real sshd (issue 5 §2, §3; R37, R38)."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsparkctl.cli.app import run
from dsparkctl.cli.exits import Exit
from tests.sshd import Sshd, running_sshd
from tests.unit.net.peers import answering, peer

Cli = Callable[..., tuple[int, str, str]]

YAML = """
version: 1
hosts:
  x86host: {{ssh: box}}
  spark-a: {{ssh: box}}
links: [{{host: spark-a, bind: 127.0.0.1, peer: 127.0.0.1, mtu: 1500}}]
worker:
  host: x86host
  checkpoint: /nowhere/checkpoint
  identity_from_files: true
  admin: ["{admin}"]
"""


@pytest.fixture
def cli(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSPARK_SSH_CONFIG", str(sshd.config))

    def call(*args: object) -> tuple[int, str, str]:
        code = run([str(arg) for arg in args])
        return (code, *capsys.readouterr())

    return call


def test_stats_and_probe_via_an_alias(cli: Cli) -> None:
    with peer(answering(b'{"steps": 5}')) as endpoint:
        assert cli("stats", endpoint, "--via", "box") == (0, "steps  5\n", "")
    with peer(answering()) as endpoint:
        code, out, _ = cli("probe", endpoint, "--via", "box", "--count", 5, "--interval", 0)
    assert code == 0
    assert f"{endpoint} via box" in out


def test_by_the_configuration_it_goes_to_the_workers_host(cli: Cli) -> None:
    with peer(answering()) as endpoint:
        Path("dspark.yaml").write_text(YAML.format(admin=endpoint))
        code, out, err = cli("reset", "--all", "--yes")
    assert (code, out) == (0, f"{endpoint} via x86host: the windows of all slots are discarded\n")
    assert err == f"{endpoint}: through the SSH of x86host, where the worker runs\n"


def test_nobody_on_the_port_is_one_line_and_exit_1(cli: Cli) -> None:
    with peer(answering()) as endpoint:
        pass
    code, out, err = cli("stats", endpoint, "--via", "box")
    assert (code, out, err.count("\n")) == (Exit.FAILED, "", 1)
    assert f"{endpoint} via box: " in err


def test_a_changed_host_key_is_exit_4(cli: Cli, sshd: Sshd, tmp_path: Path) -> None:
    other = tmp_path / "known_hosts"
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIGk5YVQzd2pCbm9uZW9mdGhlbWlzdGhpc2tleXllcw"
    other.write_text(f"[127.0.0.1]:{sshd.port} ssh-ed25519 {key}\n")
    config = tmp_path / "config"
    config.write_text(sshd.config.read_text().replace(str(sshd.known_hosts), str(other)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSPARK_SSH_CONFIG", str(config))
        code, out, err = cli("stats", "tcp://127.0.0.1:18630", "--via", "box")
    assert (code, out, err.count("\n")) == (Exit.SSH, "", 1)


@pytest.fixture
def cut(sshd: Sshd) -> Callable[[], None]:
    """Ends every connection of the server, as a cable that is pulled does."""

    def kill() -> None:
        for pid in sshd.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    return kill


def test_watching_goes_on_after_ssh_was_cut(
    cli: Cli, cut: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 0

    def sleep(seconds: float) -> None:
        nonlocal n
        n += 1
        if n == 2:
            cut()
            time.sleep(1.0)
        if n == 6:
            raise KeyboardInterrupt

    # The pauses between looks alone: SSH sleeps as well, and more often on a busy machine.
    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr("dsparkctl.cli.watching.time", clock)
    with peer(answering(b'{"steps": 5}')) as endpoint:
        code, out, err = cli("stats", endpoint, "--via", "box", "--watch")
    assert code == 130
    assert out.count("steps 5") >= 4
    assert "trying again" in err
    assert "the worker answers again" in err


def test_a_spark_measures_by_itself(cli: Cli) -> None:
    with peer(answering()) as endpoint:
        Path("dspark.yaml").write_text(YAML.format(admin=endpoint))
        code, out, err = cli("probe", "--from", "spark-a", "--rtt", "--count", 50, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["measured_on"], found["answered"]) == ("spark-a", 50)


def test_doctor_looks_at_both_hosts_and_measures_between_them(cli: Cli) -> None:
    with peer(answering()) as endpoint:
        Path("dspark.yaml").write_text(YAML.format(admin=endpoint))
        code, out, _ = cli("doctor", "--json")
    found = {(one["host"], one["check"]): one for one in json.loads(out)["findings"]}
    assert code == Exit.PREFLIGHT, "there is no checkpoint"
    for host in ("x86host", "spark-a"):
        for check in ("ssh", "echo", "sudo", "address", "route", "ping"):
            assert found[host, check]["level"] == "ok", found[host, check]
    assert found["x86host", "checkpoint"]["level"] == "fail"
    assert "3.93 MB in" in found["spark-a", "rate"]["saw"]


def test_a_shell_that_prints_by_itself_is_found_out_and_the_rest_is_still_told(
    cli: Cli, tmp_path: Path
) -> None:
    noisy = 'ForceCommand echo Welcome; eval "$SSH_ORIGINAL_COMMAND"'
    with running_sshd(tmp_path / "noisy", noisy) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSPARK_SSH_CONFIG", str(server.config))
        Path("dspark.yaml").write_text(YAML.format(admin="tcp://127.0.0.1:18630"))
        code, out, _ = cli("doctor", "--limit", "x86host")
    assert code == Exit.PREFLIGHT
    assert r"the account's shell prints by itself: 'Welcome\n'" in out
    assert "ok    x86host  memory" in out
