"""Bytes to messages on the admin side: nothing blocks, nothing grows (R13, R33, R37)."""

import socket
from collections.abc import Iterator

import pytest

from dspark_worker.admin_link import AdminLink
from dsparkctl.contract.codes import Op
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import MAX_MESSAGE_BYTES, prefix
from dsparkctl.contract.messages import frame

Pair = tuple[socket.socket, AdminLink]


@pytest.fixture
def pair() -> Iterator[Pair]:
    peer, ours = socket.socketpair()
    link = AdminLink(ours)
    yield peer, link
    peer.close()
    link.close()


def framed(seq: int, body: bytes = b"", op: int = Op.PING) -> bytes:
    message = frame(op, seq, 0, body)
    return prefix(len(message)) + message


def drain(link: AdminLink, turns: int = 50) -> list[tuple[int, bytes]]:
    found = []
    for _ in range(turns):
        message = link.receive()
        if message is not None:
            found.append((message[0].seq, bytes(message[1])))
    return found


def test_nothing_to_read_is_no_message_and_no_wait(pair: Pair) -> None:
    assert pair[1].receive() is None


def test_r34_messages_come_in_order_one_at_a_time(pair: Pair) -> None:
    peer, link = pair
    peer.sendall(framed(1) + framed(2, b"four", Op.RESET) + framed(3))
    assert link.receive() is not None
    assert drain(link) == [(2, b"four"), (3, b"")]


@pytest.mark.parametrize("n_bytes", [0, 1, 4, 1023, 1024, 1025, 5000, 200_000])
def test_r13_a_body_above_1_kib_is_dropped_and_the_next_message_is_found(
    pair: Pair, n_bytes: int
) -> None:
    peer, link = pair
    data = framed(1, bytes(n_bytes)) + framed(2)
    found = []
    for start in range(0, len(data), 50_000):
        peer.sendall(data[start : start + 50_000])
        found += drain(link)
    assert found == [(1, bytes(n_bytes) if n_bytes <= 1024 else b""), (2, b"")]


@pytest.mark.parametrize("cut", range(1, 44))
def test_a_message_may_come_in_two_parts(pair: Pair, cut: int) -> None:
    peer, link = pair
    data = framed(1, b"12345678")
    peer.sendall(data[:cut])
    found = drain(link, 3)
    peer.sendall(data[cut:])
    assert found + drain(link, 3) == [(1, b"12345678")]


@pytest.mark.parametrize("length", [0, 31, MAX_MESSAGE_BYTES + 1, 0xFFFFFFFF])
def test_r33_an_absurd_length_is_told_by_the_prefix_alone(pair: Pair, length: int) -> None:
    peer, link = pair
    peer.sendall(prefix(length))
    with pytest.raises(WireError):
        link.receive()


def test_r32_a_wrong_magic_or_body_len_is_told_by_the_head_alone(pair: Pair) -> None:
    peer, link = pair
    peer.sendall(prefix(99) + frame(Op.PING, 1, 0))
    with pytest.raises(WireError):
        link.receive()


def test_a_peer_that_goes_is_a_connection_error(pair: Pair) -> None:
    peer, link = pair
    peer.sendall(framed(1)[:9])
    peer.close()
    assert link.receive() is None
    with pytest.raises(ConnectionError):
        link.receive()


def queue_until_refused(link: AdminLink, reply: bytes, attempts: list[int]) -> None:
    while len(attempts) < 1000:
        attempts.append(len(attempts))
        link.queue(reply)


def test_replies_wait_for_a_slow_reader_up_to_a_bound(pair: Pair) -> None:
    peer, link = pair
    reply = frame(Op.STATS, 1, 0, bytes(60_000))
    attempts: list[int] = []
    with pytest.raises(ConnectionAbortedError):
        queue_until_refused(link, reply, attempts)
    assert len(link.unsent) < (1 << 20) + 2 * len(reply)
    # What was queued is whole and in order.
    received = bytearray()
    peer.setblocking(False)
    while link.unsent:
        link.flush()
        received += peer.recv(1 << 20)
    assert received == (prefix(len(reply)) + reply) * len(attempts)
