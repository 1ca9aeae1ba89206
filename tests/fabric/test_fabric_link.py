"""The two ends of ofl (§5) on each other: what arrives, what does not, what a failure leaves."""

import contextlib
import hashlib
import random
import socket
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspark_worker.fabric_listener import FabricListener
from dspark_worker.sockets import ListenError, NoSuchAddress
from dsparkctl.contract.codes import Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import MAX_MESSAGE_BYTES, MAX_REPLY_BYTES
from dsparkctl.contract.messages import frame
from dsparkctl.net.dial import dial, dialler
from dsparkctl.net.fabric.link import FabricLink
from dsparkctl.net.transport import Broken, Deadline, Link, Oversize, TimedOut
from tests.fabric.conftest import ANYWHERE, Bench, Serve

Open = Callable[[Serve], Bench]

PING = frame(Op.PING, 7, 0)
REPLY = frame(Op.PING, 7, 0, b"x" * 80)


def answering(listener: FabricListener, bench: Bench) -> None:
    """Newest wins; every request's digest comes back in a frame."""
    link = None
    while not bench.is_over.is_set():
        with contextlib.suppress(OSError):
            if listener.knocked():
                if link is not None:
                    link.close()
                link = listener.admit()
            if link is not None and link.receive():
                message = bytes(link.whole())
                bench.seen.append(message)
                link.send(frame(Op.PING, 7, 0, hashlib.sha256(message).digest()))
            time.sleep(5e-5)
    if link is not None:
        link.close()


def looked_at(link: Link) -> None:
    """Again and again, for 5 s at most."""
    for _ in range(500):
        link.check()
        time.sleep(0.01)


@pytest.mark.parametrize("n_bytes", [32, 33, 4096, 184_416, 3_932_256, MAX_MESSAGE_BYTES])
@pytest.mark.parametrize("spin_s", [0.0, 1.0])
def test_a_message_of_every_size_arrives_and_its_reply_comes_back(
    bench: Open, n_bytes: int, spin_s: float
) -> None:
    on = bench(answering)
    message = frame(Op.PING, 7, 0, random.Random(1).randbytes(n_bytes - 32))
    with contextlib.closing(dial(on.endpoint, Deadline(5), spin_s)) as link:
        for _ in range(2):
            reply = link.exchange((message,), Deadline(10))
            assert reply[32:] == hashlib.sha256(message).digest()
            link.check()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, 20_000), max_size=20),
    staged=st.integers(0, 20_000),
    n_bytes=st.integers(32, 20_000),
)
def test_parts_from_registered_memory_and_from_elsewhere_arrive_in_their_order(
    shared: tuple[Bench, FabricLink, memoryview], cuts: list[int], staged: int, n_bytes: int
) -> None:
    """§8.2: however a message is cut, and whatever of it lies in the staging buffer."""
    on, link, memory = shared
    message = frame(Op.PING, 7, 0, random.Random(n_bytes).randbytes(n_bytes - 32))
    memory[:n_bytes] = message
    edges = sorted(
        {0, n_bytes, *(32 + cut % n_bytes for cut in cuts if 32 + cut % n_bytes < n_bytes)}
    )
    parts = [memory[a:b] if (a // 7 + staged) % 3 else message[a:b] for a, b in pairwise(edges)]
    reply = link.exchange(parts, Deadline(10))
    assert reply[32:] == hashlib.sha256(message).digest()
    assert on.seen[-1] == message


@pytest.fixture
def shared(bench: Open) -> tuple[Bench, FabricLink, memoryview]:
    on = bench(answering)
    memory = memoryview(bytearray(64 << 10))
    link = dialler(on.endpoint, 0.0, memory)(Deadline(5))
    assert isinstance(link, FabricLink)
    return on, link, memory


def test_a_body_begins_at_a_multiple_of_64_in_the_workers_memory(bench: Open) -> None:
    """§6.3: the row block's offset is one, so rows are aligned where they were received."""

    def serve(_: FabricListener, on: Bench) -> None:
        link = on.admitted()
        on.received(link)
        body = link.message()[1]
        on.seen.append(link._library.ffi.cast("uintptr_t", link._library.ffi.from_buffer(body)))
        link.send(REPLY)
        on.go.wait(5)
        link.close()

    on = bench(serve)
    with contextlib.closing(dial(on.endpoint, Deadline(5))) as link:
        link.exchange((frame(Op.PING, 7, 0, bytes(64)),), Deadline(5))
        on.go.set()
    assert int(on.seen[0]) % 64 == 0


def test_an_echo_is_answered_by_the_transport_and_no_desk_sees_it(bench: Open) -> None:
    """§5: op 0."""
    on = bench(answering)
    with contextlib.closing(dial(on.endpoint, Deadline(5))) as link:
        assert isinstance(link, FabricLink)
        for payload in (b"", b"hello", bytes(MAX_REPLY_BYTES)):
            assert link.echo(payload, Deadline(5)) == payload
        link.exchange((PING,), Deadline(5))
        with pytest.raises(Oversize, match="65537 bytes is longer than the 65536"):
            link.echo(bytes(MAX_REPLY_BYTES + 1), Deadline(5))
    assert on.seen == [PING]


def test_an_oversize_message_is_refused_by_its_sender_and_nothing_is_sent(bench: Open) -> None:
    """§5: max_req_bytes 16 MiB."""
    on = bench(answering)
    link = dial(on.endpoint, Deadline(5))
    with pytest.raises(Oversize, match=r"16777217 bytes .* 16777216 .*nothing was sent"):
        link.exchange((PING, bytes(MAX_MESSAGE_BYTES - 31)), Deadline(5))
    with contextlib.closing(dial(on.endpoint, Deadline(5))) as again:
        again.exchange((PING,), Deadline(5))
    assert on.seen == [PING]


def test_a_timeout_in_the_middle_of_a_request_breaks_the_endpoint_and_the_next_one_works(
    bench: Open,
) -> None:
    """C26: nobody reads; 15.7 MB do not fit into any buffer."""

    def serve(listener: FabricListener, on: Bench) -> None:
        stuck = on.admitted()
        while not on.deaf.wait(1e-3):
            stuck.receive()  # which also completes the connection
        on.go.wait(10)
        stuck.close()
        answering(listener, on)

    on = bench(serve)
    dial_again = dialler(on.endpoint)
    link = dial_again(Deadline(5))
    on.deaf.set()
    time.sleep(0.02)
    began_at = time.monotonic()
    with pytest.raises(TimedOut, match=f"{on.endpoint}: no whole answer in time"):
        link.exchange((PING, bytes(15 << 20)), Deadline(0.05))
    assert time.monotonic() - began_at < 1
    with pytest.raises(Broken, match="given up"):
        link.exchange((PING,), Deadline(5))
    on.go.set()
    with contextlib.closing(dial_again(Deadline(5))) as link:
        link.exchange((PING,), Deadline(5))


def test_a_reply_behind_its_deadline_never_lands(bench: Open) -> None:
    """§5: the endpoint is broken before the call returns; the range keeps what it held."""

    def serve(listener: FabricListener, on: Bench) -> None:
        link = on.admitted()
        on.received(link)
        link.send(REPLY)
        on.received(link)
        on.go.wait(10)
        with contextlib.suppress(OSError):
            for _ in range(3):
                link.send(frame(Op.PING, 7, 0, b"late" * 20))
        on.seen.append("late replies were sent")
        link.close()
        answering(listener, on)

    on = bench(serve)
    dial_again = dialler(on.endpoint)
    link = dial_again(Deadline(5))
    held = link.exchange((PING,), Deadline(5))
    assert held == REPLY
    with pytest.raises(TimedOut):
        link.exchange((PING,), Deadline(0.05))
    on.go.set()
    while not on.seen:
        time.sleep(0.01)
    time.sleep(0.05)
    assert held == REPLY
    with contextlib.closing(dial_again(Deadline(5))) as link:
        assert link.exchange((PING,), Deadline(5))[32:] == hashlib.sha256(PING).digest()


def test_a_reply_that_nobody_asked_for_breaks_the_link_before_the_next_request(
    bench: Open,
) -> None:
    """C22."""

    def serve(_: FabricListener, on: Bench) -> None:
        link = on.admitted()
        on.received(link)
        link.send(REPLY)
        link.send(REPLY)
        on.seen.append("sent")
        on.go.wait(5)
        link.close()

    on = bench(serve)
    link = dial(on.endpoint, Deadline(5))
    link.exchange((PING,), Deadline(5))
    with pytest.raises(Broken, match=r"no request asked for|another request"):
        looked_at(link)
    with pytest.raises(Broken, match="given up"):
        link.check()


def test_the_newest_connection_wins(bench: Open) -> None:
    """§7.5."""
    on = bench(answering)
    old = dial(on.endpoint, Deadline(5))
    old.exchange((PING,), Deadline(5))
    with contextlib.closing(dial(on.endpoint, Deadline(5))) as new:
        new.exchange((PING,), Deadline(5))
        with pytest.raises(Broken, match="closed the connection"):
            looked_at(old)
        new.exchange((PING,), Deadline(5))


def test_a_peer_that_does_not_speak_ofl_disturbs_nobody(bench: Open) -> None:
    """Bytes of another protocol on the port, and a connection that says nothing."""
    on = bench(answering)
    with contextlib.closing(dial(on.endpoint, Deadline(5))) as link:
        link.exchange((PING,), Deadline(5))
        address = (on.endpoint.host, on.endpoint.port)
        strangers = [socket.create_connection(address) for _ in range(3)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" * 40)
        strangers[1].sendall(bytes(500))
        time.sleep(0.2)
        link.exchange((PING,), Deadline(5))
        for sock in strangers:
            sock.close()
        link.exchange((PING,), Deadline(5))


def test_nobody_listening_is_told_at_once_and_a_deaf_port_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        began_at = time.monotonic()
        with pytest.raises(TimedOut, match="no connection in time"):
            dial(Endpoint("o1tcp", "127.0.0.1", port), Deadline(0.2))
        assert time.monotonic() - began_at < 2
    with pytest.raises(Broken, match="connection refused: nobody listens there"):
        dial(Endpoint("o1tcp", "127.0.0.1", port), Deadline(5))


def test_a_bind_address_is_used_and_one_that_is_not_ours_is_refused(bench: Open) -> None:
    """§5: ?bind=."""
    on = bench(answering)
    here = Endpoint("o1tcp", "127.0.0.1", on.endpoint.port, "127.0.0.5")
    with contextlib.closing(dial(here, Deadline(5))) as link:
        link.exchange((PING,), Deadline(5))
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    to = f"0100007F:{on.endpoint.port:04X}"
    assert [row[1][:8] for row in rows if row[2] == to and row[3] == "01"] == ["0500007F"]
    with pytest.raises(Broken, match=r"192\.0\.2\.77"):
        dial(Endpoint("o1tcp", "127.0.0.1", on.endpoint.port, "192.0.2.77"), Deadline(1))


def test_an_address_is_taken_before_it_is_listened_on() -> None:
    """As on TCP: a busy port is found out first, and nobody is answered before the worker can."""
    first = FabricListener(ANYWHERE, time.perf_counter)
    endpoint = first.listen()
    with pytest.raises(ListenError, match=f"cannot listen on {endpoint}: "):
        FabricListener(endpoint, time.perf_counter)
    first.close()
    with pytest.raises(NoSuchAddress, match=r"cannot listen on o1tcp://192\.0\.2\.1:7"):
        FabricListener(Endpoint("o1tcp", "192.0.2.1", 7), time.perf_counter)


def test_terms_that_need_longer_messages_than_ofl_carries_are_refused() -> None:
    listener = FabricListener(ANYWHERE, time.perf_counter)
    with contextlib.closing(listener), pytest.raises(ListenError, match="lower --max-slots"):
        listener.prepare(MAX_MESSAGE_BYTES + 1)
