"""A reply must answer its request (§6.1)."""

import contextlib
import socket
from collections.abc import Callable

import pytest

from dsparkctl.contract.codes import MAGIC, VERSION, FrameStatus, Op
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import frame, parse_header
from dsparkctl.contract.records import AppHeader
from dsparkctl.net.ask import NotOurs, ask
from dsparkctl.net.dial import dial
from dsparkctl.net.transport import Broken, Deadline, TimedOut
from tests.unit.net.peers import answering, peer, receive, saying, send, silent

PING = frame(Op.PING, 7, 9)


def changed(**fields: int) -> Callable[[socket.socket], None]:
    """Answers with the request's header but for these fields."""

    def behave(sock: socket.socket) -> None:
        header = parse_header(receive(sock))
        send(sock, pack(header._replace(**fields)))

    return behave


def test_a_reply_with_the_requests_echoes_comes_back_in_parts() -> None:
    behave = answering(b"abc", status=FrameStatus.CAPACITY)
    with peer(behave) as endpoint, contextlib.closing(dial(endpoint, Deadline(5))) as link:
        reply = ask(link, [PING], Deadline(5))
    assert reply.header == AppHeader(MAGIC, VERSION, Op.PING, 7, 9, 3, FrameStatus.CAPACITY, 0)
    assert bytes(reply.body) == b"abc"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"magic": 1}, "no DSP1 header: magic"),
        ({"body_len": 1}, "no DSP1 header: body_len"),
        ({"op": 4}, "not to our request: op 4, expected 5"),
        ({"seq": 8}, "not to our request: seq 8, expected 7"),
        ({"session": 0}, "not to our request: session 0, expected 9"),
        ({"version": 2}, "not to our request: version 2, expected 1"),
    ],
)
def test_a_reply_to_something_else_breaks_the_link(fields: dict[str, int], reason: str) -> None:
    """§6.1: the reply echoes op, seq and session."""
    with (
        peer(changed(**fields)) as endpoint,
        contextlib.closing(dial(endpoint, Deadline(5))) as link,
    ):
        with pytest.raises(Broken, match=f"^{endpoint}: .*{reason}"):
            ask(link, [PING], Deadline(5))
        with pytest.raises(Broken, match="given up"):
            ask(link, [PING], Deadline(5))


def test_a_peer_of_another_version_may_say_so_in_its_own_header() -> None:
    behave = changed(version=2, status=FrameStatus.BAD_VERSION)
    with peer(behave) as endpoint, contextlib.closing(dial(endpoint, Deadline(5))) as link:
        assert ask(link, [PING], Deadline(5)).header.status == FrameStatus.BAD_VERSION


@pytest.mark.parametrize("fields", [{"magic": 1}, {"op": 4}, {"seq": 8}, {"session": 0}])
def test_a_whole_message_that_answers_nothing_is_told_from_a_lost_connection(
    fields: dict[str, int],
) -> None:
    """§6.3: a wrong echo is a refused reply, a lost connection is a transport error (§10)."""
    with (
        peer(changed(**fields)) as endpoint,
        contextlib.closing(dial(endpoint, Deadline(5))) as link,
    ):
        with pytest.raises(NotOurs):
            ask(link, [PING], Deadline(5))
        with pytest.raises(Broken) as gone:
            ask(link, [PING], Deadline(5))
    assert not isinstance(gone.value, NotOurs)


def test_what_the_carrier_itself_raises_is_passed_on_as_it_is() -> None:
    """A length that no reply can have is no message at all."""
    with (
        peer(saying(bytes(4))) as endpoint,
        contextlib.closing(dial(endpoint, Deadline(5))) as link,
    ):
        with pytest.raises(Broken) as broken:
            ask(link, [PING], Deadline(5))
        assert not isinstance(broken.value, NotOurs)
    with (
        peer(silent) as endpoint,
        contextlib.closing(dial(endpoint, Deadline(5))) as link,
        pytest.raises(TimedOut),
    ):
        ask(link, [PING], Deadline(0.05))
