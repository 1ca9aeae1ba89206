"""How `probe`, `stats` and `reset` get to a listener through a host (issue 5 §2; R37, R38)."""

import itertools
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.cli.exits import Exit
from dsparkctl.contract.codes import Op
from dsparkctl.contract.messages import parse_header
from dsparkctl.rollout.host import Host, SshError
from tests.unit.net.peers import answering, peer, receive, reply
from tests.unit.rollout.local import LocalHost, as_host

Cli = Callable[..., tuple[int, str, str]]

YAML = """
version: 1
hosts: {{x86host: {{}}, spark-a: {{}}}}
links: [{{host: spark-a, bind: 127.0.0.1, peer: {peer}}}]
worker:
  host: x86host
  checkpoint: /srv/c
  identity_from_files: true
  listen: tcp://127.0.0.1:18620
  admin: [{admin}]
"""


class Ssh:
    """Opens LocalHosts and remembers them; `lost` is what the next ones raise."""

    def __init__(self) -> None:
        self.hosts: list[LocalHost] = []
        self.lost: list[SshError | None] = []

    def open(self, _fleet: object, name: str) -> Host:
        lost = self.lost.pop(0) if self.lost else None
        if lost is not None:
            raise lost
        self.hosts.append(LocalHost(name))
        return as_host(self.hosts[-1])


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    monkeypatch.chdir(tmp_path)
    made = Ssh()
    monkeypatch.setattr("dsparkctl.cli.reach.open_host", made.open)
    return made


def configured(admin: object, link_peer: str = "127.0.0.1") -> None:
    Path("dspark.yaml").write_text(YAML.format(admin=admin, peer=link_peer))


def test_via_a_host_is_one_connection_that_is_closed_in_the_end(cli: Cli, ssh: Ssh) -> None:
    with peer(answering(b'{"steps": 5}')) as endpoint:
        code, out, err = cli("stats", endpoint, "--via", "x86host")
    assert (code, out, err) == (0, "steps  5\n", "")
    (host,) = ssh.hosts
    assert host.name == "x86host"
    assert not host.is_open


def test_by_itself_it_goes_through_the_workers_host_and_says_so_once(cli: Cli, ssh: Ssh) -> None:
    with peer(answering(b'{"steps": 5}')) as endpoint:
        configured(endpoint)
        code, out, err = cli("stats", "--json")
    assert (code, json.loads(out)) == (0, {"steps": 5})
    assert err == f"{endpoint}: through the SSH of x86host, where the worker runs\n"


def test_a_named_endpoint_is_reached_from_here(cli: Cli, ssh: Ssh) -> None:
    with peer(answering(b'{"steps": 5}')) as endpoint:
        configured("tcp://127.0.0.1:1")
        assert cli("stats", endpoint)[0] == 0
    assert ssh.hosts == []


def test_the_table_and_json_say_through_whom(cli: Cli, ssh: Ssh) -> None:
    with peer(answering()) as endpoint:
        few = ("--count", 3, "--interval", 0)
        _, out, _ = cli("probe", endpoint, "--via", "x86host", *few)
        assert f"{endpoint} via x86host" in out
        code, out, _ = cli("probe", endpoint, "--via", "x86host", *few, "--json")
    found = json.loads(out)
    assert (code, found["endpoint"], found["via"]) == (0, str(endpoint), "x86host")
    assert found["answered"] == 3


def test_reset_goes_the_same_way(cli: Cli, ssh: Ssh) -> None:
    heard = []

    def behave(sock: socket.socket) -> None:
        heard.append(receive(sock))
        reply(sock, heard[-1])

    with peer(behave) as endpoint:
        code, out, _ = cli("reset", endpoint, "--all", "--yes", "--via", "x86host")
    assert code == 0
    assert out == f"{endpoint} via x86host: the windows of all slots are discarded\n"
    assert parse_header(heard[0]).op == Op.RESET


def test_the_engines_own_listener_stays_guarded_by_the_hosts_own_names(
    cli: Cli, ssh: Ssh, tmp_path: Path
) -> None:
    """R37: `worker` means nothing here; on the host it is the data listener's address."""
    configured("tcp://127.0.0.1:18630")
    script = tmp_path / "bin" / "getent"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho '127.0.0.1      STREAM worker.lan'\n")
    script.chmod(0o755)

    def opened(_fleet: object, name: str) -> Host:
        path = f"{script.parent}:/usr/bin:/bin"
        return as_host(LocalHost(name, ("env", f"PATH={path}")))

    ssh.open = opened  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dsparkctl.cli.reach.open_host", opened)
        code, out, err = cli("probe", "tcp://worker.lan:18620", "--via", "x86host")
    assert (code, out) == (Exit.USAGE, "")
    assert "tcp://worker.lan:18620 is the data listener: connecting closes" in err
    assert "--take-over" in err


def test_the_engines_port_is_refused_whatever_the_name(cli: Cli, ssh: Ssh) -> None:
    code, _, err = cli("stats", "tcp://127.0.0.1:18620", "--via", "elsewhere")
    assert code == Exit.USAGE
    assert "--take-over" in err


def test_ssh_that_fails_is_exit_4_with_its_own_line(cli: Cli, ssh: Ssh) -> None:
    ssh.lost = [SshError("x86host: no answer within 10 s; is it on?")]
    code, out, err = cli("stats", "tcp://127.0.0.1:18630", "--via", "x86host")
    assert (code, out, err) == (Exit.SSH, "", "x86host: no answer within 10 s; is it on?\n")


def test_nobody_there_is_exit_1_and_names_the_way(cli: Cli, ssh: Ssh) -> None:
    with peer(answering()) as endpoint:
        pass
    code, _, err = cli("stats", endpoint, "--via", "x86host")
    assert code == Exit.FAILED
    assert err.startswith(f"{endpoint} via x86host: ")


def test_a_bind_address_means_nothing_through_ssh(cli: Cli, ssh: Ssh) -> None:
    code, _, err = cli("stats", "tcp://127.0.0.1:9?bind=127.0.0.1", "--via", "x86host")
    assert code == Exit.USAGE
    assert "?bind= has no meaning" in err


def test_watching_survives_a_broken_ssh_with_growing_pauses(
    cli: Cli, ssh: Ssh, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    left = itertools.count(5, -1)

    def sleep(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 1:  # the line is cut: SSH is gone, and with it what it carried
            ssh.hosts[-1].lost = SshError("x86host: the connection was lost")
        if not next(left):
            raise KeyboardInterrupt

    monkeypatch.setattr("dsparkctl.cli.watching.time.sleep", sleep)

    def behave(sock: socket.socket) -> None:
        reply(sock, receive(sock), b'{"steps": 5}')

    with peer(behave) as endpoint:
        ssh.lost = [None, SshError("x86host: no route"), SshError("x86host: no route")]
        code, out, err = cli("stats", endpoint, "--via", "x86host", "--watch")
    assert code == 130
    assert out.count("steps 5") == 2
    assert paused == [1.0, 1.0, 1.0, 2.0, 4.0, 1.0]
    assert "trying again" in err
    assert err.rstrip().endswith("the worker answers again")


# --- from -----------------------------------------------------------------------------------------


def test_from_a_spark_it_is_measured_there_over_its_link(cli: Cli, ssh: Ssh) -> None:
    with peer(answering()) as endpoint:
        configured(endpoint)
        measured: tuple[Any, ...] = ("probe", "--from", "spark-a", "--count", 3, "--interval", 0)
        code, out, err = cli(*measured)
        assert (code, err) == (0, "")
        assert f"{endpoint}?bind=127.0.0.1 from spark-a" in out
        found = json.loads(cli(*measured, "--json")[1])
    assert found["measured_on"] == "spark-a"
    assert found["answered"] == 3
    assert {"min", "p50", "p99"} <= set(found["rtt_us"])
    assert all(argv[0] == "python3" for host in ssh.hosts for argv in host.ran)


def test_without_an_admin_listener_on_the_link_it_says_where_to_add_one(cli: Cli, ssh: Ssh) -> None:
    configured("tcp://127.0.0.1:18630", link_peer="10.202.28.1")
    code, _, err = cli("probe", "--from", "spark-a")
    assert code == Exit.USAGE
    assert err.startswith("--from spark-a: worker.admin has no listener on a link of spark-a; add")


def test_from_and_via_are_two_ways(cli: Cli, ssh: Ssh) -> None:
    code, _, err = cli("probe", "tcp://127.0.0.1:9", "--from", "a", "--via", "b")
    assert code == Exit.USAGE
    assert "say one of them" in err


def test_from_without_a_configuration_needs_an_endpoint(cli: Cli, ssh: Ssh) -> None:
    code, _, err = cli("probe", "--from", "spark-a")
    assert code == Exit.USAGE
    assert "name an ENDPOINT" in err


def test_from_a_spark_nobody_may_answer(cli: Cli, ssh: Ssh) -> None:
    with peer(answering()) as endpoint:
        pass
    code, _, err = cli("probe", endpoint, "--from", "spark-a")
    assert code == Exit.FAILED
    assert "nobody listens there" in err
    ssh.lost = [SshError("spark-a: refused")]
    assert cli("probe", endpoint, "--from", "spark-a")[0] == Exit.SSH
