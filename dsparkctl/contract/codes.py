"""The contract's numbers with names: operations, statuses, flags (§5, §6, §9).

Decides nothing. Flags are plain integers, since they are tested in every round.
"""

from enum import IntEnum
from typing import Final

MAGIC: Final = 0x31505344
"""Bytes `D S P 1` (§6.1)."""

VERSION: Final = 1
"""The wire version; it changes only on an incompatible change (§6.1)."""


class Op(IntEnum):
    """AppHeader.op (§6.1); 6 is reserved for PREFIX_RESTORE (§12)."""

    HELLO = 1
    STEP = 2
    RESET = 3
    STATS = 4
    PING = 5


class FrameStatus(IntEnum):
    """AppHeader.status of a reply (§9.1)."""

    OK = 0
    BAD_VERSION = 1
    IDENTITY_MISMATCH = 2
    CONFIG_MISMATCH = 3
    NO_SESSION = 4
    STALE_SEQ = 5
    MALFORMED = 6
    CAPACITY = 7
    INTERNAL = 8
    UNSUPPORTED_OP = 9


class EntryStatus(IntEnum):
    """ReqStatus.status (§9.2)."""

    OK = 0
    PARTIAL_WINDOW = 1
    STALE_GENERATION = 2
    BAD_ENTRY = 3
    INTERNAL = 4


class PayloadKind(IntEnum):
    """What a row of a STEP is (§3, §6.2)."""

    TAPS_BF16 = 1
    MAINX_BF16 = 2


class SampleMode(IntEnum):
    """How drafts are sampled (§6.2)."""

    GREEDY = 1


# StepHeader.step_flags (§6.3)
WANT_MARGIN: Final = 1

# ReqEntry.req_flags (§6.3)
NEW_GEN: Final = 1
NEED_DRAFT: Final = 2
RESYNC: Final = 4

# ReplyHeader.reply_flags (§6.3)
HAS_MARGIN: Final = 1

# HelloReply.capabilities (§6.2)
CAN_TAPS_BF16: Final = 1
CAN_MAINX_BF16: Final = 2
CAN_MARGIN: Final = 4

ALL_SLOTS: Final = 0xFFFFFFFF
"""The slot mask that names every slot (§6.4)."""

STEP_FLAG_NAMES: Final = {"WANT_MARGIN": WANT_MARGIN}
REQ_FLAG_NAMES: Final = {"NEW_GEN": NEW_GEN, "NEED_DRAFT": NEED_DRAFT, "RESYNC": RESYNC}
REPLY_FLAG_NAMES: Final = {"HAS_MARGIN": HAS_MARGIN}
CAPABILITY_NAMES: Final = {
    "TAPS_BF16": CAN_TAPS_BF16,
    "MAINX_BF16": CAN_MAINX_BF16,
    "HAS_MARGIN": CAN_MARGIN,
}
