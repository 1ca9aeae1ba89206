"""What stands before a message on either carrier (§5), and the faults that only ofl knows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.contract.codes import Op
from dsparkctl.contract.messages import frame
from dsparkctl.simulation.carriage import Carriage, NotWhole, Ofl, Stream, Unreadable

ops = st.sampled_from(list(Op))
seqs = st.integers(1, 2**64 - 1)
bodies = st.binary(max_size=300)


@given(carriage=st.sampled_from([Stream, Ofl]), op=ops, seq=seqs, body=bodies, answer=bodies)
def test_whatever_is_not_spoilt_arrives_as_it_left(
    carriage: type[Stream] | type[Ofl], op: Op, seq: int, body: bytes, answer: bytes
) -> None:
    on: Carriage = carriage()
    asked, reply = frame(op, seq, 9, body), frame(op, seq, 9, answer)
    came: list[bytes] = []

    def receive(stream: bytes) -> bytes:
        came.append(stream)
        return reply

    assert on.at_the_worker(on.of_request(asked) + asked, receive) == reply
    assert came == [len(asked).to_bytes(4, "little") + asked]
    assert on.at_rank_0(on.of_reply(reply) + reply, asked) == (reply, False)


def test_an_older_reply_shows_behind_a_word_that_says_too_much() -> None:
    on, asked = Ofl(), frame(Op.PING, 7, 9)
    long, short = frame(Op.PING, 7, 9, b"old" * 20), frame(Op.PING, 7, 9, b"new")
    on.at_rank_0(on.of_reply(long) + long, asked)
    taken = on.at_rank_0(on.of_reply(long) + short, asked)
    assert taken.message == short + long[len(short) :]


def test_a_reply_to_another_request_breaks_the_link() -> None:
    on, asked, other = Ofl(), frame(Op.PING, 7, 9), frame(Op.PING, 8, 9)
    with pytest.raises(Unreadable, match="another request"):
        on.at_rank_0(on.of_reply(other) + other, asked)


def test_op_0_is_echoed_and_no_worker_hears_of_it() -> None:
    on, asked = Ofl(), frame(Op.PING, 7, 9)
    echoed = on.at_the_worker(bytes(4) + asked, lambda _: pytest.fail("it did"))
    assert echoed == asked
    assert on.at_the_worker(bytes(4) + bytes(70_000), lambda _: b"") is None


def test_a_length_on_a_stream_that_says_too_much_is_waited_for() -> None:
    on, asked = Stream(), frame(Op.PING, 7, 9)
    with pytest.raises(NotWhole):
        on.at_rank_0((40).to_bytes(4, "little") + asked, asked)
