"""Sessions and sequence numbers (§6.2, §7.5, R1 to R8): who may speak, and which HELLO is accepted.

Decides the frame status of a HELLO and of a frame's session and seq. Refuses to know windows: a
caller that is told of a new session drops them.
"""

from typing import NamedTuple

from dsparkctl.contract.codes import FrameStatus, PayloadKind
from dsparkctl.contract.records import Hello

PROTO = 1
"""The one protocol version this side speaks (§6.2)."""

# What must be equal on both sides (§6.2), in the order of the table; all four tap ids count (R7).
_EQUAL = (
    "num_spec",
    "window",
    "hidden",
    "n_taps",
    "tap_layer_ids",
    "payload_kind",
    "row_bytes",
    "noise_token_id",
    "vocab_size",
    "sample_mode",
)

# What the client may ask for less of, never for more (R6).
_AT_MOST = ("max_model_len", "max_slots", "max_rows_per_step")


class Session(NamedTuple):
    """The one session a worker serves: its id, the last applied seq, and its query clamp (R6)."""

    id: int
    last_seq: int
    max_model_len: int


class Verdict(NamedTuple):
    """What a HELLO or a frame gets; `reason` is empty when the status is OK."""

    status: FrameStatus
    reason: str


ACCEPTED = Verdict(FrameStatus.OK, "")


def judge_hello(hello: Hello, session_id: int, own: Hello) -> Verdict:
    """A HELLO against the worker's own terms, in the order of R36: proto, identity, config."""
    if session_id == 0:
        return Verdict(FrameStatus.MALFORMED, "session 0, expected a nonzero id (R7)")
    if not hello.proto_min <= PROTO <= hello.proto_max:
        asked = f"{hello.proto_min}..{hello.proto_max}"
        return Verdict(FrameStatus.BAD_VERSION, f"proto {asked}, this worker speaks {PROTO}")
    for name in ("drafter_identity", "markov_identity"):
        theirs, ours = getattr(hello, name), getattr(own, name)
        if theirs != ours:
            return Verdict(
                FrameStatus.IDENTITY_MISMATCH,
                f"{name}: the client has {theirs.hex()}, the worker {ours.hex()}",
            )
    if hello.payload_kind != PayloadKind.TAPS_BF16:
        return Verdict(FrameStatus.CONFIG_MISMATCH, f"payload_kind {hello.payload_kind}, only 1")
    for name in _EQUAL:
        theirs, ours = getattr(hello, name), getattr(own, name)
        if theirs != ours:
            return Verdict(
                FrameStatus.CONFIG_MISMATCH, f"{name}: the client has {theirs}, the worker {ours}"
            )
    for name in _AT_MOST:
        theirs, ours = getattr(hello, name), getattr(own, name)
        if not theirs:
            return Verdict(FrameStatus.CONFIG_MISMATCH, f"{name} 0, expected at least 1")
        if theirs > ours:
            return Verdict(
                FrameStatus.CONFIG_MISMATCH,
                f"{name}: the client wants {theirs}, the worker's limit is {ours} (R6)",
            )
    return ACCEPTED


def opened(session: Session | None, session_id: int, hello: Hello) -> tuple[Session, bool]:
    """The session after an accepted HELLO, and whether it is a new one.

    The same session goes on with its last seq (R3); a new one starts at 0, so that seq 1 is good.
    """
    if session is not None and session.id == session_id:
        return session._replace(max_model_len=hello.max_model_len), False
    return Session(session_id, 0, hello.max_model_len), True


def judge_frame(session: Session | None, bound: bool, session_id: int, seq: int) -> Verdict:
    """A STEP's or RESET's session and seq (§7.5). `bound`: HELLO was accepted on this connection.

    A connection that has not said HELLO has no session, even a known one (R4).
    """
    if session is None or not bound or session.id != session_id:
        return Verdict(FrameStatus.NO_SESSION, f"session {session_id} has not said HELLO here")
    if seq <= session.last_seq:
        return Verdict(FrameStatus.STALE_SEQ, f"seq {seq}, the last applied is {session.last_seq}")
    return ACCEPTED
