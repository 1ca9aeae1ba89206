"""Every table of §6, one class each: the class is the table.

Decides offsets, types and sizes, which are checked when this module is imported. Refuses to know
what a value means or whether it is allowed.
"""

from typing import Annotated, NamedTuple

from dsparkctl.contract.layout import i32, i64, raw, record, text, u8, u16, u32, u32s, u64


@record(size=32)
class AppHeader(NamedTuple):
    """§6.1: stands in front of every message."""

    magic: Annotated[int, u32(0)]
    version: Annotated[int, u16(4)]
    op: Annotated[int, u16(6)]
    seq: Annotated[int, u64(8)]
    session: Annotated[int, u32(16)]
    body_len: Annotated[int, u32(20)]
    status: Annotated[int, i32(24)]
    flags: Annotated[int, u32(28)]


@record(size=192)
class Hello(NamedTuple):
    """§6.2: the request body of HELLO."""

    proto_min: Annotated[int, u32(0)]
    proto_max: Annotated[int, u32(4)]
    num_spec: Annotated[int, u32(8)]
    window: Annotated[int, u32(12)]
    hidden: Annotated[int, u32(16)]
    n_taps: Annotated[int, u32(20)]
    tap_layer_ids: Annotated[tuple[int, ...], u32s(24, 4)]
    payload_kind: Annotated[int, u32(40)]
    row_bytes: Annotated[int, u32(44)]
    noise_token_id: Annotated[int, u32(48)]
    vocab_size: Annotated[int, u32(52)]
    max_model_len: Annotated[int, u32(56)]
    max_slots: Annotated[int, u32(60)]
    max_rows_per_step: Annotated[int, u32(64)]
    sample_mode: Annotated[int, u32(68)]
    tp_size: Annotated[int, u32(72)]
    reserved: Annotated[int, u32(76)]
    drafter_identity: Annotated[bytes, raw(80, 32)]
    markov_identity: Annotated[bytes, raw(112, 32)]
    client_name: Annotated[bytes, text(144, 48)]


@record(size=128)
class HelloReply(NamedTuple):
    """§6.2: the reply body of HELLO, sent with a refusal too (R8)."""

    proto: Annotated[int, u32(0)]
    max_slots: Annotated[int, u32(4)]
    max_rows_per_step: Annotated[int, u32(8)]
    capabilities: Annotated[int, u32(12)]
    window: Annotated[int, u32(16)]
    num_spec: Annotated[int, u32(20)]
    drafter_identity: Annotated[bytes, raw(24, 32)]
    markov_identity: Annotated[bytes, raw(56, 32)]
    worker_name: Annotated[bytes, text(88, 40)]


@record(size=32)
class StepHeader(NamedTuple):
    """§6.3: opens the request body of STEP."""

    step_id: Annotated[int, u64(0)]
    n_req: Annotated[int, u16(8)]
    step_flags: Annotated[int, u16(10)]
    n_rows: Annotated[int, u32(12)]
    row_bytes: Annotated[int, u32(16)]
    rows_offset: Annotated[int, u32(20)]
    reserved: Annotated[tuple[int, ...], u32s(24, 2)]


@record(size=32)
class ReqEntry(NamedTuple):
    """§6.3: one request of the batch, in batch order."""

    slot: Annotated[int, u8(0)]
    req_flags: Annotated[int, u8(1)]
    k_window: Annotated[int, u8(2)]
    n_out: Annotated[int, u8(3)]
    generation: Annotated[int, u32(4)]
    first_pos: Annotated[int, i64(8)]
    n_rows: Annotated[int, u32(16)]
    anchor_token: Annotated[int, i32(20)]
    anchor_pos: Annotated[int, i64(24)]


@record(size=32)
class ReplyHeader(NamedTuple):
    """§6.3: opens the reply body of STEP."""

    step_id: Annotated[int, u64(0)]
    n_req: Annotated[int, u16(8)]
    num_spec: Annotated[int, u16(10)]
    reply_flags: Annotated[int, u32(12)]
    worker_us: Annotated[int, u32(16)]
    recv_to_send_us: Annotated[int, u32(20)]
    reserved: Annotated[tuple[int, ...], u32s(24, 2)]


@record(size=8)
class ReqStatus(NamedTuple):
    """§6.3: how one entry of the STEP fared."""

    status: Annotated[int, u16(0)]
    window_rows: Annotated[int, u16(2)]
    generation: Annotated[int, u32(4)]


@record(size=4)
class Reset(NamedTuple):
    """§6.4: the request body of RESET; bit i is slot i."""

    slot_mask: Annotated[int, u32(0)]
