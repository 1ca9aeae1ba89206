"""`dsparkctl stats` (§6.5) against peers that answer, lie, vanish and come back."""

import itertools
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.contract.codes import FrameStatus, Op
from dsparkctl.contract.messages import parse_header
from tests.unit.net.peers import Behaviour, answering, peer, receive, reply, saying

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def n_looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`n_looks(3)`: Ctrl-C comes after the third look; between two looks no time passes."""

    def limit(n: int) -> None:
        left = itertools.count(n - 1, -1)

        def sleep(_seconds: float) -> None:
            if not next(left):
                raise KeyboardInterrupt

        monkeypatch.setattr("dsparkctl.cli.watching.time.sleep", sleep)

    return limit


def body(**stats: Any) -> bytes:
    return json.dumps(stats).encode()


def test_one_look_is_a_table_of_keys_and_values(cli: Cli) -> None:
    with peer(answering(body(steps=5, slots=[{"slot": 0}], self_test_ok=True))) as endpoint:
        code, out, err = cli("stats", endpoint)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "steps         5",
        'slots         [{"slot": 0}]',
        "self_test_ok  yes",
    ]


def test_json_is_the_object_on_one_line(cli: Cli) -> None:
    with peer(answering(body(steps=5, name="a\nb"))) as endpoint:
        code, out, _ = cli("stats", endpoint, "--json")
    assert code == 0
    assert out.count("\n") == 1
    assert json.loads(out) == {"steps": 5, "name": "a\nb"}


def test_only_stats_is_ever_sent(cli: Cli) -> None:
    """R37: never HELLO."""
    ops = []

    def behave(sock: socket.socket) -> None:
        while True:
            message = receive(sock)
            ops.append(parse_header(message).op)
            reply(sock, message, b"{}")

    with peer(behave) as endpoint:
        cli("stats", endpoint)
    assert ops == [Op.STATS]


def test_a_workers_words_do_not_steer_the_terminal(cli: Cli) -> None:
    with peer(answering(body(name="\x1b[2J\x07"))) as endpoint:
        assert "\x1b" not in cli("stats", endpoint)[1]


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (answering(b"no json"), "the STATS answer is not JSON"),
        (answering(b"\xff"), "the STATS answer is not JSON"),
        (answering(b'{"a":NaN}'), "the STATS answer is not JSON"),
        (answering(b"[1]"), "the STATS answer is JSON, but no object"),
        (answering(b"{}", status=FrameStatus.INTERNAL), "STATS was refused with INTERNAL"),
        (saying(b"HTTP/1.1 200 OK\r\n\r\n"), "no DSP1 header"),
        (saying((65_537).to_bytes(4, "little")), "65537 bytes, expected 32 to 65536"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--watch"], ["--json"]])
def test_what_is_no_good_answer_is_one_line_and_exit_1(
    cli: Cli, behave: Behaviour, words: str, flags: list[str]
) -> None:
    with peer(behave) as endpoint:
        code, out, err = cli("stats", endpoint, *flags)
    assert (code, out) == (1, "")
    assert err.startswith(f"{endpoint}: ")
    assert words in err
    assert err.count("\n") == 1


def test_silence_is_waited_for_no_longer_than_asked(cli: Cli) -> None:
    def behave(sock: socket.socket) -> None:
        receive(sock)
        receive(sock)

    with peer(behave) as endpoint:
        code, _, err = cli("stats", endpoint, "--timeout", 0.05)
    assert (code, err) == (1, f"{endpoint}: no whole answer within 0.05 s\n")


def test_the_engines_listener_is_refused_without_take_over(cli: Cli) -> None:
    """R37."""
    code, out, err = cli("stats", "tcp://127.0.0.1:18620", "--watch")
    assert (code, out) == (2, "")
    assert "--take-over" in err


# --- watch ----------------------------------------------------------------------------------------


def restarting() -> Behaviour:
    """A worker that answers twice, is gone for one look, and is another one afterwards."""
    lives: Iterator[list[bytes]] = iter(
        [
            [body(pid=1, steps=10, uptime_s=5.0), body(pid=1, steps=20, uptime_s=6.0)],
            [],
            [body(pid=2, steps=1, uptime_s=0.5)] * 9,
        ]
    )

    def behave(sock: socket.socket) -> None:
        for one in next(lives):
            reply(sock, receive(sock), one)

    return behave


def test_watching_survives_a_restart_and_says_so(cli: Cli, n_looks: Callable[[int], None]) -> None:
    """Plain timestamped lines when piped, what happened besides on stderr; Ctrl-C is exit 130."""
    n_looks(5)
    with peer(restarting()) as endpoint:
        code, out, err = cli("stats", endpoint, "--watch")
    assert code == 130
    lines, notes = out.splitlines(), err.splitlines()
    for line in [*lines, *notes]:
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line)
    assert [line[21:].split(",")[0] for line in lines] == ["steps 10", "steps 20", "steps 1"]
    assert len(notes) == 2, "an outage is said once, when it begins, and when it is over"
    assert notes[0].endswith("; trying again")
    assert notes[1].endswith(f"{endpoint}: the worker started again")


def test_watching_as_json_is_an_object_a_look(cli: Cli, n_looks: Callable[[int], None]) -> None:
    n_looks(5)
    with peer(restarting()) as endpoint:
        code, out, err = cli("stats", endpoint, "--watch", "--json")
    assert code == 130
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["steps"] for one in found] == [10, 20, 1]
    assert [one["started_again"] for one in found] == [False, False, True]
    assert all("time" in one for one in found)
    assert err.count("\n") == 2
    assert found[1]["rates"]["steps_per_s"] > 0
    assert found[-1]["rates"]["steps_per_s"] is None


def test_a_terminal_gets_a_table_that_stays_in_place(
    cli: Cli, n_looks: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    n_looks(5)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    with peer(restarting()) as endpoint:
        code, out, _ = cli("stats", endpoint, "--watch")
    assert code == 130
    for part in (str(endpoint), "step rate", "self-test", "the worker started again"):
        assert part in out
