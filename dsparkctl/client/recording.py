"""What the client records of a connection (`VLLM_DSPARK_REMOTE_RECORD`), and when it is kept.

Decides which moments are worth keeping: a refused reply (§6.3), a breaker that opened (§10).
"""

from collections.abc import Callable, Sequence

from dsparkctl.client.counters import Counters
from dsparkctl.client.fallback import Outcome
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.layout import Buffer
from dsparkctl.net.flight.recorder import Recorder
from dsparkctl.net.transport import Deadline, Link, TransportError
from dsparkctl.state.breaker import Breaker, State


class RecordedLink:
    """A link whose messages are recorded. A `Link`."""

    def __init__(self, link: Link, recorder: Recorder) -> None:
        self._link = link
        self._recorder = recorder

    @property
    def endpoint(self) -> Endpoint:
        return self._link.endpoint

    def exchange(self, parts: Sequence[Buffer], deadline: Deadline) -> memoryview:
        self._recorder.sent(parts)
        try:
            reply = self._link.exchange(parts, deadline)
        except TransportError as error:
            self._recorder.remark(str(error))
            raise
        self._recorder.received(reply)
        return reply

    def check(self) -> None:
        self._link.check()

    def close(self) -> None:
        self._link.close()


def recorded(
    dial: Callable[[Deadline], Link], recorder: Recorder | None
) -> Callable[[Deadline], Link]:
    """The same dialler, with links that are recorded."""
    if recorder is None:
        return dial
    return lambda deadline: RecordedLink(dial(deadline), recorder)


class Keeper:
    """Looks at the counters after every round, and keeps the ring when something went wrong."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._n_refused = 0
        self._was_open = False

    def look(self, counters: Counters, breaker: Breaker) -> None:
        n_refused = counters.count(Outcome.BAD_REPLY)
        if n_refused > self._n_refused:
            self._recorder.keep(f"refused reply {counters.last_bad_reply}")
        is_open = breaker.state is State.OPEN
        if is_open and not self._was_open:
            self._recorder.keep("breaker opened")
        self._n_refused, self._was_open = n_refused, is_open
