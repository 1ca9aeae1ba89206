"""`dsparkctl probe` (§6.6) against peers that answer, lose, and lie."""

import itertools
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.contract.codes import FrameStatus, Op
from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.messages import parse_header
from tests.unit.net.peers import answering, peer, receive, reply, saying, silent

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def probed(cli: Cli, *args: object) -> tuple[int, dict[str, Any], str]:
    """Exit code, the one object on stdout, and stderr."""
    code, out, err = cli("probe", *args, "--json")
    assert out.count("\n") == 1
    return code, json.loads(out), err


def test_every_ping_is_answered_and_summed_up(cli: Cli) -> None:
    with peer(answering()) as endpoint:
        code, found, err = probed(cli, endpoint, "--count", 20, "--interval", 0)
    assert (code, err) == (0, "")
    assert found["endpoint"] == str(endpoint)
    assert (found["sent"], found["answered"], found["lost"]) == (20, 20, 0)
    rtt = found["rtt_us"]
    assert list(rtt) == ["min", "p50", "p90", "p99", "max"]
    assert 0 < rtt["min"] <= rtt["p50"] <= rtt["p90"] <= rtt["p99"] <= rtt["max"]


def test_the_table_names_units_and_is_all_there_is_without_a_terminal(cli: Cli) -> None:
    with peer(answering()) as endpoint:
        code, out, err = cli("probe", endpoint, "--count", 3, "--interval", 0)
    assert (code, err) == (0, "")
    heading, line = out.splitlines()
    assert "p50 us" in heading
    assert "0.0%" in line


def test_a_ping_carries_its_payload_and_no_session_and_its_own_seq(cli: Cli) -> None:
    """R1, R13; and it is never HELLO (R37)."""
    heard = []

    def behave(sock: socket.socket) -> None:
        while True:
            heard.append(receive(sock))
            reply(sock, heard[-1])

    with peer(behave) as endpoint:
        probed(cli, endpoint, "--count", 3, "--interval", 0, "--payload", 5000)
    headers = [parse_header(message) for message in heard]
    assert {(h.op, h.session, h.body_len) for h in headers} == {(Op.PING, 0, 5000)}
    assert [h.seq for h in headers] == [1, 2, 3]
    assert {message[HEADER_BYTES:] for message in heard} == {bytes(5000)}


def test_rtt_measures_a_thousand_without_a_pause(cli: Cli) -> None:
    with peer(answering()) as endpoint:
        code, found, _ = probed(cli, endpoint, "--rtt")
    assert (code, found["answered"]) == (0, 1000)


def test_a_payload_beyond_the_longest_message_is_a_usage_error(cli: Cli) -> None:
    """§5: 16 MiB with the AppHeader."""
    code, out, err = cli("probe", "tcp://127.0.0.1:1", "--payload", (16 << 20) - 31)
    assert (code, out) == (2, "")
    assert "--payload" in err


def test_some_lost_is_exit_6_and_the_connection_is_made_anew(cli: Cli) -> None:
    numbers = itertools.count(1)

    def every_third_is_lost(sock: socket.socket) -> None:
        while True:
            message = receive(sock)
            if next(numbers) % 3 == 0:
                return
            reply(sock, message)

    with peer(every_third_is_lost) as endpoint:
        code, found, err = probed(cli, endpoint, "--count", 7, "--interval", 0)
    assert code == 6
    assert (found["sent"], found["answered"], found["lost"]) == (7, 5, 2)
    assert err == f"2 of 7 PINGs were lost: {endpoint}: {HUNG_UP}\n"


HUNG_UP = "the peer closed the connection instead of replying"


def test_a_peer_that_stays_silent_is_exit_1_and_is_not_waited_for_for_ever(cli: Cli) -> None:
    with peer(silent) as endpoint:
        code, found, err = probed(cli, endpoint, "--count", 3, "--timeout", 0.05, "--interval", 0)
    assert code == 1
    assert (found["sent"], found["answered"], found["rtt_us"]) == (3, 0, {})
    assert err == f"3 of 3 PINGs were lost: {endpoint}: no whole answer within 0.05 s\n"


def test_after_ten_losses_in_a_row_nobody_is_waited_for(cli: Cli) -> None:
    with peer(silent) as endpoint:
        code, found, _ = probed(cli, endpoint, "--rtt", "--timeout", 0.01)
    assert (code, found["sent"]) == (1, 10)


def test_a_dead_port_is_one_line_and_exit_1(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    code, out, err = cli("probe", f"tcp://127.0.0.1:{port}")
    assert (code, out) == (1, "")
    assert err == f"tcp://127.0.0.1:{port}: connection refused: nobody listens there\n"
    code, found, _ = probed(cli, f"tcp://127.0.0.1:{port}")
    assert (code, found["sent"], found["rtt_us"]) == (1, 0, {})


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        bytes(100),
        b"\x20\0\0\0" + bytes(32),
        b"\xff" * 70_000,
    ],
)
def test_an_answer_without_a_dsp1_header_says_so(cli: Cli, garbage: bytes) -> None:
    with peer(saying(garbage)) as endpoint:
        code, out, err = cli("probe", endpoint, "--count", 1)
    assert (code, out) == (1, "")
    assert "the answer has no DSP1 header" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (FrameStatus.BAD_VERSION, 10, "BAD_VERSION: it speaks another version"),
        (FrameStatus.UNSUPPORTED_OP, 1, "UNSUPPORTED_OP: it does not serve PING"),
        (FrameStatus.INTERNAL, 1, "INTERNAL: the worker failed on it; its log says why"),
        (77, 1, "unknown status 77"),
        (-1, 1, "unknown status -1"),
    ],
)
def test_a_status_that_is_not_ok_is_said_in_words(
    cli: Cli, status: int, code: int, words: str
) -> None:
    """§9.1: an answer all the same, so nothing is tried again."""
    with peer(answering(status=status)) as endpoint:
        got, out, err = cli("probe", endpoint, "--count", 5)
    assert (got, out) == (code, "")
    assert words in err
    assert err.count("\n") == 1


def test_the_engines_listener_is_refused_without_take_over(cli: Cli) -> None:
    """R37."""
    code, out, err = cli("probe", "tcp://127.0.0.1:18620")
    assert (code, out) == (2, "")
    assert "closes the engine's connection" in err
    assert err.count("\n") == 1
    Path("dspark.yaml").write_text(
        "version: 1\nworker: {checkpoint: c, identity_from_files: true, "
        "listen: 'tcp://127.0.0.1:7000'}\n"
    )
    assert cli("probe", "tcp://127.0.0.1:7000")[0] == 2


def test_with_take_over_the_engines_listener_is_probed(cli: Cli) -> None:
    with peer(answering()) as endpoint:
        Path("dspark.yaml").write_text(
            f"version: 1\nworker: {{checkpoint: c, identity_from_files: true, listen: {endpoint}}}"
        )
        assert cli("probe", endpoint)[0] == 2
        assert cli("probe", endpoint, "--count", 1, "--take-over")[0] == 0


def test_a_terminal_gets_a_histogram(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with peer(answering()) as endpoint:
        code, out, _ = cli("probe", endpoint, "--count", 30, "--interval", 0)
    assert code == 0
    bars = [line for line in out.splitlines() if "#" in line]
    assert bars
    assert all(" us " in line for line in bars)


@pytest.mark.parametrize("command", ["probe", "stats", "reset"])
def test_the_file_that_dspark_config_names_is_the_one_that_counts(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """As for `config`: an operator must not look at another worker by the same variable."""
    path = tmp_path / "other.yaml"
    path.write_text(
        "version: 1\nworker:\n  checkpoint: /x\n  identity_from_files: true\n"
        "  listen: tcp://127.0.0.1:7\n  admin: [tcp://127.0.0.1:9]\n"
    )
    monkeypatch.setenv("DSPARK_CONFIG", str(path))
    code, _, err = cli(command, "tcp://127.0.0.1:7", *(["--all", "--yes"] * (command == "reset")))
    assert code == 2
    assert "is the data listener" in err
