"""PINGs one behind the other, whoever dials (§6.6)."""

import socket
import threading

import pytest

from dsparkctl.contract.codes import FrameStatus, Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net.dial import dial
from dsparkctl.net.ping import Course, Refused, Tally, measure, request
from dsparkctl.net.tcp import TcpLink
from dsparkctl.net.transport import Broken, Deadline, Link
from tests.unit.net.peers import Behaviour, answering, peer

COURSE = Course(n=4, pause_s=0.0, payload_bytes=0, timeout_s=2.0)


def test_every_ping_is_tallied_on_one_connection() -> None:
    n_dialled = 0
    tally = Tally()
    with peer(answering()) as endpoint:

        def counting(deadline: Deadline) -> Link:
            nonlocal n_dialled
            n_dialled += 1
            return dial(endpoint, deadline)

        measure(COURSE, counting, tally)
    assert (n_dialled, len(tally.rtt_us), tally.n_sent) == (1, 4, 4)


def test_it_ends_when_its_time_is_over() -> None:
    tally = Tally()
    with peer(answering()) as endpoint:
        measure(COURSE, lambda left: dial(endpoint, left), tally, until=Deadline(0.0))
    assert tally.n_sent == 0


def test_no_first_connection_is_an_error_and_no_loss() -> None:
    tally = Tally()
    with peer(answering()) as endpoint:
        pass
    with pytest.raises(Broken):
        measure(COURSE, lambda left: dial(endpoint, left), tally)
    assert tally.n_sent == 0


def test_a_refusal_names_who_refused_what_and_how() -> None:
    with peer(answering(status=FrameStatus.NO_SESSION)) as endpoint:
        link = dial(endpoint, Deadline(2.0))
        with pytest.raises(Refused) as caught:
            request(link, Op.STATS, b"", 2.0)
        link.close()
    assert (caught.value.endpoint, caught.value.op) == (endpoint, Op.STATS)
    assert caught.value.status == FrameStatus.NO_SESSION


def served(sock: socket.socket, behave: Behaviour) -> threading.Thread:
    def serve() -> None:
        with sock:
            try:
                behave(sock)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_a_link_may_stand_on_the_near_end_of_a_tunnel() -> None:
    """A socket pair has no TCP_NODELAY to set."""
    near, far = socket.socketpair()
    serving = served(far, answering(b"{}"))
    link = TcpLink(near, Endpoint("tcp", "10.202.28.1", 18630))
    assert request(link, Op.STATS, b"", 2.0) == b"{}"
    link.close()
    serving.join(5)
    assert not serving.is_alive()
