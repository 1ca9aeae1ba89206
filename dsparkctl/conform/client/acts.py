"""What is done to a client, one act after the other, and what it must do next.

Decides the acts as a table: a reply that is spoilt, held back or cut, and the client's right answer
to it by §6.3, §7.4, §9 and §10. Refuses to know how bytes travel (`stand`).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dsparkctl.contract.codes import FrameStatus
from dsparkctl.contract.messages import frame
from dsparkctl.contract.records import AppHeader

ENTRIES: Final = 64
"""Where a STEP reply's statuses begin."""


class Then(Enum):
    """What a client must do after an act."""

    DROPS = "it drops the connection, comes back with HELLO and resyncs every slot"
    GREETS = "it says HELLO before its next STEP, and resyncs every slot"
    RESYNCS = "it goes on, and re-sends the windows of the slots in that STEP"
    GOES_ON = "it goes on as before"
    STOPS = "it never sends a STEP again"


Spoil = Callable[[bytes, AppHeader, int, int], bytes | None]
"""The bytes that go out (with no prefix) of a good reply, the request's header, n_req and N; None:
nothing."""


@dataclass(frozen=True, slots=True)
class Act:
    """One wrong thing."""

    clause: str
    what: str
    spoil: Spoil
    then: Then
    extra: bytes = b""
    """Bytes behind the reply."""
    closes: bool = False
    """The worker hangs up after it."""
    is_late: bool = False
    """It comes when nobody can wait for it any more."""


def _at(offset: Callable[[int, int], int], form: str, value: float) -> Spoil:
    def spoil(reply: bytes, _header: AppHeader, n_req: int, n: int) -> bytes:
        at, data = offset(n_req, n), struct.pack("<" + form, value)
        return reply[:at] + data + reply[at + len(data) :]

    return spoil


def _status(status: FrameStatus) -> Spoil:
    return lambda _reply, header, *_: frame(header.op, header.seq, header.session, b"", status)


def _ids(n_req: int, _n: int) -> int:
    return ENTRIES + 8 * n_req


def _confidence(n_req: int, n: int) -> int:
    return ENTRIES + 8 * n_req + 4 * n * n_req


def _fixed(at: int) -> Callable[[int, int], int]:
    return lambda *_: at


def _shortened(reply: bytes, *_: object) -> bytes:
    cut = reply[:-4]
    return cut[:20] + (len(cut) - 32).to_bytes(4, "little") + cut[24:]


REFUSED: Final = [
    Act("§6.3", "a draft id of vocab_size", _at(_ids, "i", 0x7FFFFFFF), Then.DROPS),
    Act("§6.3", "a draft id of -1", _at(_ids, "i", -1), Then.DROPS),
    Act("§6.3", "a confidence that is NaN", _at(_confidence, "f", float("nan")), Then.DROPS),
    Act("§6.3", "a confidence of 1.5", _at(_confidence, "f", 1.5), Then.DROPS),
    Act("§6.3", "an entry status of 9", _at(_fixed(ENTRIES), "H", 9), Then.DROPS),
    Act("§6.3", "window_rows of 65535", _at(_fixed(ENTRIES + 2), "H", 0xFFFF), Then.DROPS),
    Act("§6.3", "another step_id", _at(_fixed(32), "Q", 2**63 + 1), Then.DROPS),
    Act("§6.3", "another num_spec", _at(_fixed(42), "H", 1), Then.DROPS),
    Act("§6.3", "a body four bytes short", _shortened, Then.DROPS),
    Act("§6.1", "another seq", _at(_fixed(8), "Q", 2**62), Then.DROPS),
    Act("§6.1", "another session", _at(_fixed(16), "I", 7), Then.DROPS),
    Act("§9.1 C21", "a frame status of 77", _at(_fixed(24), "i", 77), Then.DROPS),
]
"""Replies that must not be used (§6.3, v1.4)."""

ACTS: Final = [
    *REFUSED,
    Act("§9.1 C4", "MALFORMED", _status(FrameStatus.MALFORMED), Then.RESYNCS),
    Act("§9.1 C4", "CAPACITY", _status(FrameStatus.CAPACITY), Then.RESYNCS),
    Act("§9.1 C4", "INTERNAL", _status(FrameStatus.INTERNAL), Then.RESYNCS),
    Act("§9.1", "NO_SESSION", _status(FrameStatus.NO_SESSION), Then.GREETS),
    Act("§9.1", "STALE_SEQ", _status(FrameStatus.STALE_SEQ), Then.GREETS),
    Act("§7.5", "the end of the connection instead of a reply", lambda *_: None, Then.DROPS,
        closes=True),
    Act("§7.5", "half a reply, and the end", lambda reply, *_: reply[: len(reply) // 2], Then.DROPS,
        closes=True),
    Act("§10", "a reply that comes too late", lambda reply, *_: reply, Then.DROPS, is_late=True),
    Act("§7.5 C22", "a byte behind a good reply", lambda reply, *_: reply, Then.DROPS, b"\0"),
    Act("§9.1", "IDENTITY_MISMATCH to a STEP", _status(FrameStatus.IDENTITY_MISMATCH), Then.STOPS),
]  # fmt: skip
