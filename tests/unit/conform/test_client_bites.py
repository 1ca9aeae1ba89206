"""`conform-client` against the real client with one planted defect each (issue 6, part 1): what has
to be found is found, and a client without one passes every act that it meets."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from dsparkctl.client import link as link_room
from dsparkctl.client.link import WorkerLink
from dsparkctl.client.rounds import Rounds
from dsparkctl.conform.client.acts import ACTS, Act, Then
from dsparkctl.conform.client.stand import Stand
from dsparkctl.conform.finding import Finding, Level
from dsparkctl.contract.codes import NEW_GEN, RESYNC
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.messages import hello_frame
from dsparkctl.net.dial import dial
from dsparkctl.state.backoff import RESTED
from dsparkctl.state.ledger import Ledger
from dsparkctl.state.n_out import Caps, Range
from tests.unit.client.fakes import HELLO, Ask, Spark

TIMEOUT_S = 0.15


class Clock:
    def __call__(self) -> float:
        return time.monotonic()


@contextmanager
def engine(port: int) -> Iterator[Spark]:
    """The real client in a thread, with two requests that go on and on."""
    rank0 = Spark(
        partial(dial, Endpoint("tcp", "127.0.0.1", port)),
        Clock(),  # type: ignore[arg-type]
        trip=0,
        timeout_s=TIMEOUT_S,
        caps=Caps((Range(2, 4, 2),), ""),
    )
    done = threading.Event()

    def work() -> None:
        pos = 0
        while not done.is_set():
            # A request of 30 tokens, and then another in its slots.
            name, at = pos // 30, pos % 30
            rank0.run(Ask(f"a{name}", 0, at, 1), Ask(f"b{name}", 1, at, 1))
            pos += 1
            time.sleep(0.005)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield rank0
    finally:
        done.set()
        thread.join(10)
        rank0.link.close()


def examined(*acts: Act, seconds: float = 20.0) -> list[Finding]:
    stand = Stand(HELLO, "127.0.0.1", 0, seconds=seconds, late_s=3 * TIMEOUT_S)
    try:
        with engine(stand.port):
            return list(stand.examine(acts))
    finally:
        stand.close()


def act(what: str) -> Act:
    (found,) = (one for one in ACTS if one.what == what)
    return found


def failed(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.level is Level.FAIL]


def test_a_right_client_passes_acts_of_every_kind() -> None:
    chosen = {one.then: one for one in ACTS if one.then is not Then.STOPS}
    late, half = act("a reply that comes too late"), act("half a reply, and the end")
    findings = examined(
        *chosen.values(), late, half, act("IDENTITY_MISMATCH to a STEP"), seconds=40
    )
    assert failed(findings) == []
    assert [one for one in findings if one.level is Level.SKIP] == []


Plant = Callable[[pytest.MonkeyPatch], None]


def _no_backoff(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(RESTED), "failed", lambda self, _now_s: self)


def _stays(patch: pytest.MonkeyPatch) -> None:
    """A refused reply does not end the connection."""
    patch.setattr(WorkerLink, "refuse", lambda *_: None)


def _forgetful(patch: pytest.MonkeyPatch) -> None:
    """Nothing is ever re-sent."""
    patch.setattr(Ledger, "soil", lambda *_: None)
    patch.setattr(Ledger, "soil_all", lambda *_: None)


def _same_seq(patch: pytest.MonkeyPatch) -> None:
    real = WorkerLink._next_seq
    patch.setattr(WorkerLink, "_next_seq", lambda self: min(real(self), 5))


def _same_step_id(patch: pytest.MonkeyPatch) -> None:
    real = Rounds._message

    def message(self: Rounds, *arguments: Any) -> Any:
        self.step_id = 1
        return real(self, *arguments)

    patch.setattr(Rounds, "_message", message)


def _flags(change: Callable[[int], int]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        real = Ledger._close

        def close(self: Ledger, *arguments: Any) -> Any:
            entry = real(self, *arguments)
            return entry._replace(req_flags=change(entry.req_flags))

        patch.setattr(Ledger, "_close", close)

    return plant


def _entries(**of: int) -> Plant:
    """Every entry's fields moved by so much."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = Ledger._close

        def close(self: Ledger, *arguments: Any) -> Any:
            entry = real(self, *arguments)
            return entry._replace(**{key: getattr(entry, key) + by for key, by in of.items()})

        patch.setattr(Ledger, "_close", close)

    return plant


def _never_greets_again(patch: pytest.MonkeyPatch) -> None:
    """NO_SESSION is taken for any other failure."""
    real = WorkerLink._answered

    def answered(self: WorkerLink, reply: Any) -> Any:
        was = self._is_greeted
        found = real(self, reply)
        self._is_greeted = was
        return found

    patch.setattr(WorkerLink, "_answered", answered)


def _never_disabled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerLink, "_disable", lambda *_: None)


def _other_terms(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        link_room, "hello_frame",
        lambda seq, session, hello: hello_frame(seq, session, hello._replace(noise_token_id=1)),
    )  # fmt: skip


DEFECTS: dict[str, tuple[str, Plant]] = {
    "it comes back at once": ("a draft id of -1", _no_backoff),
    "a refused reply does not end the connection": ("a draft id of -1", _stays),
    "nothing is re-sent after a failure": ("MALFORMED", _forgetful),
    "nothing is re-sent after a reconnect": ("a confidence of 1.5", _forgetful),
    "seq stands still": ("MALFORMED", _same_seq),
    "step_id stands still": ("MALFORMED", _same_step_id),
    "a new request is not marked": ("MALFORMED", _flags(lambda flags: flags & ~NEW_GEN)),
    "RESYNC stands without NEW_GEN": (
        "MALFORMED", _flags(lambda flags: flags & ~NEW_GEN | RESYNC)),
    "unknown flags are set": ("MALFORMED", _flags(lambda flags: flags | 0x40)),
    "the anchor is one too far": ("MALFORMED", _entries(anchor_pos=1)),
    "NO_SESSION is not answered with HELLO": ("NO_SESSION", _never_greets_again),
    "a mismatch is not the end": ("IDENTITY_MISMATCH to a STEP", _never_disabled),
    "HELLO names other terms": ("MALFORMED", _other_terms),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_client_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    what, plant = DEFECTS[defect]
    plant(monkeypatch)
    assert failed(examined(act(what), seconds=12.0)), defect


def test_what_did_not_happen_is_skipped_and_said() -> None:
    stand = Stand(HELLO, "127.0.0.1", 0, seconds=0.2, late_s=0.1)
    findings = list(stand.examine(ACTS[:2]))
    stand.close()
    assert [one.level for one in findings] == [Level.SKIP, Level.SKIP, Level.PASS]
    assert stand.judge.n_steps == 0
