"""10,000 random STEPs over TCP against a little model of §7.2 that shares no code with the worker.

The model is a dict of positions per slot. A failing seed is printed with the assertion and replays
exactly: `SEED=n pytest tests/e2e/test_random_steps.py`.
"""

import os
import random
import struct

from dsparkctl.contract.messages import parse_step_reply, step_head
from dsparkctl.contract.records import ReqEntry
from tests.e2e.running import Client, running_worker

N_STEPS = 10_000
NEW_GEN, NEED_DRAFT, RESYNC = 1, 2, 4
OK, PARTIAL, STALE, BAD = 0, 1, 2, 3
W, N, VOCAB, ROW_BYTES, MAX_LEN = 8, 5, 160, 384, 4096


class SlotModel:
    """§7.2 word by word: a generation, and the positions that are held."""

    def __init__(self) -> None:
        self.generation: int | None = None
        self.held: set[int] = set()

    def expect(self, entry: ReqEntry) -> tuple[int, int]:
        """Status and window_rows."""
        if self.generation is not None:
            distance = struct.unpack(
                "<i", struct.pack("<I", (entry.generation - self.generation) % 2**32)
            )
            if distance[0] < 0:
                return STALE, 0
        if entry.generation != self.generation or entry.req_flags & NEW_GEN:
            self.held = set()
        self.generation = entry.generation
        anchor, first, n = entry.anchor_pos, entry.first_pos, entry.n_rows
        if n > W or (n and (first < 0 or anchor != first + n)) or anchor > MAX_LEN:
            return BAD, 0
        if entry.req_flags & NEED_DRAFT and not 0 <= entry.anchor_token < VOCAB:
            return BAD, 0
        top = max(self.held) if self.held else -1
        if n:
            if first > top + 1:
                self.held = set()
            self.held = {p for p in self.held if p < first} | set(range(first, anchor))
            self.held = {p for p in self.held if p > max(self.held) - W}
        else:
            if top + 1 < anchor:
                return BAD, 0
            self.held = {p for p in self.held if p < anchor}
            if (max(self.held) if self.held else -1) != anchor - 1:
                return BAD, 0
        rows = len([p for p in self.held if anchor - W <= p < anchor])
        if entry.req_flags & NEED_DRAFT and rows < min(W, anchor):
            return PARTIAL, rows
        return OK, rows


def random_entry(dice: random.Random, slot: int, model: SlotModel) -> ReqEntry:
    """Mostly what a Spark would send, and every kind of what it would not."""
    top = max(model.held) if model.held else -1
    generation = model.generation if model.generation is not None else dice.getrandbits(32)
    flags = dice.choice((NEED_DRAFT, NEED_DRAFT, NEED_DRAFT, 0))
    if dice.random() < 0.06:
        generation = (generation + dice.choice((1, 1, 1, 2**31 - 1, -1, 2**31))) % 2**32
    if dice.random() < 0.06:
        flags |= dice.choice((NEW_GEN, NEW_GEN | RESYNC, 0xF8))
    n = dice.choice((0, 1, 2, 3, 6, W, dice.randint(0, W), W + 1 if dice.random() < 0.1 else 1))
    first = top + 1 + dice.choice((0, 0, 0, 0, 0, -1, -2, -dice.randint(0, 12), 1, 7))
    first = dice.choice(
        (first, first, first, first, 0, MAX_LEN - n, -3 if dice.random() < 0.2 else first)
    )
    anchor = first + n + (dice.choice((1, -1, 2**40)) if dice.random() < 0.03 else 0)
    token = dice.choice((0, VOCAB - 1, dice.randrange(VOCAB), VOCAB if dice.random() < 0.1 else 1))
    return ReqEntry(
        slot, flags, dice.randint(0, N), dice.randint(0, 7), generation, first, n, token, anchor
    )


def test_statuses_and_window_rows_of_10_000_random_steps_are_those_of_section_7_2() -> None:
    seed = int(os.environ.get("SEED", "20261201"))
    dice = random.Random(seed)
    models = [SlotModel() for _ in range(4)]
    seen = [0] * 5
    with running_worker("--max-model-len", str(MAX_LEN)) as worker, Client(worker.data) as client:
        own = worker.own._replace(max_model_len=MAX_LEN)
        assert client.hello(own).status == 0
        for step_id in range(1, N_STEPS + 1):
            slots = dice.sample(range(4), dice.choice((1, 1, 1, 2, 4)))
            entries = [random_entry(dice, slot, models[slot]) for slot in slots]
            rows = b"\x00\x3f" * (sum(entry.n_rows for entry in entries) * ROW_BYTES // 2)
            head = step_head(
                seq=step_id + 1, session=1, step_id=step_id, step_flags=step_id % 2,
                row_bytes=ROW_BYTES, entries=entries,
            )  # fmt: skip
            header, body = client.ask(head + rows)
            where = f"SEED={seed} step {step_id}: {entries}"
            assert header.status == 0, where
            reply = parse_step_reply(body)
            assert (reply.head.step_id, reply.head.num_spec) == (step_id, N), where
            for entry, status in zip(entries, reply.statuses, strict=True):
                expected = models[entry.slot].expect(entry)
                assert (status.status, status.window_rows) == expected, where
                assert status.generation == entry.generation, where
                seen[status.status] += 1
        stats = client.stats()
    assert stats["steps"] == N_STEPS
    assert [stats["partial_windows"], stats["stale_generation"], stats["bad_entries"]] == seen[1:4]
    # The dice must have thrown every kind, or the comparison says little.
    assert min(seen[:4]) > 200, seen
