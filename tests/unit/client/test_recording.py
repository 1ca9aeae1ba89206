"""What the client's flight recorder keeps, and when (issue 6, part 2): on a refused reply and on a
breaker that opens, and a failed exchange with its reason."""

from pathlib import Path

import pytest

from dsparkctl.client.counters import Counters
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.recording import Keeper, RecordedLink
from dsparkctl.contract.codes import Op
from dsparkctl.contract.messages import frame
from dsparkctl.net.flight.pcapng import read
from dsparkctl.net.flight.recorder import NEWEST, Recorder
from dsparkctl.net.tcp import dial_tcp
from dsparkctl.net.transport import Broken, Deadline
from dsparkctl.state.breaker import Breaker, State
from tests.unit.net.peers import answering, peer, saying

PING = frame(Op.PING, 1, 0)


class Noting:
    """Notes why it was asked to keep."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def keep(self, reason: str) -> None:
        self.reasons.append(reason)


def test_a_refused_reply_and_an_opened_breaker_are_kept_once_each() -> None:
    noting, counters, breaker = Noting(), Counters(5), Breaker(3, 4)
    keeper = Keeper(noting)  # type: ignore[arg-type]
    keeper.look(counters, breaker)
    counters.ended(Outcome.TIMEOUT)
    keeper.look(counters, breaker)
    assert noting.reasons == []
    counters.ended(Outcome.BAD_REPLY)
    counters.last_bad_reply = "entry 0: draft id -1"
    for _ in range(3):
        keeper.look(counters, breaker)
    for state in (State.OPEN, State.OPEN, State.PROBING, State.CLOSED):
        keeper.look(counters, breaker._replace(state=state))
    assert noting.reasons == ["refused reply entry 0: draft id -1", "breaker opened"]


def test_an_exchange_is_recorded_with_its_reply_or_with_why_there_is_none(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, max_bytes=1 << 20, with_rows=False)
    with peer(answering()) as endpoint:
        link = RecordedLink(dial_tcp(endpoint, Deadline(5)), recorder)
        assert link.endpoint == endpoint
        link.exchange([PING], Deadline(5))
        link.check()
        link.close()
    with peer(saying(b"\xff\xff\xff\xff")) as endpoint:
        link = RecordedLink(dial_tcp(endpoint, Deadline(5)), recorder)
        with pytest.raises(Broken):
            link.exchange([PING], Deadline(5))
    recorder.close()
    first, reply, second, remark = read(tmp_path / NEWEST)
    assert (first.data, second.data) == (PING, PING)
    assert (reply.is_request, reply.data[6]) == (False, Op.PING)
    assert "no DSP1 header" in remark.comment
