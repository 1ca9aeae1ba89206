"""What a worker does with bytes that no Spark would send (§5, R32 to R34, R37), over real sockets.

One worker serves the whole module: whatever a test sent, the next one finds it well.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsparkctl.contract.codes import FrameStatus, Op
from dsparkctl.contract.framing import prefix
from dsparkctl.contract.messages import frame, hello_frame, step_head
from dsparkctl.contract.records import ReqEntry
from tests.e2e.running import Client, Worker, running_worker

SOON_S = 2.0
PING = prefix(32) + frame(Op.PING, 7, 0)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with running_worker("--drafter", "scripted") as worker:
        yield worker


@pytest.fixture(autouse=True)
def still_well(worker: Worker) -> Iterator[None]:
    """After every test the worker drafts, answers on both listeners, and has closed what it had."""
    yield
    with Client(worker.admin) as admin, Client(worker.data) as engine:
        assert admin.ping().status == FrameStatus.OK
        session = time.monotonic_ns() % 2**32 or 1
        assert engine.hello(worker.own, session=session).status == FrameStatus.OK
        entry = ReqEntry(0, 2, 0, 0, 1, 0, 1, 1, 1)
        head = step_head(
            seq=2, session=session, step_id=1, step_flags=0, row_bytes=384, entries=[entry]
        )
        header, body = engine.ask(head + bytes(384))
        assert header.status == FrameStatus.OK
        assert body[32:36] == b"\0\0\1\0"


def rss_bytes(worker: Worker) -> int:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) << 10


def assert_closed_soon(client: Client) -> None:
    client.sock.settimeout(SOON_S)
    began = time.monotonic()
    assert client.is_closed()
    assert time.monotonic() - began < SOON_S


GARBAGE = {
    "text": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 40,
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "length below a header": prefix(31) + bytes(31),
    "length above the limit": prefix((16 << 20) + 1),
    "length of 4 GiB": prefix(0xFFFFFFFF),
    "wrong magic": prefix(32) + b"DSP2" + bytes(28),
    "wrong magic of a long message": prefix(1 << 20) + b"DSP2" + bytes(28),
    "body_len below the length": prefix(40) + frame(Op.PING, 1, 1) + bytes(8),
    "body_len above the length": prefix(32) + frame(Op.PING, 1, 1, b"12345678")[:32],
    "body_len that differs, rest not sent": prefix(1 << 20) + frame(Op.PING, 1, 1),
}


@pytest.mark.parametrize("listener", ["data", "admin"])
@pytest.mark.parametrize("name", GARBAGE)
def test_r32_r33_lost_framing_is_closed_at_once_without_a_reply(
    worker: Worker, name: str, listener: str
) -> None:
    """Nothing follows the bytes: a worker that waited for more would not close."""
    with Client(getattr(worker, listener)) as client:
        client.sock.sendall(GARBAGE[name])
        assert_closed_soon(client)


def test_r33_the_longest_step_of_hello_is_no_oversized_frame(worker: Worker) -> None:
    with Client(worker.data) as client:
        client.hello(worker.own, session=5)
        assert client.ask(frame(Op.PING, 0, 0, bytes((16 << 20) - 32)))[0].status == 0


def test_r32_the_connection_is_kept_after_every_error_reply(worker: Worker) -> None:
    with Client(worker.data) as client:
        for message in (
            frame(99, 1, 1),
            frame(Op.STEP, 1, 1),
            frame(Op.RESET, 1, 1, b"abc"),
            frame(Op.HELLO, 1, 1, b"abc"),
            hello_frame(1, 1, worker.own._replace(window=1)),
            frame(Op.PING, 1, 1)[:4] + b"\x02\0" + frame(Op.PING, 1, 1)[6:],
        ):
            assert client.ask(message)[0].status != FrameStatus.OK
        assert client.hello(worker.own).status == FrameStatus.OK


@pytest.mark.parametrize("listener", ["data", "admin"])
def test_r34_frames_in_one_segment_are_answered_in_order(worker: Worker, listener: str) -> None:
    with Client(getattr(worker, listener)) as client:
        client.sock.sendall(
            b"".join(prefix(32 + n) + frame(Op.PING, n, 0, bytes(n)) for n in range(200))
        )
        assert [client.receive()[0].seq for _ in range(200)] == list(range(200))


@pytest.mark.parametrize("listener", ["data", "admin"])
def test_a_frame_may_be_split_at_every_boundary_of_its_head(worker: Worker, listener: str) -> None:
    message = frame(Op.PING, 3, 0, b"body")
    framed = prefix(len(message)) + message
    with Client(getattr(worker, listener)) as client:
        for cut in range(1, len(framed)):
            client.sock.sendall(framed[:cut])
            time.sleep(0.002)
            client.sock.sendall(framed[cut:] + PING)
            assert (client.receive()[0].seq, client.receive()[0].seq) == (3, 7), cut


def test_a_step_split_within_its_row_block_is_whole(worker: Worker) -> None:
    entry = ReqEntry(0, 2, 0, 0, 1, 0, 8, 1, 8)
    with Client(worker.data) as client:
        client.hello(worker.own, session=77)
        drafts = []
        for seq, cut in enumerate((0, 37, 100, 200, 3000), start=2):
            entry = entry._replace(req_flags=3)
            head = step_head(
                seq=seq, session=77, step_id=1, step_flags=0, row_bytes=384, entries=[entry]
            )
            message = head + bytes(range(256)) * 12
            framed = prefix(len(message)) + message
            client.sock.sendall(framed[:cut])
            time.sleep(0.08 if cut else 0)
            client.sock.sendall(framed[cut:])
            drafts.append(client.receive()[1][40:])
    assert len(set(drafts)) == 1


def test_a_byte_by_byte_writer_keeps_nobody_from_the_admin_side_or_the_listener(
    worker: Worker,
) -> None:
    hello = hello_frame(1, 9, worker.own)
    slow, admin = Client(worker.data), Client(worker.admin)
    with slow, admin:
        for byte in (prefix(len(hello)) + hello)[:30]:
            slow.sock.sendall(bytes([byte]))
            began = time.monotonic()
            assert admin.ping().status == FrameStatus.OK
            assert time.monotonic() - began < 0.5
        with Client(worker.data) as newest:  # §7.5: newest wins
            began = time.monotonic()
            assert newest.ping().status == FrameStatus.OK
            assert time.monotonic() - began < 0.5
            assert_closed_soon(slow)


def test_a_byte_by_byte_writer_is_answered_in_the_end(worker: Worker) -> None:
    hello = hello_frame(1, 9, worker.own)
    with Client(worker.data) as slow:
        for byte in prefix(len(hello)) + hello:
            slow.sock.sendall(bytes([byte]))
            time.sleep(0.001)
        assert slow.receive()[0].status == FrameStatus.OK


@pytest.mark.parametrize("cut", [1, 3, 4, 20, 36, 40, 200])
def test_a_connection_dropped_in_mid_frame_leaves_nothing(worker: Worker, cut: int) -> None:
    hello = hello_frame(1, 9, worker.own)
    for endpoint in (worker.data, worker.admin):
        client = Client(endpoint)
        client.sock.sendall((prefix(len(hello)) + hello)[:cut])
        # Reset instead of a polite end.
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        with Client(endpoint) as next_one:
            assert next_one.ping().status == FrameStatus.OK


def test_200_quick_reconnects_leak_no_descriptor(worker: Worker) -> None:
    with Client(worker.admin) as admin:
        connections = admin.stats()["connections"]
        before = worker.n_descriptors()  # with the admin connection, which has been answered
        for i in range(200):
            with Client(worker.data) as client:
                if i % 3 == 0:
                    assert client.hello(worker.own, session=i + 1).status == FrameStatus.OK
                elif i % 3 == 1:
                    client.sock.sendall(PING[: i % 36])
        with Client(worker.data) as client:
            client.ping()
            assert worker.n_descriptors() <= before + 1
        assert admin.stats()["connections"] == connections + 201


def test_r37_more_admin_connections_than_the_cap_drop_the_one_silent_for_longest(
    worker: Worker,
) -> None:
    first = Client(worker.admin)
    first.ping()
    silent = Client(worker.admin)
    silent.ping()
    clients = [Client(worker.admin) for _ in range(30)]
    for client in clients:
        assert client.ping().status == FrameStatus.OK
    first.ping()  # now `silent` is the one
    before = worker.n_descriptors()
    more = Client(worker.admin)
    assert more.ping().status == FrameStatus.OK
    assert silent.is_closed()
    for client in (first, *clients):
        assert client.ping().status == FrameStatus.OK
    assert worker.n_descriptors() == before
    for client in (first, silent, more, *clients):
        client.close()


def test_r37_100_admin_connections_at_once_do_not_hurt(worker: Worker) -> None:
    clients = [Client(worker.admin) for _ in range(100)]
    assert clients[-1].ping().status == FrameStatus.OK
    assert worker.n_descriptors() < 60
    for client in clients:
        client.close()


def test_r13_a_huge_ping_is_answered_and_not_kept(worker: Worker) -> None:
    """A probe's payload of a STEP's size costs the admin side no memory."""
    with Client(worker.admin) as admin:
        admin.ping()
        before = rss_bytes(worker)
        for _ in range(3):
            assert admin.ping(body=bytes((16 << 20) - 32)).status == FrameStatus.OK
        assert rss_bytes(worker) - before < 4 << 20


@pytest.mark.parametrize("listener", ["data", "admin"])
@pytest.mark.parametrize("op", [Op.PING, Op.STATS])
def test_a_peer_that_asks_and_never_reads_is_closed_within_bounds(
    worker: Worker, listener: str, op: Op
) -> None:
    message = frame(op, 1, 1)
    flood = (prefix(len(message)) + message) * 500
    # Descriptor and memory stay bounded; the others are served meanwhile.
    with Client(getattr(worker, listener)) as flooder, Client(worker.admin) as admin:
        flooder.sock.settimeout(0.2)
        admin.ping()
        before = rss_bytes(worker)
        deadline = time.monotonic() + 30.0
        slowest_s = 0.0
        try:
            while time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    flooder.sock.sendall(flood)
                began = time.monotonic()
                assert admin.ping().status == FrameStatus.OK
                slowest_s = max(slowest_s, time.monotonic() - began)
        except ConnectionError:
            pass
        else:
            pytest.fail("the flooder was never closed")
        assert rss_bytes(worker) - before < 16 << 20
        # A full send buffer may hold the one thread for 2 s, once.
        assert slowest_s < (4.0 if listener == "data" else 1.0)


def test_a_flood_of_stats_through_admin_does_not_starve_the_engine(worker: Worker) -> None:
    message = frame(Op.STATS, 1, 1)
    flood = (prefix(len(message)) + message) * 1000
    with Client(worker.data) as engine, Client(worker.admin) as flooder:
        assert engine.hello(worker.own, session=31).status == FrameStatus.OK
        flooder.sock.sendall(flood)
        slowest_s = 0.0
        for _ in range(50):
            began = time.monotonic()
            assert engine.ping().status == FrameStatus.OK
            slowest_s = max(slowest_s, time.monotonic() - began)
        assert slowest_s < 0.5
        for _ in range(1000):
            assert flooder.receive()[0].status == FrameStatus.OK
