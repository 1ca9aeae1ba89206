"""The whole examination, on hosts that are this machine (issue 5 §2)."""

import pytest

from dsparkctl.rollout.doctor.examine import examine, preflight
from dsparkctl.rollout.doctor.finding import Finding, Level
from dsparkctl.rollout.host import Host, SshError, SudoError
from tests.unit.rollout.doctor.seeing import fleet, line
from tests.unit.rollout.local import LocalHost, as_host, fake_command


def examined(**hosts: LocalHost) -> dict[tuple[str, str], Finding]:
    """By host and check, the first of each."""
    named: dict[str, Host] = {name.replace("_", "-"): as_host(host) for name, host in hosts.items()}
    found: dict[tuple[str, str], Finding] = {}
    for one in preflight(fleet(), named):
        found.setdefault((one.host, one.check), one)
    return found


def test_every_check_of_a_host_has_a_line_and_what_is_wrong_says_what_to_do() -> None:
    found = examined(x86host=LocalHost(), spark_a=LocalHost())
    workers = {check for host, check in found if host == "x86host"}
    everywhere = {"ssh", "echo", "sudo", "python", "memory", "version"}
    assert everywhere <= workers
    assert {"gpu", "disk", "memlock", "checkpoint", "port", "address", "rdma"} <= workers
    assert everywhere <= {check for host, check in found if host == "spark-a"}
    assert ("spark-a", "clock") in found
    assert all(one.todo for one in found.values() if one.level is not Level.OK)
    assert not any(one.todo for one in found.values() if one.level is Level.OK)
    assert found["spark-a", "address"].saw.startswith("no interface has 10.202.28.2")


def test_a_shell_that_prints_hides_nothing() -> None:
    found = examined(x86host=LocalHost(noise=b"Last login: never\n"))
    assert line(found["x86host", "echo"]).startswith(
        r"fail x86host echo: the account's shell prints by itself: 'Last login: never\n'"
    )
    assert found["x86host", "memory"].level is not Level.FAIL
    assert ("x86host", "clock") in found


def test_without_sudo_the_rest_is_looked_at_as_who_we_are() -> None:
    host = LocalHost(sudo_error=SudoError("x86host: sudo wants a password"))
    found = examined(x86host=host)
    assert found["x86host", "sudo"].level is Level.FAIL
    assert ("x86host", "disk") in found


def test_an_unreachable_host_hides_nothing_of_the_others() -> None:
    lost = LocalHost(lost=SshError("spark-a: no answer within 10 s"))
    found = examined(x86host=LocalHost(), spark_a=lost)
    assert [check for host, check in found if host == "spark-a"] == ["ssh"]
    assert ("x86host", "disk") in found


def test_a_host_that_cannot_even_be_opened() -> None:
    def refuse(name: str) -> Host:
        raise SshError(f"{name}: no such name")

    (found,) = examine(fleet(), ["spark-b"], refuse)
    assert (found.check, found.saw) == ("ssh", "spark-b: no such name")


@pytest.mark.parametrize(
    ("script", "check", "saw"),
    [
        ("echo 'cannot be run' >&2; exit 126", "python", "cannot be run"),
        (
            "echo nonsense",
            "collector",
            "python3 answered something else than was asked (no object)",
        ),
        (
            'printf "\\n---- dsparkctl doctor ----\\n{\\"python\\": 3}"',
            "collector",
            "python3 answered something else than was asked (clock_s)",
        ),
    ],
)
def test_a_python3_that_is_none(
    tmp_path_factory: pytest.TempPathFactory, script: str, check: str, saw: str
) -> None:
    path = fake_command(tmp_path_factory.mktemp("host") / "bin", "python3", script)
    found = examined(x86host=LocalHost(prefix=("env", f"PATH={path}")))
    assert found["x86host", check].saw == saw
    assert ("x86host", "disk") not in found
