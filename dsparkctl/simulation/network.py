"""The way between the two sides, with everything that can happen on it (§5, §7.5).

Decides what becomes of each message: here the faults that `faults` drew are done. Behaves to the
desk as the worker's server does: the newest connection wins. Frames of dead connections may still
be processed later, even behind a newer connection's HELLO: §7.5 allows it, so the client must
survive it.
"""

import random
from typing import Final

from dsparkctl.contract.codes import Op
from dsparkctl.contract.framing import HEADER_BYTES, PREFIX_BYTES
from dsparkctl.net.transport import Broken, Deadline, TimedOut, TransportError
from dsparkctl.simulation.answering import Answering
from dsparkctl.simulation.carriage import Carriage, NotWhole, Unreadable
from dsparkctl.simulation.faults import Kind, Part, Weather
from dsparkctl.simulation.links import ENDPOINT, Event, Seen, SimulatedLink
from dsparkctl.simulation.worker import Worker
from dsparkctl.simulation.world import Clock, Terms

_TRUSTED: Final = range(PREFIX_BYTES + HEADER_BYTES + 56, PREFIX_BYTES + HEADER_BYTES + 60)
"""HELLO's max_model_len: no reply echoes it, so nobody could ever notice that it was changed."""

_BOTH_WAYS: Final = (Kind.LOST, Kind.LATE, Kind.CUT, Kind.CORRUPTED)


class Network:
    """All connections, and the worker at their end."""

    def __init__(
        self,
        terms: Terms,
        clock: Clock,
        weather: Weather,
        draw: random.Random,
        carriage: Carriage,
    ) -> None:
        self.worker = Worker(terms, clock)
        self.clock = clock
        self.live = 0
        """Number of the connection that the worker holds; 0: none."""
        self.suspects: set[int] = set()
        """Slots whose windows may differ without rank 0's knowledge: a changed byte, a RESET."""
        self.is_tampered = False
        """Somebody had a hand in the last exchange."""
        self.trace: list[Event] = []
        self._terms = terms
        self._weather = weather
        self._draw = draw
        self._carriage = carriage
        self._answering = Answering(terms, weather, draw)
        self._n_connections = 0
        self._late: list[bytes] = []
        self._down_until_round = 0

    def saw(self, event: Event) -> None:
        self.trace.append(event)

    # --- rank 0's calls ---------------------------------------------------------------------------

    def dial(self, deadline: Deadline) -> SimulatedLink:
        weather, draw = self._weather, self._draw
        self.saw(Event(Seen.DIAL, self.clock.now_s))
        is_slow = weather.dial is Kind.SLOW_DIAL
        try:
            if Part.DIAL in weather.down:
                weather.outage_hit()
                if draw.random() < 0.5:
                    raise self._out_of_time(deadline)
                raise self._broken("no route")
            if self._down_until_round > weather.n_round:
                raise self._broken("connection refused: nobody listens there")
            if is_slow:
                weather.dial = None
                weather.happened(Kind.SLOW_DIAL)
                if draw.random() < 0.3:
                    raise self._out_of_time(deadline)
                self.clock.advance(deadline.left_s * draw.uniform(0.6, 0.99))
        except TransportError:
            self.saw(Event(Seen.DIAL_FAILED, self.clock.now_s))
            raise
        self.clock.advance(draw.uniform(1e-4, 2e-3))
        self._deliver_late(0.3)
        if weather.dial is Kind.DUPLICATE_CONNECTION:
            weather.dial = None
            weather.happened(Kind.DUPLICATE_CONNECTION)
            self._accept()
        return SimulatedLink(self, self._accept(), is_slow=is_slow)

    def carry(self, link: SimulatedLink, request: bytes, deadline: Deadline) -> bytes:
        """The reply to a whole request, or the error that rank 0 gets instead."""
        weather, draw = self._weather, self._draw
        if self._late:
            self._deliver_late(0.2)
        if weather.down:
            self._stop_request(request, deadline)
        kind = self._fault_of(request[6])
        self.is_tampered = kind is not None or weather.failing is not None
        if kind in _BOTH_WAYS and draw.random() < 0.5:
            reply = self._spoil_request(kind, request, deadline)
            kind = None
        else:
            reply = self._answering.answer(self.worker, request, kind)
        self._pass_time(link, deadline)
        if Part.REPLY in weather.down:
            weather.outage_hit()
            raise self._out_of_time(deadline)
        return reply if kind is None else self._spoil_reply(kind, link, request, reply, deadline)

    # --- what happens to the worker ---------------------------------------------------------------

    def begin_round(self) -> None:
        if self._late:
            self._deliver_late(0.03)

    def restart_worker(self, n_down_rounds: int) -> None:
        self.worker = Worker(self._terms, self.clock)
        self.live = 0
        self._late.clear()
        self._down_until_round = self._weather.n_round + n_down_rounds

    def welcome_ghost(self) -> None:
        """An older connection comes to the listener now, and is the newest there."""
        self._accept()

    def reset(self, slot_mask: int) -> None:
        self.worker.reset(slot_mask)
        self.suspects.update(i for i in range(self._terms.max_slots) if slot_mask >> i & 1)

    def get_ahead(self, slot: int, by: int) -> bool:
        self.suspects.add(slot)
        return self.worker.get_ahead(slot, by)

    def calm(self) -> None:
        """What is still under way never arrives."""
        self._late.clear()
        self._down_until_round = 0

    def _accept(self) -> int:
        self._n_connections += 1
        self.live = self._n_connections
        self.worker.desk.connected()
        return self.live

    def _deliver_late(self, share: float) -> None:
        if Part.WORKER in self._weather.down:
            return
        for request in [late for late in self._late if self._draw.random() < share]:
            self._late.remove(request)
            self.worker.answer(request)
            self._weather.details["late: processed after all"] += 1

    # --- on the way there -------------------------------------------------------------------------

    def _stop_request(self, request: bytes, deadline: Deadline) -> None:
        down = self._weather.down
        if Part.WORKER in down:
            self._late.append(request)  # it lies in the worker's socket
        elif Part.REQUEST not in down:
            return
        self._weather.outage_hit()
        raise self._out_of_time(deadline)

    def _fault_of(self, op: int) -> Kind | None:
        """The fault that this message meets; one that fits a STEP only waits for the next."""
        kind = self._weather.message
        if kind is None or (op != Op.STEP and kind is Kind.REFUSED):
            return None
        self._weather.message = None
        return kind

    def _spoil_request(self, kind: Kind, request: bytes, deadline: Deadline) -> bytes:
        if kind is Kind.CORRUPTED:
            return self._corrupt_request(request)
        self._weather.happened(kind, "request")
        if kind is Kind.CUT:
            self.live = 0
            raise self._broken("the peer closed the connection instead of replying")
        if kind is Kind.LATE:
            self._late.append(request)
        raise self._out_of_time(deadline)

    def _corrupt_request(self, request: bytes) -> bytes:
        came = self._corrupted(self._carriage.of_request(request), request)
        self._weather.happened(Kind.CORRUPTED, "request")
        reply = self._carriage.at_the_worker(came, self.worker.receive)
        if reply is None:
            self.live = 0
            raise self._broken("the peer closed the connection instead of replying")
        self.suspects.update(range(self._terms.max_slots))
        return reply

    def _corrupted(self, word: bytes, message: bytes) -> bytes:
        """Word and message with one byte changed; heads more often than their length asks for."""
        draw = self._draw
        stream = bytearray(word + message)
        zone = draw.choice((PREFIX_BYTES + HEADER_BYTES, PREFIX_BYTES + 128, len(stream)))
        at = draw.randrange(min(zone, len(stream)))
        if message[6] != Op.HELLO or at not in _TRUSTED:
            stream[at] ^= draw.randrange(1, 256)
        return bytes(stream)

    # --- on the way back --------------------------------------------------------------------------

    def _pass_time(self, link: SimulatedLink, deadline: Deadline) -> None:
        draw = self._draw
        took_s = draw.uniform(1e-4, 3e-3)
        if link.is_slow or draw.random() < 0.01:
            took_s = deadline.left_s * draw.uniform(0.5, 0.99)
            link.is_slow = False
        self.clock.advance(took_s)

    def _spoil_reply(
        self, kind: Kind, link: SimulatedLink, request: bytes, reply: bytes, deadline: Deadline
    ) -> bytes:
        weather = self._weather
        match kind:
            case Kind.LOST | Kind.LATE:
                # A late reply finds a closed connection: it is lost, too (§7.5).
                weather.happened(kind, "reply")
                raise self._out_of_time(deadline)
            case Kind.CUT:
                weather.happened(kind, "reply")
                self.live = 0
                raise self._broken("the peer closed the connection in the middle of its reply")
            case Kind.STRAY:
                weather.happened(kind)
                link.has_stray = True
            case Kind.CORRUPTED:
                weather.happened(kind, "reply")
                return self._corrupt_reply(link, request, reply, deadline)
        return reply

    def _corrupt_reply(
        self, link: SimulatedLink, request: bytes, reply: bytes, deadline: Deadline
    ) -> bytes:
        self.suspects.update(range(self._terms.max_slots))
        try:
            taken = self._carriage.at_rank_0(
                self._corrupted(self._carriage.of_reply(reply), reply), request
            )
        except Unreadable as error:
            raise self._broken(str(error)) from None
        except NotWhole:
            raise self._out_of_time(deadline) from None
        link.has_stray = taken.has_stray
        return taken.message

    def _out_of_time(self, deadline: Deadline) -> TimedOut:
        self.clock.advance(deadline.left_s)
        return TimedOut(f"{ENDPOINT}: no whole answer within {deadline.timeout_s:g} s")

    def _broken(self, reason: str) -> Broken:
        self.clock.advance(self._draw.uniform(1e-4, 2e-3))
        return Broken(f"{ENDPOINT}: {reason}")
