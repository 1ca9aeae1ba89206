"""The worker's one thread: listeners, the engine's connection, admin connections, the self-test.

Decides who is heard next: a new engine connection first (newest wins, §7.5), then the engine, then
the admin side; the self-test when the engine is quiet. While an engine drafts, the admin side gets
one message at a time and a twentieth of the time, however many knock. Refuses to know what is said:
every whole message goes to the desk. One thread receives and computes, since a second one costs
every round more than it brings, and the desk needs no lock.
"""

import contextlib
import logging
import select
import socket
from collections.abc import Callable, Sequence

from dspark_worker.admin_link import AdminLink
from dspark_worker.allowance import Allowance
from dspark_worker.desk import Desk
from dspark_worker.listener import Connection, Listener
from dspark_worker.selftest import SelfTest
from dspark_worker.service import Service
from dspark_worker.sockets import accepted
from dsparkctl.contract.errors import WireError
from dsparkctl.net.flight.recorder import Recorder

log = logging.getLogger(__name__)

_MAX_ADMIN_LINKS = 32
"""When one more comes, the one that was silent for longest goes."""

_QUIET_S = 5.0
"""The engine is idle when it has sent nothing for so long."""

_SELF_TEST_EVERY_S = 60.0

_ADMIN_SHARE, _ADMIN_BURST_S = 0.05, 0.01
"""Of the worker's time while an engine is busy, and at once after a rest: some hundred messages."""

_BUSY_S = 1.0
"""The engine drafts when it has sent something within this."""

_READ = select.POLLIN | select.POLLHUP | select.POLLERR


class Server:
    """Serves until `stop`. `now` counts seconds from anywhere, as the desk's clock does."""

    def __init__(
        self,
        desk: Desk,
        self_test: SelfTest,
        *,
        data: Listener,
        admin: Sequence[socket.socket],
        spin_us: int,
        now: Callable[[], float],
        service: Service,
        recorder: Recorder | None = None,
    ) -> None:
        self._desk = desk
        self._self_test = self_test
        self._data = data
        self._now = now
        self._service = service
        self._recorder = recorder
        self._spin_s = spin_us / 1e6
        self._link: Connection | None = None
        self._admin_listeners = {sock.fileno(): sock for sock in admin}
        self._admin_links: dict[int, AdminLink] = {}
        self._admin_allowance = Allowance(_ADMIN_SHARE, _ADMIN_BURST_S)
        self._admin_is_paused = False
        self._heard_at = self._tested_at = now()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._stopping = False
        self._poll = select.poll()
        self._data_fd = data.fileno()
        for fd in (self._woken.fileno(), self._data_fd, *self._admin_listeners):
            self._poll.register(fd, _READ)

    def stop(self) -> None:
        """Finish the message at hand, then return from `serve`. Safe in a signal handler."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def serve(self) -> None:
        """Answer messages until `stop`, then close every socket."""
        while not self._stopping:
            self._service.alive(self._now())
            self._pause_admin()
            # Between two spins everybody else gets a look, however busy the engine is.
            heard = self._link is not None and self._spin(self._link)
            ready = self._wait(0 if heard else self._sleep_ms())
            if self._woken.fileno() in ready:
                with contextlib.suppress(OSError):
                    self._woken.recv(4096)
            elif self._data_fd not in ready or not self._welcome_engine():
                self._hear(ready)
                self._test_when_idle()
        self._service.stopping()
        self._close()

    def _wait(self, timeout_ms: float) -> dict[int, int]:
        """Who has something, by file descriptor. A carrier may know of more than it shows there."""
        restless = [
            one for one in (self._data, self._link) if one is not None and not one.may_sleep()
        ]
        ready = dict(self._poll.poll(0 if restless else timeout_ms))
        for one in restless:
            ready[one.fileno()] = select.POLLIN
        return ready

    def _sleep_ms(self) -> float:
        now = self._now()
        due_at = max(self._heard_at + _QUIET_S, self._tested_at + _SELF_TEST_EVERY_S)
        beat_s = self._service.beat_every_s  # an idle worker is healthy, and has to say so
        wait_s = due_at - now if beat_s is None else min(due_at - now, beat_s)
        if self._admin_is_paused:
            wait_s = min(wait_s, self._admin_allowance.may_from_s() - now)
        return max(1.0, wait_s * 1e3)

    def _hear(self, ready: dict[int, int]) -> None:
        link = self._link
        if link is not None and link.fileno() in ready:
            self._hear_engine(link)
        began_at, is_busy = self._now(), self._is_busy()
        for fd in self._in_turn(ready):
            if fd in self._admin_listeners:
                self._welcome_admin(self._admin_listeners[fd])
            else:
                self._hear_admin(self._admin_links[fd], ready[fd])
            ended_at = self._now()
            self._admin_allowance.spend(ended_at - began_at, ended_at)
            began_at = ended_at
            if is_busy:
                break  # the engine may have spoken meanwhile

    # --- the engine -------------------------------------------------------------------------------

    def _welcome_engine(self) -> bool:
        """Newest wins: of all that wait the last one stays, and the one before it is closed.

        False when none came after all.
        """
        came = False
        while self._data.knocked():
            came = True
            self._drop_engine("a newer connection came")
            self._link = self._data.admit()
            if self._link is not None:
                self._poll.register(self._link, _READ)
                self._desk.connected()
        return came

    def _hear_engine(self, link: Connection) -> None:
        """Receive; answer every whole message in order (R34); close when the framing is lost."""
        try:
            whole = link.receive()
            while whole:
                self._answer_engine(link)
                whole = link.has_message() and not self._stopping
        except WireError as error:
            self._desk.stats.count("framing_lost")
            self._drop_engine(f"framing lost: {error}")
        except OSError as error:
            self._drop_engine(str(error))

    def _answer_engine(self, link: Connection) -> None:
        header, body = link.message()
        wire_s = link.received_at - link.first_byte_at
        if self._recorder is not None:
            self._recorder.sent((link.whole(),))
        reply = self._desk.answer(header, body, link.received_at)
        body.release()
        answered_at = self._now()
        link.send(reply)
        self._heard_at = self._now()
        self._desk.stats.took("wire", wire_s + self._heard_at - answered_at)
        if self._recorder is not None:
            self._recorder.received(reply)
        link.consume()

    def _spin(self, link: Connection) -> bool:
        """Look at the socket again and again for `spin_us`; True when a message was answered."""
        heard_at, until = self._heard_at, self._now() + self._spin_s
        while self._spin_s and self._now() < until and not self._stopping:
            self._hear_engine(link)
            if self._link is None or self._heard_at != heard_at:
                break
        return self._heard_at != heard_at

    def _drop_engine(self, reason: str) -> None:
        if self._link is None:
            return
        log.info("engine connection closed: %s", reason)
        self._poll.unregister(self._link)
        self._link.close()
        self._link = None

    # --- the admin side ---------------------------------------------------------------------------

    def _is_busy(self) -> bool:
        return self._link is not None and self._now() < self._heard_at + _BUSY_S

    def _in_turn(self, ready: dict[int, int]) -> list[int]:
        """Who of the admin side has something: those who said least lately first, new ones last."""
        talking = [fd for fd in self._admin_links if fd in ready]
        return talking + [fd for fd in self._admin_listeners if fd in ready]

    def _pause_admin(self) -> None:
        """Look away from the admin side while it has had more than its share, and back again."""
        is_over = self._is_busy() and self._now() < self._admin_allowance.may_from_s()
        if is_over == self._admin_is_paused:
            return
        self._admin_is_paused = is_over
        for sock in self._admin_listeners.values():
            self._poll.modify(sock, 0 if is_over else _READ)
        for link in self._admin_links.values():
            self._poll.modify(link.sock, 0 if is_over else _wanted(link))

    def _welcome_admin(self, listener: socket.socket) -> None:
        sock = accepted(listener)
        if sock is None:
            return
        if len(self._admin_links) >= _MAX_ADMIN_LINKS:
            self._drop_admin(next(iter(self._admin_links.values())))
        self._admin_links[sock.fileno()] = AdminLink(sock)
        self._poll.register(sock, _READ)
        self._desk.stats.count("admin_connections")

    def _hear_admin(self, link: AdminLink, events: int) -> None:
        fd = link.sock.fileno()
        self._admin_links[fd] = self._admin_links.pop(fd)  # the last heard stands last
        try:
            if events & select.POLLOUT:
                link.flush()
            if events & _READ:
                message = link.receive()
                if message is not None:
                    link.queue(self._desk.answer_admin(*message, self._now()))
        except WireError as error:
            self._desk.stats.count("framing_lost")
            log.debug("admin connection closed: framing lost: %s", error)
            self._drop_admin(link)
        except OSError as error:
            log.debug("admin connection closed: %s", error)
            self._drop_admin(link)
        else:
            self._poll.modify(fd, _wanted(link))

    def _drop_admin(self, link: AdminLink) -> None:
        fd = link.sock.fileno()
        self._poll.unregister(fd)
        del self._admin_links[fd]
        link.close()

    # --- idle time --------------------------------------------------------------------------------

    def _test_when_idle(self) -> None:
        now = self._now()
        if now < self._heard_at + _QUIET_S or now < self._tested_at + _SELF_TEST_EVERY_S:
            return
        reason = self._self_test.run()
        if reason:
            log.error("self-test draft failed: %s", reason)
        self._tested_at = self._now()
        self._desk.stats.self_tested(not reason, self._tested_at)

    def _close(self) -> None:
        self._drop_engine("the worker stops")
        for link in list(self._admin_links.values()):
            self._drop_admin(link)
        self._data.close()
        for sock in (*self._admin_listeners.values(), self._woken, self._wake):
            sock.close()


def _wanted(link: AdminLink) -> int:
    return _READ | select.POLLOUT if link.unsent else _READ
