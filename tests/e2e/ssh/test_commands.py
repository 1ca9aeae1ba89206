"""Commands on a real sshd (issue 5, part 3): both streams, deadlines, arguments, dead links."""

import os
import signal
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsparkctl.rollout.host import CommandFailed, CommandTimedOut, SshError
from dsparkctl.rollout.ssh.machine import SshHost
from dsparkctl.rollout.ssh.running import MAX_STREAM_BYTES, line_of
from tests.e2e.ssh.conftest import Opener
from tests.sshd import Sshd


@pytest.mark.parametrize("n_mib", [4, 10])
def test_megabytes_on_both_streams_at_once_do_not_deadlock(box: SshHost, n_mib: int) -> None:
    """Both share one window of 2 MiB: who reads one after the other waits for ever."""
    script = f"head -c {n_mib}M /dev/zero >&2 & head -c {n_mib}M /dev/zero; wait"
    ran = box.run(("sh", "-c", script), timeout_s=60)
    assert (ran.code, len(ran.stdout), len(ran.stderr)) == (0, n_mib << 20, n_mib << 20)


def test_megabytes_through_stdin_and_back_do_not_deadlock(box: SshHost) -> None:
    data = os.urandom(5 << 20)
    assert box.run(("cat",), stdin=data).stdout == data


def test_more_than_a_stream_may_hold_is_read_and_dropped(box: SshHost) -> None:
    ran = box.run(("head", "-c", str(MAX_STREAM_BYTES + 100_000), "/dev/zero"))
    assert (ran.code, len(ran.stdout)) == (0, MAX_STREAM_BYTES)


def test_an_exit_code_and_a_signal_are_told(box: SshHost) -> None:
    assert box.run(("sh", "-c", "exit 3")).code == 3
    assert box.run(("sh", "-c", "kill -9 $$")).code == 128 + 9
    assert box.run(("/nonexistent/command",)).code == 127


def test_a_command_that_must_succeed_says_its_last_line(box: SshHost) -> None:
    with pytest.raises(CommandFailed, match=r"^box: sh -c .* ended with 7: the reason$") as caught:
        box.check(("sh", "-c", "echo before >&2; echo the reason >&2; exit 7"))
    assert caught.value.ran.code == 7


def test_a_deadline_is_of_the_whole_and_ends_the_command_on_the_host(box: SshHost) -> None:
    """Output that keeps coming resets no clock, and nothing is left running there."""
    started_s = time.monotonic()
    mark = f"{os.getpid()}4711"
    with pytest.raises(CommandTimedOut, match="still running after 1 s"):
        box.run(("sh", "-c", f"while :; do echo {mark}; sleep 0.1; done"), timeout_s=1)
    assert time.monotonic() - started_s < 8
    assert box.run(("pgrep", "-f", f"[e]cho {mark}")).stdout == b""


def test_a_command_that_ends_with_124_by_itself_did_not_time_out(box: SshHost) -> None:
    assert box.run(("sh", "-c", "exit 124")).code == 124


def test_a_command_that_does_not_read_its_input_ends(box: SshHost) -> None:
    assert box.run(("true",), stdin=bytes(8 << 20)).code == 0


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=5))
@settings(max_examples=200)
def test_no_argument_is_read_by_a_shell(arguments: list[str]) -> None:
    import subprocess

    line = line_of(["printf", "%s\\0", *arguments])
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == (arguments or [""])


def test_arguments_arrive_as_they_are(box: SshHost) -> None:
    arguments = ["a b", "$(id)", "'", '"', "*", "-x", "", "`x`", "\n", "ü"]
    ran = box.run(("printf", "%s\\0", *arguments))
    assert ran.stdout.decode().split("\0")[:-1] == arguments


def test_many_commands_need_one_connection(box: SshHost, sshd: Sshd) -> None:
    """sshd's MaxSessions is ten: channels must not pile up."""
    for n in range(25):
        assert box.run(("echo", str(n))).text == str(n)
    assert len(sshd.children()) == 1


def test_lines_are_followed_as_they_come_until_the_command_ends(box: SshHost) -> None:
    seen: list[tuple[str, float]] = []
    code = box.follow(
        ("sh", "-c", "echo one; sleep 0.5; echo two >&2; printf three; exit 4"),
        lambda line: seen.append((line, time.monotonic())),
    )
    assert (code, [line for line, _ in seen]) == (4, ["one", "two", "three"])
    assert seen[1][1] - seen[0][1] > 0.3


def test_a_command_that_is_no_longer_followed_is_ended(box: SshHost) -> None:
    mark = f"{os.getpid()}4712"

    def stop(_line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        box.follow(("sh", "-c", f"echo {mark}; exec sleep {mark}"), stop)
    end_s = time.monotonic() + 10
    while box.run(("pgrep", "-f", f"[s]leep {mark}")).stdout:
        assert time.monotonic() < end_s
        time.sleep(0.1)


def test_a_dead_link_is_noticed_within_15_s(opened: Opener, sshd: Sshd) -> None:
    """The far sshd is stopped, as if the machine hung: TCP still acknowledges everything."""
    host = opened()
    host.run(("true",))
    (child,) = sshd.children()[-1:]
    victims = [child, *_below(child)]

    def hang() -> None:
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)

    threading.Timer(0.5, hang).start()
    started_s = time.monotonic()
    with pytest.raises(SshError, match="box: the connection was lost"):
        host.run(("sleep", "60"), timeout_s=60)
    assert time.monotonic() - started_s < 15.5
    for pid in victims:
        os.kill(pid, signal.SIGCONT)
    assert host.run(("echo", "again")).text == "again"


def _below(pid: int) -> list[int]:
    from pathlib import Path

    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, text) for found in (child, *_below(child))]


def test_a_killed_session_is_a_lost_link_not_an_exit_code(opened: Opener, sshd: Sshd) -> None:
    host = opened()
    host.run(("true",))
    child = sshd.children()[-1]
    threading.Timer(0.3, lambda: os.kill(child, signal.SIGKILL)).start()
    with pytest.raises(SshError, match="the connection was lost"):
        host.run(("sleep", "30"), timeout_s=30)
    assert host.run(("echo", "again")).text == "again"
