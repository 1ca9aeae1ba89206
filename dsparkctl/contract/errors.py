"""What is wrong with a peer's bytes."""

from dsparkctl.contract.codes import FrameStatus


class WireError(Exception):
    """A frame breaks the contract.

    `status` is the frame status that it deserves (§9.1), or None when the framing itself is lost
    and only closing the connection helps (R32). `field` and `offset` (bytes from the start of the
    AppHeader) name the place.
    """

    def __init__(self, status: FrameStatus | None, field: str, offset: int, reason: str) -> None:
        super().__init__(f"{field} at offset {offset}: {reason}")
        self.status = status
        self.field = field
        self.offset = offset
        self.reason = reason


def malformed(field: str, offset: int, reason: str) -> WireError:
    return WireError(FrameStatus.MALFORMED, field, offset, reason)
