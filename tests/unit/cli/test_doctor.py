"""`dsparkctl doctor` (issue 5 §2): a line a check, JSON, exit codes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dsparkctl.cli.exits import Exit
from dsparkctl.rollout.host import Host, SshError
from tests.unit.rollout.doctor.seeing import YAML
from tests.unit.rollout.local import LocalHost, as_host

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[LocalHost]:
    """The hosts that were opened; spark-b never answers."""
    monkeypatch.chdir(tmp_path)
    Path("dspark.yaml").write_text(YAML)
    hosts: list[LocalHost] = []

    def open_one(_fleet: object, name: str, _trust: object) -> Host:
        if name == "spark-b":
            raise SshError("spark-b: no answer within 10 s")
        hosts.append(LocalHost(name))
        return as_host(hosts[-1])

    monkeypatch.setattr("dsparkctl.cli.doctor.open_host", open_one)
    return hosts


def test_each_line_says_how_where_what_and_what_to_do(cli: Cli, opened: list[LocalHost]) -> None:
    code, out, err = cli("doctor", "--limit", "spark-a")
    assert code == Exit.PREFLIGHT, "this machine has no 10.202.28.2"
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["ok", "spark-a", "ssh"]
    at = next(i for i, line in enumerate(lines) if line.startswith("fail  spark-a  address"))
    assert lines[at + 1].strip().startswith("-> sudo ip address add 10.202.28.2/24")
    assert err.endswith(" fail\n")
    assert [host.is_open for host in opened] == [False]


def test_json_is_one_object(cli: Cli, opened: list[LocalHost]) -> None:
    code, out, _ = cli("doctor", "--limit", "spark-a", "--json")
    assert code == Exit.PREFLIGHT
    assert out.count("\n") == 1
    found = json.loads(out)["findings"]
    assert found[0] == {
        "host": "spark-a",
        "check": "ssh",
        "level": "ok",
        "saw": "the session stands, host key and account are accepted",
        "todo": "",
    }


def test_without_any_host_it_is_exit_4(cli: Cli, opened: list[LocalHost]) -> None:
    code, out, err = cli("doctor", "--limit", "spark-b")
    assert code == Exit.SSH
    assert out.startswith("fail  spark-b  ssh         spark-b: no answer within 10 s\n")
    assert err == "0 ok, 0 warn, 1 fail\n"


def test_all_hosts_by_itself_in_the_order_of_the_file(cli: Cli, opened: list[LocalHost]) -> None:
    _, out, _ = cli("doctor")
    hosts = [line.split()[1] for line in out.splitlines() if not line.startswith(" ")]
    assert list(dict.fromkeys(hosts)) == ["x86host", "spark-a", "spark-b"]


def test_a_host_that_nobody_named(cli: Cli, opened: list[LocalHost]) -> None:
    """A list with commas is one unknown name, never its letters."""
    code, _, err = cli("doctor", "--limit", "x86host,spark-a")
    assert (code, err) == (
        Exit.USAGE,
        "--limit x86host,spark-a: dspark.yaml names x86host, spark-a, spark-b\n",
    )


def test_a_configuration_without_hosts(cli: Cli, opened: list[LocalHost]) -> None:
    Path("dspark.yaml").write_text(
        "version: 1\nworker: {checkpoint: /c, identity_from_files: true}\n"
    )
    code, _, err = cli("doctor")
    assert code == Exit.USAGE
    assert err == "hosts: expected at least one among them\n"
