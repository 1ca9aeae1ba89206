"""The memory that remote drafting keeps on a Spark (§8.2), as it follows from the terms of HELLO.

Decides sizes, so that the log can say them at start and the tensor rooms can be held against them.
Allocates nothing.
"""

from typing import Final, NamedTuple

from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.messages import rows_offset
from dsparkctl.contract.records import Hello

_MIB: Final = 1 << 20
_WORD_BYTES: Final = 4
_STAGES: Final = 2
"""§8.2: one to gather the rows of a step, one to gather a resync's from the ring."""


class Budget(NamedTuple):
    """Bytes as §8.2 counts them; all but the last are rank 0's alone. Staging is a bound. What a
    tensor room adds to line things up (a page, a row to dump into) is not counted."""

    ring_bytes: int
    """§7.3: every slot's window, on the device."""
    staging_bytes: int
    """What gathering rows may take on the device at most."""
    pinned_bytes: int
    """Host memory: the longest head and, behind it, the most rows a STEP holds."""
    broadcast_bytes: int
    """Every rank: the status word, and N drafts and N confidences a slot (§4.2)."""

    @property
    def device_bytes(self) -> int:
        """Most that rank 0 keeps on the device."""
        return self.ring_bytes + self.staging_bytes + self.broadcast_bytes

    def text(self) -> str:
        """For the line at start."""
        return (
            f"rank 0 keeps a ring of {_size(self.ring_bytes)} and at most "
            f"{_size(self.staging_bytes)} of staging on the device, "
            f"{_size(self.pinned_bytes)} pinned; every rank {_size(self.broadcast_bytes)} "
            "for the broadcast"
        )


def budget(hello: Hello) -> Budget:
    """§8.2 for these terms."""
    step_rows_bytes = hello.max_rows_per_step * hello.row_bytes
    return Budget(
        ring_bytes=hello.max_slots * hello.window * hello.row_bytes,
        staging_bytes=_STAGES * step_rows_bytes,
        pinned_bytes=HEADER_BYTES + rows_offset(hello.max_slots) + step_rows_bytes,
        broadcast_bytes=_WORD_BYTES * (1 + 2 * hello.max_slots * hello.num_spec),
    )


def _size(n_bytes: int) -> str:
    return f"{n_bytes / _MIB:.1f} MiB" if n_bytes >= _MIB else f"{n_bytes} B"
