"""The demo's engine refuses every wrong answer (§6.3, §7.2, C18); a peer of ours gives them."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dspark_worker.desk import Desk
from dspark_worker.scripted import ScriptedDrafter
from dsparkctl.contract.codes import FrameStatus, Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import HEADER_BYTES, prefix
from dsparkctl.contract.layout import layout_of
from dsparkctl.contract.messages import frame, parse_header
from dsparkctl.contract.records import AppHeader, Hello, HelloReply, ReplyHeader
from dsparkctl.demo.play import DemoError, HelloRefused, Played, play
from dsparkctl.demo.script import rounds
from dsparkctl.demo.terms import EMBEDDED, terms_of
from dsparkctl.net.transport import TransportError

OURS = terms_of(EMBEDDED).hello
HEAD = HEADER_BYTES + layout_of(ReplyHeader).size

Spoil = Callable[[AppHeader, bytearray], None]


def honest(_header: AppHeader, _reply: bytearray) -> None:
    pass


@contextmanager
def peer(spoil: Spoil = honest, own: Hello = OURS) -> Iterator[Endpoint]:
    """A desk behind a socket, whose replies `spoil` may change before they leave."""
    drafter = ScriptedDrafter(
        num_spec=own.num_spec,
        window=own.window,
        vocab_size=own.vocab_size,
        row_bytes=own.row_bytes,
        max_slots=own.max_slots,
    )
    desk = Desk(own, drafter, worker_name="peer", clock=lambda: 0.0)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(30)

    def serve() -> None:
        try:
            while True:
                sock, _ = listener.accept()
                desk.connected()
                with sock, sock.makefile("rb") as stream:
                    while len(head := stream.read(4)) == 4:
                        message = memoryview(stream.read(int.from_bytes(head, "little")))
                        header = parse_header(message)
                        reply = bytearray(desk.answer(header, message[HEADER_BYTES:], 0.0))
                        spoil(header, reply)
                        sock.sendall(prefix(len(reply)) + reply)
        except OSError:  # the listener was shut down, or the client had enough
            return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Endpoint("tcp", "127.0.0.1", listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(30)


def played(endpoint: Endpoint, hello: Hello = OURS, n_rounds: int = 30) -> Played:
    return play(endpoint, hello, rounds(1, n_rounds, hello), session=7)


def test_an_honest_worker_is_played_to_the_end_and_counted() -> None:
    with peer() as endpoint:
        found = played(endpoint)
    assert found.n_rounds == 30
    assert found.n_reconnects == 1
    assert len(found.round_trip_us) == len(found.worker_us) == len(found.wire_us) == 30
    assert sum(found.statuses.values()) == sum(found.kinds.values())
    assert found.worker_name.startswith("peer")


def spoils(at: int, value: bytes, op: Op = Op.STEP) -> Spoil:
    def spoil(header: AppHeader, reply: bytearray) -> None:
        if header.op == op:
            reply[at : at + len(value)] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoils(HEADER_BYTES, b"\x63"), "round 1: step_id 99, expected 1"),
        (spoils(HEAD, b"\x01"), "round 1: entry 0: PARTIAL_WINDOW with "),
        (spoils(HEAD, b"\x03\0\0\0"), "round 1: entry 0: "),
        (spoils(HEAD + 2, b"\xff\xff"), "round 1: entry 0: window_rows 65535"),
        (spoils(HEAD + 4, b"\0\0\0\0"), "round 1: entry 0: generation 0"),
        (spoils(24, b"\x07"), "round 1: frame status 7"),
    ],
)
def test_a_reply_that_rank_0_would_refuse_ends_the_demo_section_6_3(
    spoil: Spoil, said: str
) -> None:
    with peer(spoil) as endpoint, pytest.raises(DemoError) as caught:
        played(endpoint)
    assert str(caught.value).startswith(said)
    assert not isinstance(caught.value, HelloRefused)


def test_a_status_that_the_reply_rules_allow_but_section_7_2_does_not_ends_the_demo() -> None:
    def spoil(header: AppHeader, reply: bytearray) -> None:
        # PARTIAL_WINDOW with one row less than there are, drafts left as they are.
        rows = int.from_bytes(reply[HEAD + 2 : HEAD + 4], "little")
        if header.op == Op.STEP and rows > 1:
            reply[HEAD : HEAD + 4] = b"\x01\0" + (rows - 1).to_bytes(2, "little")

    with peer(spoil) as endpoint, pytest.raises(DemoError, match=r"PARTIAL_WINDOW .* \(§7\.2\)"):
        played(endpoint)


def test_missing_margins_end_the_demo_r31() -> None:
    def spoil(header: AppHeader, reply: bytearray) -> None:
        if header.op == Op.STEP and reply[HEADER_BYTES + 12]:
            n_values = int.from_bytes(reply[HEADER_BYTES + 8 : HEADER_BYTES + 10], "little") * 5
            del reply[-4 * n_values :]
            reply[HEADER_BYTES + 12] = 0
            reply[20:24] = (len(reply) - HEADER_BYTES).to_bytes(4, "little")

    with peer(spoil) as endpoint, pytest.raises(DemoError, match="margins are missing"):
        played(endpoint)


def test_another_checkpoint_is_told_with_both_digests_section_9_1() -> None:
    other = OURS._replace(drafter_identity=b"\xab" * 32)
    with peer(own=other) as endpoint, pytest.raises(HelloRefused) as caught:
        played(endpoint)
    assert "IDENTITY_MISMATCH" in str(caught.value)
    assert "ab" * 32 in str(caught.value)
    assert OURS.drafter_identity.hex() in str(caught.value)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (OURS._replace(max_slots=2), "CONFIG_MISMATCH: max_slots is 4 here, at most 2 there"),
        (OURS._replace(window=8), "CONFIG_MISMATCH: window is 16 here, 8 there"),
        (OURS._replace(vocab_size=300), "CONFIG_MISMATCH: its log says which value differs"),
    ],
)
def test_other_terms_are_told(own: Hello, said: str) -> None:
    with peer(own=own) as endpoint, pytest.raises(HelloRefused) as caught:
        played(endpoint)
    assert said in str(caught.value)


@pytest.mark.parametrize("status", list(FrameStatus)[1:])
def test_every_refusal_of_a_hello_is_one_line_with_its_name(status: FrameStatus) -> None:
    def spoil(header: AppHeader, reply: bytearray) -> None:
        if header.op == Op.HELLO:
            reply[:] = frame(Op.HELLO, header.seq, header.session, b"", status)

    with peer(spoil) as endpoint, pytest.raises(HelloRefused) as caught:
        played(endpoint)
    assert status.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_accepted_hello_that_means_another_drafter_is_refused_c18() -> None:
    at = HEADER_BYTES + layout_of(HelloReply).size - 40 - 64
    with (
        peer(spoils(at, bytes(32), Op.HELLO)) as endpoint,
        pytest.raises(HelloRefused, match="HELLO was accepted, but drafter_identity is"),
    ):
        played(endpoint)


def test_a_hello_reply_without_its_body_is_one_line() -> None:
    def spoil(header: AppHeader, reply: bytearray) -> None:
        reply[:] = frame(header.op, header.seq, header.session)

    with peer(spoil) as endpoint, pytest.raises(DemoError, match="bad reply to HELLO"):
        played(endpoint)


def test_nobody_there_is_a_transport_error() -> None:
    with peer() as endpoint:
        pass
    with pytest.raises(TransportError, match="nobody listens"):
        played(endpoint)
