"""The client's end of the TCP stub (§5, C22, C26) against peers that do everything wrong."""

import contextlib
import errno
import socket
import struct
import time

import pytest

from dsparkctl.contract.codes import Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import HEADER_BYTES, MAX_MESSAGE_BYTES, MAX_REPLY_BYTES
from dsparkctl.contract.layout import Buffer
from dsparkctl.contract.messages import frame
from dsparkctl.net.tcp import TcpLink, _connect, dial_tcp
from dsparkctl.net.transport import Broken, Deadline, TimedOut
from tests.unit.net.peers import answering, peer, receive, reply, saying, send, silent

PING = frame(Op.PING, 1, 0)


def linked(endpoint: Endpoint) -> contextlib.closing[TcpLink]:
    return contextlib.closing(dial_tcp(endpoint, Deadline(5)))


# --- exchange -------------------------------------------------------------------------------------


def test_a_message_in_several_buffers_arrives_as_one_and_its_reply_comes_back() -> None:
    """§5: u32 length, then AppHeader and body."""
    heard = []

    def behave(sock: socket.socket) -> None:
        heard.append(receive(sock))
        reply(sock, heard[0], b"answer")

    parts: list[Buffer] = [PING[:20], bytearray(PING[20:]), memoryview(b""), memoryview(b"")]
    with peer(behave) as endpoint, linked(endpoint) as link:
        message = link.exchange(parts, Deadline(5))
        assert bytes(message[HEADER_BYTES:]) == b"answer"
    assert heard == [PING]


def test_buffers_of_other_items_than_bytes_are_sent_as_their_bytes() -> None:
    rows = memoryview(struct.pack("<8H", *range(8))).cast("H")
    head = frame(Op.PING, 1, 0, bytes(rows))[:HEADER_BYTES]
    heard = []

    def behave(sock: socket.socket) -> None:
        heard.append(receive(sock))
        reply(sock, heard[0])

    with peer(behave) as endpoint, linked(endpoint) as link:
        link.exchange([head, rows], Deadline(5))
    assert heard[0][HEADER_BYTES:] == rows.tobytes()


def test_the_longest_message_goes_through_though_each_call_takes_a_part_of_it() -> None:
    """§5: 16 MiB; sendmsg stops wherever the socket's buffer ends, also inside a part."""
    third = bytes(range(256)) * (MAX_MESSAGE_BYTES // 768)
    body = [third, third, bytes(MAX_MESSAGE_BYTES - HEADER_BYTES - 2 * len(third))]
    head = frame(Op.PING, 1, 0, b"".join(body))[:HEADER_BYTES]
    heard = []

    def behave(sock: socket.socket) -> None:
        heard.append(receive(sock))
        reply(sock, heard[0])

    with peer(behave) as endpoint, linked(endpoint) as link:
        link.exchange([head, *body], Deadline(30))
    assert heard[0] == head + b"".join(body)


def test_a_reply_of_the_longest_kind_in_single_bytes_is_put_together() -> None:
    """§5: `max_resp_bytes`."""
    body = bytes(MAX_REPLY_BYTES - HEADER_BYTES)

    def behave(sock: socket.socket) -> None:
        message = receive(sock)
        whole = struct.pack("<I", MAX_REPLY_BYTES) + frame(Op.PING, 1, 0, body)
        for at in range(40):
            sock.sendall(whole[at : at + 1])
        sock.sendall(whole[40:])
        reply(sock, receive(sock))
        assert message == PING

    with peer(behave) as endpoint, linked(endpoint) as link:
        assert len(link.exchange([PING], Deadline(5))) == MAX_REPLY_BYTES
        assert len(link.exchange([PING], Deadline(5))) == HEADER_BYTES


@pytest.mark.parametrize("length", [0, 31, MAX_REPLY_BYTES + 1, 0xFFFFFFFF])
def test_a_length_that_no_reply_can_have_breaks_the_link_at_once(length: int) -> None:
    """R32, R33: nothing is waited for, nothing is allocated."""
    with peer(saying(struct.pack("<I", length))) as endpoint, linked(endpoint) as link:
        with pytest.raises(Broken, match=f"no DSP1 header.*{length} bytes"):
            link.exchange([PING], Deadline(5))
        with pytest.raises(Broken, match="given up"):
            link.exchange([PING], Deadline(5))


@pytest.mark.parametrize("extra", [b"x", frame(Op.PING, 1, 0), bytes(MAX_REPLY_BYTES)])
def test_bytes_behind_a_good_reply_are_never_taken_for_a_reply(extra: bytes) -> None:
    """C22: the reply counts, the connection does not."""

    def behave(sock: socket.socket) -> None:
        message = receive(sock)
        sock.sendall(struct.pack("<I", len(message)) + message + extra)
        silent(sock)

    with peer(behave) as endpoint, linked(endpoint) as link:
        assert bytes(link.exchange([PING], Deadline(5))) == PING
        with pytest.raises(Broken, match="no request asked for"):
            link.exchange([PING], Deadline(5))


def test_bytes_that_come_between_two_requests_are_never_taken_for_a_reply() -> None:
    """C22: a duplicate in a segment of its own."""

    def behave(sock: socket.socket) -> None:
        message = receive(sock)
        send(sock, message)
        time.sleep(0.05)
        send(sock, message)
        silent(sock)

    with peer(behave) as endpoint, linked(endpoint) as link:
        link.exchange([PING], Deadline(5))
        time.sleep(0.2)
        with pytest.raises(Broken, match="no request asked for"):
            link.exchange([PING], Deadline(5))


# --- check ----------------------------------------------------------------------------------------


def test_a_link_with_nothing_on_it_stands_its_check_and_goes_on() -> None:
    with peer(answering()) as endpoint, linked(endpoint) as link:
        for _ in range(3):
            link.check()
            link.exchange([PING], Deadline(5))
        link.check()


def test_a_check_waits_for_nothing() -> None:
    """A worker that works, or hangs, says nothing between two requests."""
    with peer(silent) as endpoint, linked(endpoint) as link:
        began_at = time.monotonic()
        for _ in range(100):
            link.check()
        assert time.monotonic() - began_at < 1


def test_a_check_finds_stray_bytes_that_came_with_the_last_reply_or_after_it() -> None:
    """C22: before anything is sent behind them, and again as long as anybody asks."""

    def both(sock: socket.socket) -> None:
        message = receive(sock)
        sock.sendall(struct.pack("<I", len(message)) + message + b"x")
        silent(sock)

    def later(sock: socket.socket) -> None:
        message = receive(sock)
        send(sock, message)
        time.sleep(0.05)
        sock.sendall(b"x")
        silent(sock)

    for behave in (both, later):
        with peer(behave) as endpoint, linked(endpoint) as link:
            link.exchange([PING], Deadline(5))
            time.sleep(0.2)
            with pytest.raises(Broken, match="no request asked for"):
                link.check()
            with pytest.raises(Broken, match="given up"):
                link.check()


def test_a_check_finds_bytes_that_came_before_any_request() -> None:
    """C22: a reply before its request is none."""

    def eager(sock: socket.socket) -> None:
        send(sock, PING)
        silent(sock)

    with peer(eager) as endpoint, linked(endpoint) as link:
        time.sleep(0.1)
        with pytest.raises(Broken, match="no request asked for"):
            link.check()


def test_a_check_finds_out_that_the_peer_is_gone() -> None:
    """Hung up or reset: Broken either way, and the link is closed."""

    def hang_up(sock: socket.socket) -> None:
        reply(sock, receive(sock))

    def slam(sock: socket.socket) -> None:
        reply(sock, receive(sock))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    for behave in (hang_up, slam):
        with peer(behave) as endpoint, linked(endpoint) as link:
            link.exchange([PING], Deadline(5))
            time.sleep(0.1)
            with pytest.raises(Broken, match="the peer closed the connection"):
                link.check()
            with pytest.raises(Broken, match="given up"):
                link.exchange([PING], Deadline(5))


def test_a_closed_link_does_not_stand_its_check() -> None:
    with peer(silent) as endpoint, linked(endpoint) as link:
        link.close()
        with pytest.raises(Broken, match="given up"):
            link.check()


# --- what fails -----------------------------------------------------------------------------------


def test_a_silent_peer_costs_the_deadline_and_the_connection() -> None:
    """C26; §7.5: closed, so that the late reply lands nowhere."""
    with peer(silent) as endpoint, linked(endpoint) as link:
        began_at = time.monotonic()
        with pytest.raises(TimedOut, match=r"within 0\.1 s"):
            link.exchange([PING], Deadline(0.1))
        assert 0.09 < time.monotonic() - began_at < 1
        with pytest.raises(Broken, match="given up"):
            link.exchange([PING], Deadline(1))


def test_a_peer_that_drips_cannot_stretch_the_deadline() -> None:
    """C26: one absolute deadline, not one a call."""

    def behave(sock: socket.socket) -> None:
        message = receive(sock)
        for byte in struct.pack("<I", 1000) + message:
            sock.sendall(bytes([byte]))
            time.sleep(0.05)

    with peer(behave) as endpoint, linked(endpoint) as link:
        began_at = time.monotonic()
        with pytest.raises(TimedOut):
            link.exchange([PING], Deadline(0.2))
        assert time.monotonic() - began_at < 1


@pytest.mark.parametrize("spin_s", [0.05, 10.0])
def test_a_spin_budget_stretches_no_deadline(spin_s: float) -> None:
    """C26, whether the budget ends before it or not."""
    with peer(silent) as endpoint:
        link = dial_tcp(endpoint, Deadline(5), spin_s)
        began_at = time.monotonic()
        with pytest.raises(TimedOut, match=r"within 0\.1 s"):
            link.exchange([PING], Deadline(0.1))
        assert 0.09 < time.monotonic() - began_at < 1


@pytest.mark.parametrize(("spin_s", "is_busy"), [(0.0, False), (0.001, False), (5.0, True)])
def test_a_budget_spins_for_its_length_and_then_sleeps(spin_s: float, is_busy: bool) -> None:
    """By the thread's own time: a core is busy only while it may be."""

    def behave(sock: socket.socket) -> None:
        while True:
            message = receive(sock)
            time.sleep(0.3)
            reply(sock, message)

    with (
        peer(behave) as endpoint,
        contextlib.closing(dial_tcp(endpoint, Deadline(5), spin_s)) as link,
    ):
        before_s = time.thread_time()
        link.exchange([PING], Deadline(5))
        spent_s = time.thread_time() - before_s
    assert (spent_s > 0.03) is is_busy


def test_the_deadline_covers_sending_too() -> None:
    """C26: a peer that never reads."""

    def behave(sock: socket.socket) -> None:
        time.sleep(0.5)

    with peer(behave) as endpoint, linked(endpoint) as link:
        head = frame(Op.PING, 1, 0, bytes(MAX_MESSAGE_BYTES - HEADER_BYTES))
        with pytest.raises(TimedOut):
            link.exchange([head], Deadline(0.1))


def test_a_peer_that_hangs_up_is_named_with_the_moment() -> None:
    def hang_up(sock: socket.socket) -> None:
        receive(sock)

    def half(sock: socket.socket) -> None:
        message = receive(sock)
        sock.sendall(struct.pack("<I", len(message)) + message[:10])

    for behave, when in ((hang_up, "instead of replying"), (half, "in the middle")):
        with (
            peer(behave) as endpoint,
            linked(endpoint) as link,
            pytest.raises(Broken, match=f"{endpoint}.*{when}"),
        ):
            link.exchange([PING], Deadline(5))


def test_a_peer_that_hung_up_between_two_requests_is_found_out_before_sending() -> None:
    def once(sock: socket.socket) -> None:
        reply(sock, receive(sock))

    with peer(once) as endpoint, linked(endpoint) as link:
        link.exchange([PING], Deadline(5))
        time.sleep(0.1)
        with pytest.raises(Broken, match="the peer closed the connection"):
            link.exchange([PING], Deadline(5))


def test_a_reset_is_one_line_too() -> None:
    def slam(sock: socket.socket) -> None:
        receive(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with (
        peer(slam) as endpoint,
        linked(endpoint) as link,
        pytest.raises(Broken, match="the peer closed the connection"),
    ):
        link.exchange([PING], Deadline(5))


# --- dialling -------------------------------------------------------------------------------------


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def test_nobody_listening_is_said_in_words() -> None:
    with pytest.raises(Broken, match=r"^tcp://127\.0\.0\.1:\d+: connection refused: nobody"):
        dial_tcp(Endpoint("tcp", "127.0.0.1", unused_port()), Deadline(5))


def test_a_connection_to_oneself_is_nobody_listening() -> None:
    """Loopback connects a port that is bound, but not listened on, to itself."""
    port = unused_port()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))
        with pytest.raises(ConnectionRefusedError):
            _connect(sock, Endpoint("tcp", "127.0.0.1", port), ("127.0.0.1", port), Deadline(5))


def test_the_connection_starts_at_the_address_that_bind_names() -> None:
    """§5: explicit local bind to the direct-link address."""
    froms = []

    def behave(sock: socket.socket) -> None:
        froms.append(sock.getpeername()[0])
        answering()(sock)

    with peer(behave) as endpoint:
        bound = Endpoint("tcp", "127.0.0.1", endpoint.port, "127.0.0.7")
        with linked(bound) as link:
            link.exchange([PING], Deadline(5))
    assert froms == ["127.0.0.7"]


def test_an_address_that_is_not_ours_cannot_be_bound_to() -> None:
    with peer(silent) as endpoint:
        foreign = Endpoint("tcp", "127.0.0.1", endpoint.port, "192.0.2.7")
        with pytest.raises(Broken, match=r"cannot bind to 192\.0\.2\.7"):
            dial_tcp(foreign, Deadline(5))


def test_an_address_of_the_other_family_cannot_be_bound_to() -> None:
    with pytest.raises(Broken, match="names no address"):
        dial_tcp(Endpoint("tcp", "127.0.0.1", 1, "::1"), Deadline(5))


def test_a_name_that_nobody_knows_is_said_in_words() -> None:
    with pytest.raises(Broken, match=r"the name nowhere\.invalid is not known"):
        dial_tcp(Endpoint("tcp", "nowhere.invalid", 1), Deadline(5))


def test_no_host_at_all_is_no_address() -> None:
    with pytest.raises(Broken, match="names no address"):
        dial_tcp(Endpoint("tcp", "", 1), Deadline(5))


def test_a_host_without_a_descriptor_left_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's round must not end with an exception that nobody expects."""

    def none_left(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", none_left)
    with pytest.raises(Broken, match=r"^tcp://127\.0\.0\.1:1: Too many open files"):
        dial_tcp(Endpoint("tcp", "127.0.0.1", 1), Deadline(5))


def test_a_passed_deadline_dials_nobody() -> None:
    with peer(silent) as endpoint, pytest.raises(TimedOut, match="no connection within"):
        dial_tcp(endpoint, Deadline(0))


def test_small_messages_are_not_held_back() -> None:
    """§5: TCP_NODELAY."""
    with peer(silent) as endpoint, linked(endpoint) as link:
        assert link._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
