"""Bytes that nobody would send: whatever comes, a worker answers or hangs up, and lives on.

Decides what is thrown: good messages with a few bits or lengths spoilt, and noise. After each throw
the line must have answered or ended; now and then a good session must work as ever.
"""

import random
from collections.abc import Iterator

from dsparkctl.conform.cases import disturbed, keep
from dsparkctl.conform.finding import Clause, Finding
from dsparkctl.conform.line import Kind, Line
from dsparkctl.conform.subject import Subject, Talk, entry
from dsparkctl.contract.codes import Op
from dsparkctl.contract.framing import prefix
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import frame, hello_frame, step_head
from dsparkctl.contract.records import Reset

_CHECK_EVERY = 100


def fuzz(on: Subject, n_inputs: int) -> Iterator[Finding]:
    """`n_inputs` throws."""
    clause = Clause("§5 §9", f"{n_inputs} spoilt messages are each answered or hung up on")
    dice = on.dice("fuzz")
    thrown = 0
    while thrown < n_inputs:
        with on.session() as talk:
            while thrown < n_inputs:
                thrown += 1
                fault, is_open = _throw(dice, talk)
                if fault:
                    yield clause.judged(f"input {thrown}: {fault}", f"seed {on.seed}")
                    return
                if not is_open:
                    break
                if thrown % _CHECK_EVERY == 0:
                    break
        if thrown % _CHECK_EVERY == 0:
            with on.session() as talk:
                keep(talk)
                if fault := disturbed(talk):
                    yield clause.judged(f"after input {thrown}: {fault}", f"seed {on.seed}")
                    return
    yield clause.judged("", f"seed {on.seed}", f"{thrown} inputs")


def _throw(dice: random.Random, talk: Talk) -> tuple[str, bool]:
    """What was wrong with what came, and whether the line is still open."""
    message = _spoilt(dice, _good(dice, talk))
    if not talk.subject.is_stream and message[6:8] == bytes(2):
        message = message[:6] + b"\x05" + message[7:]  # op 0 is the carrier's own echo (§5)
    length = len(message)
    if dice.random() < 0.1:
        length = dice.choice((0, 31, length + 1, length + 64, 2**31, 2**32 - 1))
    talk.line.put(prefix(length) + message)
    if length > len(message) and length < 2**31:
        talk.line.put(bytes(length - len(message)))
    answer = talk.line.receive()
    match answer.kind:
        case Kind.REPLY:
            return ("a byte behind the reply", True) if _strays(dice, talk.line) else ("", True)
        case Kind.CLOSED:
            return "", False
        case _:
            return f"{answer} to {message[:64].hex()}", False


def _strays(dice: random.Random, line: Line) -> bool:
    return dice.random() < 0.05 and line.has_stray(0.02)


def _good(dice: random.Random, talk: Talk) -> bytes:
    """A message with nothing wrong."""
    match dice.choice(("step", "step", "step", "hello", "reset", "ping", "stats", "noise")):
        case "step":
            slots = dice.sample(range(talk.hello.max_slots), min(2, talk.hello.max_slots))
            entries = [entry(slot, dice.randint(0, 20), dice.randint(0, 3)) for slot in slots]
            talk.step_id += 1
            head = step_head(
                seq=talk.next_seq(), session=talk.session, step_id=talk.step_id, step_flags=0,
                row_bytes=talk.hello.row_bytes, entries=entries,
            )  # fmt: skip
            return head + b"".join(talk.rows(one) for one in entries)
        case "hello":
            return hello_frame(talk.next_seq(), talk.session, talk.hello)
        case "reset":
            return frame(Op.RESET, talk.next_seq(), talk.session, pack(Reset(dice.getrandbits(32))))
        case "ping":
            return frame(Op.PING, 1, talk.session)
        case "stats":
            return frame(Op.STATS, 1, talk.session)
        case _:
            return frame(dice.randint(1, 6), talk.next_seq(), talk.session, dice.randbytes(200))


def _spoilt(dice: random.Random, message: bytes) -> bytes:
    """A few bits, bytes or fields of its first 200 bytes, or its length."""
    made = bytearray(message)
    for _ in range(dice.choice((1, 1, 1, 2, 8))):
        at = dice.randrange(min(len(made), 200))
        match dice.choice(("bit", "byte", "edge", "cut", "grow")):
            case "bit":
                made[at] ^= 1 << dice.randrange(8)
            case "byte":
                made[at] = dice.getrandbits(8)
            case "edge":
                made[at : at + 4] = dice.choice((b"\xff" * 4, bytes(4), b"\x00\x00\x00\x80"))
            case "cut" if len(made) > 40:
                del made[-dice.randint(1, min(8, len(made) - 33)) :]
            case _:
                made += dice.randbytes(dice.randint(1, 8))
    if dice.random() < 0.7:  # behind the header, so that bodies are reached
        made[20:24] = (len(made) - 32).to_bytes(4, "little")
    return bytes(made)
