"""Bytes to messages on the engine's connection: into one aligned buffer, in order (§5, R32–R34)."""

import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest

from dspark_worker.data_link import DataLink, ReceiveBuffer
from dsparkctl.contract.codes import Op
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.framing import prefix
from dsparkctl.contract.messages import frame

Pair = tuple[socket.socket, DataLink]
LIMIT = 1 << 18


@pytest.fixture
def pair() -> Iterator[Pair]:
    peer, ours = socket.socketpair()
    link = DataLink(ours, ReceiveBuffer(LIMIT), time.perf_counter)
    yield peer, link
    peer.close()
    link.close()


def framed(seq: int, body: bytes = b"") -> bytes:
    message = frame(Op.PING, seq, 0, body)
    return prefix(len(message)) + message


def take(link: DataLink) -> tuple[int, bytes]:
    header, body = link.message()
    found = header.seq, bytes(body)
    link.consume()
    return found


def test_r34_messages_of_one_segment_come_in_order_without_another_read(pair: Pair) -> None:
    peer, link = pair
    peer.sendall(framed(1, b"one") + framed(2) + framed(3, b"three") + framed(4)[:10])
    assert link.receive()
    assert take(link) == (1, b"one")
    assert link.has_message()
    assert take(link) == (2, b"")
    assert link.has_message()
    assert take(link) == (3, b"three")
    assert not link.has_message()
    peer.sendall(framed(4)[10:])
    assert link.receive()
    assert take(link) == (4, b"")


def test_a_body_begins_64_aligned_so_that_rows_do(pair: Pair) -> None:
    peer, link = pair
    for _ in range(2):  # also for the one that was moved to the front
        peer.sendall(framed(1, bytes(128)) + framed(2, bytes(128)))
        assert link.receive()
        for seq in (1, 2):
            assert link.has_message()
            body = link.message()[1]
            assert np.frombuffer(body, np.uint8).ctypes.data % 64 == 0
            assert link.message()[0].seq == seq
            body.release()
            link.consume()


@pytest.mark.parametrize("cut", range(1, 44))
def test_a_message_may_come_in_two_parts(pair: Pair, cut: int) -> None:
    peer, link = pair
    data = framed(9, b"12345678")
    peer.sendall(data[:cut])
    assert not link.receive()
    peer.sendall(data[cut:])
    assert link.receive()
    assert take(link) == (9, b"12345678")


def test_a_half_message_is_waited_for_shortly_and_no_longer(pair: Pair) -> None:
    peer, link = pair
    peer.sendall(framed(1, bytes(1000))[:500])
    assert not link.receive()
    began = time.monotonic()
    assert not link.receive()
    assert 0.02 < time.monotonic() - began < 1.0


def test_r33_the_longest_message_fits_and_the_next_longer_is_told_by_its_prefix(
    pair: Pair,
) -> None:
    peer, link = pair
    peer.settimeout(0.2)
    data, whole = framed(5, bytes(LIMIT - 32)), False
    for start in range(0, len(data), 50_000):
        peer.sendall(data[start : start + 50_000])
        whole = link.receive()
    while not whole:
        whole = link.receive()
    assert take(link) == (5, bytes(LIMIT - 32))
    peer.sendall(prefix(LIMIT + 1))
    with pytest.raises(WireError):
        link.receive()


def test_r32_a_wrong_head_is_told_before_its_body_comes(pair: Pair) -> None:
    peer, link = pair
    peer.sendall(prefix(5000) + b"DSP2" + bytes(28))
    with pytest.raises(WireError):
        link.receive()


def test_a_peer_that_goes_is_a_connection_error(pair: Pair) -> None:
    peer, link = pair
    peer.close()
    with pytest.raises(ConnectionError):
        link.receive()


def send_without_end(link: DataLink) -> None:
    for _ in range(1000):
        link.send(bytes(60_000))


def test_a_reply_that_is_not_taken_is_an_os_error_in_bounded_time(pair: Pair) -> None:
    _, link = pair
    began = time.monotonic()
    with pytest.raises((BlockingIOError, TimeoutError)):
        send_without_end(link)
    assert 1.0 < time.monotonic() - began < 10.0
