"""HELLO, field by field (§6.2): what is compared, what is not, and what a refusal leaves alone."""

import random
from collections.abc import Iterator
from typing import Any, Final

from dsparkctl.conform.cases import N_KEPT, Outcome, disturbed, is_allowed, keep
from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.conform.line import Kind
from dsparkctl.conform.subject import Subject, Talk, entry
from dsparkctl.contract.codes import CAN_TAPS_BF16, EntryStatus, FrameStatus, Op
from dsparkctl.contract.errors import WireError
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import frame, parse_hello_reply
from dsparkctl.contract.records import Hello

CONFIG: Final[dict[Outcome, str]] = {FrameStatus.CONFIG_MISMATCH: ""}
IDENTITY: Final[dict[Outcome, str]] = {FrameStatus.IDENTITY_MISMATCH: ""}
FINE: Final[dict[Outcome, str]] = {FrameStatus.OK: ""}
PROTO: Final[dict[Outcome, str]] = {
    FrameStatus.BAD_VERSION: "",
    FrameStatus.CONFIG_MISMATCH: "CONFIG_MISMATCH for proto",
}
TOO_MUCH: Final[dict[Outcome, str]] = {
    FrameStatus.CONFIG_MISMATCH: "R6",
    FrameStatus.CAPACITY: "CAPACITY (not R6)",
    FrameStatus.OK: "accepted, the worker's own limit holds (not R6)",
}


def _taps(hello: Hello, at: int) -> tuple[int, ...]:
    return tuple(tap + (i == at) for i, tap in enumerate(hello.tap_layer_ids))


def _changes(hello: Hello) -> list[tuple[str, dict[str, Any], dict[Outcome, str]]]:
    """Field, what is sent instead, what may come."""
    wrong = [
        ("num_spec", hello.num_spec + 1),
        ("window", hello.window + 1),
        ("hidden", hello.hidden + 1),
        ("n_taps", hello.n_taps % 4 + 1),
        ("row_bytes", hello.row_bytes + 64),
        ("noise_token_id", (hello.noise_token_id + 1) % hello.vocab_size),
        ("vocab_size", hello.vocab_size + 1),
        ("sample_mode", 2),
        ("payload_kind", 0),
        ("payload_kind", 99),
    ]
    found: list[tuple[str, dict[str, Any], dict[Outcome, str]]] = [
        (f"{name} {value}", {name: value}, CONFIG) for name, value in wrong
    ]
    found += [
        (f"tap_layer_ids[{i}] another", {"tap_layer_ids": _taps(hello, i)}, CONFIG)
        for i in range(hello.n_taps)
    ]
    either: dict[Outcome, str] = {
        FrameStatus.CONFIG_MISMATCH: "R7: all four are compared",
        FrameStatus.OK: "those behind n_taps are ignored (not R7)",
    }
    found += [
        (f"tap_layer_ids[{i}], behind n_taps, another", {"tap_layer_ids": _taps(hello, i)}, either)
        for i in range(hello.n_taps, 4)
    ]
    for name in ("drafter_identity", "markov_identity"):
        other = bytes([getattr(hello, name)[0] ^ 1]) + getattr(hello, name)[1:]
        last = getattr(hello, name)[:-1] + bytes([getattr(hello, name)[-1] ^ 0x80])
        found += [
            (f"{name}: its first bit another", {name: other}, IDENTITY),
            (f"{name}: its last bit another", {name: last}, IDENTITY),
        ]
    both: dict[Outcome, str] = {
        FrameStatus.IDENTITY_MISMATCH: "R36: identity first",
        FrameStatus.CONFIG_MISMATCH: "config first (not R36)",
    }
    found += [
        ("proto 2 to 3", {"proto_min": 2, "proto_max": 3}, PROTO),
        ("identity and window both another",
         {"drafter_identity": bytes(32), "window": hello.window + 1}, both),
        ("max_model_len 2**32 - 1", {"max_model_len": 0xFFFFFFFF}, TOO_MUCH),
        ("max_slots 255", {"max_slots": 255}, TOO_MUCH),
        ("max_rows_per_step 2**32 - 1", {"max_rows_per_step": 0xFFFFFFFF}, TOO_MUCH),
        ("max_model_len one less (R6)", {"max_model_len": hello.max_model_len - 1}, FINE),
        ("proto 1 to 7: a range that holds 1", {"proto_max": 7}, FINE),
        ("reserved 7 (R7)", {"reserved": 7}, FINE),
        ("tp_size 64 (R6)", {"tp_size": 64}, FINE),
        ("client_name of 48 bytes that are no ASCII (R6)", {"client_name": b"\xff" * 48}, FINE),
    ]  # fmt: skip
    return found


def fields(on: Subject) -> Iterator[Finding]:
    """Each on the same line, in a session that lives: a refusal must not end it (R5)."""
    with on.session() as talk:
        keep(talk)
        for what, changed, allowed in _changes(on.hello):
            name = Clause("§6.2", f"HELLO with {what}")
            answer = talk.say_hello(on.hello._replace(**changed), session=talk.session)
            yield is_allowed(name, allowed, answer, what)
            if answer.kind is not Kind.REPLY:
                return
            if answer.status:
                yield from _refused(talk, answer.body, what)


_SEEN_BODIES: Final = ("§6.2 R8", "a refused HELLO carries the reply's 128 bytes")


def _refused(talk: Talk, body: bytes, what: str) -> Iterator[Finding]:
    """§9.1 asks the client to log both digests, so the worker's are to be in the refusal."""
    if what.startswith("drafter_identity: its first"):
        clause = Clause(*_SEEN_BODIES)
        if body:
            yield clause.judged("" if len(body) == 128 else f"{len(body)} bytes", what)
        else:
            yield clause.taken("no body (not R8)", what)
    answer = talk.say_hello()
    if answer.status != FrameStatus.OK:
        yield Clause("§6.2 R5", "the known session goes on after a refused HELLO").judged(
            str(answer), what
        )
        return
    if fault := disturbed(talk):
        yield Clause("§6.2 R5", "a refused HELLO changes no window").judged(fault, what)
        keep(talk)


def reply(on: Subject) -> Iterator[Finding]:
    """What the worker says of itself."""
    hello = on.hello
    with on.line() as line:
        talk = Talk(on, line, on.session_id())
        said = talk.greet()
    facts = [
        ("proto is 1", said.proto == 1, said.proto),
        ("window is the client's", said.window == hello.window, said.window),
        ("num_spec is the client's", said.num_spec == hello.num_spec, said.num_spec),
        ("drafter_identity is the client's", said.drafter_identity == hello.drafter_identity,
         said.drafter_identity.hex()),
        ("markov_identity is the client's", said.markov_identity == hello.markov_identity,
         said.markov_identity.hex()),
        ("capability TAPS_BF16 is set", bool(said.capabilities & CAN_TAPS_BF16),
         said.capabilities),
        ("max_slots is 1 to 255", 0 < said.max_slots < 256, said.max_slots),
        ("max_rows_per_step holds a window", said.max_rows_per_step >= hello.window,
         said.max_rows_per_step),
        ("worker_name is ASCII", said.worker_name.isascii(), said.worker_name),
    ]  # fmt: skip
    for what, is_so, value in facts:
        yield Clause("§6.2", f"HELLO's reply: {what}").judged(
            "" if is_so else f"{value!r}", "HELLO"
        )


def sizes(on: Subject) -> Iterator[Finding]:
    """A body of any other size than 192 bytes."""
    body = pack(on.hello)
    with on.session() as talk:
        keep(talk)
        for what, spoilt in (
            ("191 bytes", body[:-1]), ("193 bytes", body + b"\0"), ("no body", b""),
            ("a reply's 128 bytes", body[:128]),
        ):  # fmt: skip
            clause = Clause("§6.2 R36", f"HELLO with {what} is MALFORMED")
            answer = talk.line.ask(frame(Op.HELLO, talk.next_seq(), talk.session, spoilt))
            yield is_allowed(clause, {FrameStatus.MALFORMED: ""}, answer, what)
        clause = Clause("§6.1 R7", "HELLO with session 0")
        answer = talk.say_hello(session=0)
        allowed: dict[Outcome, str] = {
            FrameStatus.MALFORMED: "R7",
            FrameStatus.CONFIG_MISMATCH: "CONFIG_MISMATCH (not R7)",
            FrameStatus.NO_SESSION: "NO_SESSION (not R7)",
        }
        yield is_allowed(clause, allowed, answer, "session 0")


def clamp(on: Subject) -> Iterator[Finding]:
    """R6, R30: the client's max_model_len is what positions are clamped by."""
    length = max(on.hello.window, N_KEPT) + 8
    if length >= on.hello.max_model_len:
        return
    hello = on.hello._replace(max_model_len=length)
    clause = Clause("§7.2.5 R30", "anchor_pos == max_model_len drafts, beyond it is BAD_ENTRY")
    with on.line() as line:
        talk = Talk(on, line, on.session_id())
        talk.greet()
        if talk.say_hello(hello).status:
            yield clause.skipped("a smaller max_model_len was refused")
            return
        at = talk.drafted([entry(0, length - 1, 1)])[0].status.status
        behind = talk.drafted([entry(0, length, 1)])[0].status.status
        if at == EntryStatus.PARTIAL_WINDOW and behind == EntryStatus.BAD_ENTRY:
            yield clause.judged("", f"max_model_len {length}")
        elif at == EntryStatus.PARTIAL_WINDOW:
            yield clause.taken(f"beyond it: {EntryStatus(behind).name} (not R30)", f"{length}")
        else:
            yield clause.judged(f"at it: {EntryStatus(at).name}", f"max_model_len {length}")


def noise(on: Subject) -> Iterator[Finding]:
    """Bodies of 192 random bytes: never accepted, never fatal to anybody."""
    dice: random.Random = on.dice("hello")
    clause = Clause("§6.2", "a HELLO of random bytes is refused with a status")
    fault = ""
    with on.session() as talk:
        for _ in range(50):
            answer = talk.line.ask(frame(Op.HELLO, 1, talk.session, dice.randbytes(192)))
            if not answer.status:
                fault = str(answer)
                break
            try:
                if answer.body:
                    parse_hello_reply(answer.body)
            except WireError as error:
                fault = str(error)
    yield clause.judged(fault, "50 HELLOs")
