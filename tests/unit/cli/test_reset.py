"""`dsparkctl reset` (§6.4, R39)."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dsparkctl.contract.codes import ALL_SLOTS, FrameStatus, Op
from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.messages import parse_header, parse_reset
from tests.unit.net.peers import Behaviour, answering, peer, receive, reply

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def keeping(masks: list[int]) -> Behaviour:
    """Answers every RESET and keeps its mask; anything else is a failed test."""

    def behave(sock: socket.socket) -> None:
        while True:
            message = receive(sock)
            assert parse_header(message).op == Op.RESET, "only RESET is ever sent (R37)"
            masks.append(parse_reset(message[HEADER_BYTES:]).slot_mask)
            reply(sock, message)

    return behave


@pytest.mark.parametrize(
    ("flags", "mask"),
    [
        (["--slots", "0,2"], 0b101),
        (["--slots", " 3 , 3"], 0b1000),
        (["--slots", "31"], 1 << 31),
        (["--all"], ALL_SLOTS),
    ],
)
def test_the_named_slots_become_the_mask(cli: Cli, flags: list[str], mask: int) -> None:
    """§6.4: bit i is slot i."""
    masks: list[int] = []
    with peer(keeping(masks)) as endpoint:
        code, out, err = cli("reset", endpoint, *flags, "--yes")
        assert (code, err) == (0, "")
        assert "discarded" in out
        code, out, _ = cli("reset", endpoint, *flags, "--yes", "--json")
    assert json.loads(out)["slot_mask"] == mask
    assert masks == [mask, mask]


@pytest.mark.parametrize("flags", [[], ["--slots", "1", "--all"]])
def test_one_of_slots_and_all_must_be_said(cli: Cli, flags: list[str]) -> None:
    code, _, err = cli("reset", "tcp://127.0.0.1:1", *flags, "--yes")
    assert code == 2
    assert "either --slots 0,2 or --all" in err


@pytest.mark.parametrize("slots", ["", ",", "1,", "-1", "32", "0x1", "1 2", "\N{SUPERSCRIPT TWO}"])
def test_what_is_no_list_of_slots_is_a_usage_error(cli: Cli, slots: str) -> None:
    code, _, err = cli("reset", "tcp://127.0.0.1:1", f"--slots={slots}", "--yes")
    assert code == 2
    assert "expected numbers from 0 to 31" in err
    assert err.count("\n") == 1


def test_without_a_terminal_nothing_is_asked_and_nothing_is_sent(cli: Cli) -> None:
    masks: list[int] = []
    with peer(keeping(masks)) as endpoint:
        code, out, err = cli("reset", endpoint, "--all")
    assert (code, out) == (2, "")
    assert "say --yes" in err
    assert masks == []


@pytest.mark.parametrize(("answer", "code", "n_sent"), [("y\n", 0, 1), ("n\n", 1, 0), ("\n", 1, 0)])
def test_on_a_terminal_a_person_decides(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, n_sent: int
) -> None:
    masks: list[int] = []
    monkeypatch.setattr("sys.stdin", _Terminal(answer))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with peer(keeping(masks)) as endpoint:
        got, out, err = cli("reset", endpoint, "--slots", "2,0")
    assert got == code
    assert f"Discard the windows of slots 0, 2 of {endpoint}?" in err
    assert "Discard" not in out
    assert len(masks) == n_sent


class _Terminal:
    def __init__(self, answer: str) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self, _limit: int = -1) -> str:
        return self._answer


def test_the_data_listener_without_the_engines_session_is_explained(cli: Cli) -> None:
    """§9.1 in words, and what to do."""
    with peer(answering(status=FrameStatus.NO_SESSION)) as endpoint:
        code, out, err = cli("reset", endpoint, "--all", "--yes")
    assert (code, out) == (1, "")
    assert "NO_SESSION: this is the data listener" in err
    assert "use the admin listener" in err


def test_the_engines_listener_is_refused_without_take_over(cli: Cli) -> None:
    """R37."""
    code, _, err = cli("reset", "tcp://127.0.0.1:18621", "--all", "--yes")
    assert code == 2
    assert "--take-over" in err


def test_a_worker_that_is_gone_is_one_line(cli: Cli) -> None:
    code, out, err = cli("reset", "tcp://127.0.0.1:1", "--all", "--yes")
    assert (code, out, err.count("\n")) == (1, "", 1)
