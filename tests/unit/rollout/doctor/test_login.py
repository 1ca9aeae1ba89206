"""doctor's checks of the session itself (issue 5 §2): host key, account, clean echo, sudo."""

from dsparkctl.rollout.doctor.checks.login import login, unreached
from dsparkctl.rollout.doctor.observations import Login
from dsparkctl.rollout.host import CommandTimedOut, HostKeyError, SshError
from tests.unit.rollout.doctor.seeing import line, lines

GOOD = Login(echoed="", sudo_error=None, offset_s=(0.0, 0.1))


def test_a_clean_session_is_three_lines() -> None:
    assert lines(login("x86host", GOOD)) == [
        "ok x86host ssh: the session stands, host key and account are accepted",
        "ok x86host echo: a command's output comes back as it is",
        "ok x86host sudo: root where it is needed",
    ]


def test_a_shell_that_prints_by_itself_is_quoted_and_told_where_to_stop() -> None:
    found = lines(login("x86host", GOOD.model_copy(update={"echoed": "Welcome!\n\x1b[0m"})))
    assert found[1] == (
        r"fail x86host echo: the account's shell prints by itself: 'Welcome!\n\x1b[0m'"
        " -> put [ -t 1 ] || return in front of what prints, in ~/.bashrc or what it reads"
    )


def test_without_sudo_its_own_words_are_told() -> None:
    found = lines(login("x86host", GOOD.model_copy(update={"sudo_error": "a password is needed"})))
    assert found[2] == (
        "fail x86host sudo: a password is needed"
        " -> permit it (NOPASSWD in /etc/sudoers.d), or be ready to give the password"
    )


def test_an_unreachable_host_has_one_line_with_the_errors_own_words() -> None:
    assert line(unreached("spark-a", SshError("spark-a: no answer within 10 s"))) == (
        "fail spark-a ssh: spark-a: no answer within 10 s"
        " -> find out with ssh -v (hosts.spark-a names what it is given)"
    )
    assert line(unreached("spark-a", HostKeyError("spark-a: another host key"))) == (
        "fail spark-a ssh: spark-a: another host key -> ask for the key's fingerprint on a way "
        "other than this network; when it is the right one, pin it as hosts.spark-a.host_key"
    )
    assert line(unreached("spark-a", CommandTimedOut("spark-a: printf took too long"))) == (
        "fail spark-a ssh: spark-a: printf took too long"
        " -> find out on the host what keeps it from running a command"
    )
