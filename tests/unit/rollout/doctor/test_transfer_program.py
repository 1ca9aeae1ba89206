"""The two ends of doctor's transfer (issue 5 §2): bounded, and only with each other."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dsparkctl.rollout.doctor.transfer_program import MAX_BYTES, MAX_MESSAGE_BYTES, receive, send


def asked(port: int, **other: Any) -> dict[str, Any]:
    return {"own": "127.0.0.1", "peer": "127.0.0.1", "port": port, "sizes": [(5000, 3)], **other}


def a_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def receiving(port: int, within_s: float = 5.0) -> Iterator[dict[str, Any]]:
    """What the receiver said is in the dictionary afterwards."""
    said: dict[str, Any] = {}
    until_s = time.monotonic() + within_s
    thread = threading.Thread(target=lambda: said.update(receive(asked(port), until_s)))
    thread.start()
    yield said
    thread.join(10)
    assert not thread.is_alive()


def test_every_message_is_timed_until_it_is_acknowledged() -> None:
    port = a_port()
    with receiving(port) as said:
        found = send(asked(port), time.monotonic() + 5)
    assert found["error"] is None
    assert len(found["rtt_us"]) == 100
    assert [(one["n_bytes"], len(one["us"])) for one in found["rounds"]] == [(5000, 3)]
    assert said["received_bytes"] == 100 + 4 * 5000


def test_a_stranger_is_hung_up_on_and_the_measurement_goes_on() -> None:
    port = a_port()
    with receiving(port) as said:
        while True:
            try:
                stranger = socket.create_connection(("127.0.0.1", port), 5, ("127.0.0.2", 0))
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        found = send(asked(port), time.monotonic() + 5)
        assert stranger.recv(1) == b""
        stranger.close()
    assert found["error"] is None
    assert said["received_bytes"] > 0


def test_a_length_that_nobody_may_announce_ends_it() -> None:
    port = a_port()
    with receiving(port) as said:
        time.sleep(0.2)
        with socket.create_connection(("127.0.0.1", port), 5) as sock:
            sock.sendall(struct.pack("!I", MAX_MESSAGE_BYTES + 1))
            assert sock.recv(1) == b""
    assert said == {"received_bytes": 0}


def test_a_peer_that_never_acknowledges_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start_s = time.monotonic()
        found = send(asked(silent.getsockname()[1]), start_s + 0.5)
    assert found["rounds"] == []
    assert found["error"]
    assert time.monotonic() - start_s < 2


def test_nobody_there_is_an_error_in_time() -> None:
    found = send(asked(a_port()), time.monotonic() + 0.3)
    assert found["rtt_us"] == []
    assert found["error"] == "the time is over"


def test_no_more_than_the_bound_is_ever_sent() -> None:
    """However much is asked for: 64 MiB in all."""
    port = a_port()
    with receiving(port, 20.0) as said:
        found = send(asked(port, sizes=[(8 << 20, 1000)]), time.monotonic() + 20)
    assert found["error"] is None
    assert said["received_bytes"] <= MAX_BYTES
