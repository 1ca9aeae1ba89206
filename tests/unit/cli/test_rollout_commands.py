"""Commands that reach out to hosts, where there is nobody: one line, and the code that says why."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dsparkctl.exits import Exit

Cli = Callable[..., tuple[int, str, str]]

WORKER = "worker:\n  host: box\n  checkpoint: /c\n  receipt: /c/R\n"
COMMANDS = (
    ("deploy", "x86host"),
    ("deploy", "all"),
    ("deploy", "spark"),
    ("rollback",),
    ("releases",),
    ("history",),
    ("status",),
    ("logs",),
    ("lock", "status"),
    ("undeploy",),
    ("doctor",),
)


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dspark.yaml whose one host refuses every connection."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ssh = tmp_path / "ssh_config"
    ssh.write_text(f"Host box\n  HostName 127.0.0.1\n  Port {port}\n")
    monkeypatch.setenv("DSPARK_SSH_CONFIG", str(ssh))
    path = tmp_path / "dspark.yaml"
    engine = "engine: {kind: venv, ranks: [box], start_order: [0], python: /usr/bin/python3}\n"
    links = "links: [{host: box, bind: 10.0.0.2, peer: 10.0.0.1}]\n"
    path.write_text(f"version: 1\nhosts: {{box: {{}}}}\n{links}{engine}{WORKER}")
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_host_that_cannot_be_reached_is_exit_code_4_and_no_lock(
    cli: Cli, nobody: Path, command: tuple[str, ...]
) -> None:
    """An ssh failure is never reported as a lock, and nothing is called done."""
    code, out, err = cli(*command, "--config", str(nobody))
    assert code == (Exit.PREFLIGHT if command == ("deploy", "all") else Exit.SSH), err
    assert "no connection to 127.0.0.1" in out + err
    assert "lock" not in err
    assert "done" not in out


def test_probe_and_stats_by_way_of_a_host_say_that_it_is_the_host(cli: Cli, nobody: Path) -> None:
    for command in (("probe",), ("stats",), ("reset", "--all", "--yes")):
        code, _, err = cli(*command, "--config", str(nobody))
        assert code == Exit.SSH, err
        assert err.splitlines()[-1].startswith("box: no connection to 127.0.0.1")


def test_a_probe_is_measured_at_one_place(cli: Cli) -> None:
    code, out, err = cli("probe", "tcp://127.0.0.1:18630", "--from", "a", "--via", "b")
    assert (code, out) == (Exit.USAGE, "")
    assert err == "--via goes through a host, --from measures on it: say one of them\n"


def test_a_configuration_that_names_no_host_is_exit_code_2(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "dspark.yaml"
    path.write_text("version: 1\n" + WORKER.replace("  host: box\n", ""))
    for command in (("deploy", "x86host"), ("status",), ("logs",)):
        code, _, err = cli(*command, "--config", str(path))
        assert (code, err) == (
            Exit.USAGE,
            "worker.host: missing; expected one of hosts, where the worker runs\n",
        )
    code, _, err = cli("doctor", "--config", str(path))
    assert (code, err) == (Exit.USAGE, "hosts: expected at least one among them\n")
    code, _, err = cli("drafting", "off", "--config", str(path))
    assert (code, err) == (
        Exit.USAGE,
        "engine: missing; expected where the engine's ranks run\n",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hosts: {Box: {}}", "hosts"),
        ("hosts: {box: {password: x}}", "hosts.box.password: unknown key"),
        ("hosts: {box: {port: 0}}", "hosts.box.port: expected an integer between 1 and 65535"),
        ("hosts: {box: {user: '${NO_SUCH_VARIABLE_HERE}'}}", "NO_SUCH_VARIABLE_HERE is not set"),
        ("hosts: {box: {ssh: -oProxyCommand=x}}", "does not begin with a dash"),
        ("links: [{host: b, bind: 10.0.0.1, peer: x}]", "links[0].peer: expected an IPv4 address"),
        ("engine: {kind: docker, ranks: [box], start_order: [0], mount: /m}", "expected container"),
        ("engine: {kind: venv, ranks: [a, b], python: /p}", "engine.ranks[0] to be one of hosts"),
        ("release: {root: opt}", "release.root: expected an absolute path on the host"),
        ("release: {root: /}", "release.root: expected an absolute path on the host"),
        ("policy: {timeout_ms: 0}", "policy.timeout_ms: expected"),
        ("engine: {kind: venv, ranks: [box], start_order: [1], mount: /m}", "start_order to name"),
    ],
)
def test_a_fault_of_the_rollouts_sections_is_a_line_with_file_line_and_key(
    cli: Cli, tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "dspark.yaml"
    worker = WORKER.replace("  host: box\n", "")
    path.write_text(f"version: 1\n{text}\n{worker}")
    code, _, err = cli("config", "validate", str(path))
    assert code == Exit.USAGE
    assert words in err
    assert err.startswith(f"{path}:")
