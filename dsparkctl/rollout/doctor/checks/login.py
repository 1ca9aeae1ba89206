"""Whether the host can be talked to without a person: a clean session, and root where needed."""

from collections.abc import Iterator

from dsparkctl.rollout.doctor.finding import SSH, Finding, fail, ok
from dsparkctl.rollout.doctor.observations import Login
from dsparkctl.rollout.host import HostError, HostKeyError, SshError


def unreached(host: str, error: HostError) -> Finding:
    """There is no session; the error says why."""
    match error:
        case HostKeyError():
            todo = (
                "ask for the key's fingerprint on a way other than this network; when it is the "
                f"right one, pin it as hosts.{host}.host_key"
            )
        case SshError():
            todo = f"find out with ssh -v (hosts.{host} names what it is given)"
        case _:
            todo = "find out on the host what keeps it from running a command"
    return fail(host, SSH, str(error), todo)


def login(host: str, seen: Login) -> Iterator[Finding]:
    yield ok(host, SSH, "the session stands, host key and account are accepted")
    if seen.echoed:
        yield fail(
            host,
            "echo",
            f"the account's shell prints by itself: {seen.echoed!a}",
            "put [ -t 1 ] || return in front of what prints, in ~/.bashrc or what it reads",
        )
    else:
        yield ok(host, "echo", "a command's output comes back as it is")
    if seen.sudo_error is None:
        yield ok(host, "sudo", "root where it is needed")
    else:
        yield fail(
            host,
            "sudo",
            seen.sudo_error,
            "permit it (NOPASSWD in /etc/sudoers.d), or be ready to give the password",
        )
