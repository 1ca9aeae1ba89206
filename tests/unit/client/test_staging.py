"""Rows from tap tensors to the bytes of a STEP, held against a model made of dicts (§4.3, §7.4)."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from dsparkctl.client.budget import budget
from dsparkctl.client.staging import StagedRows
from dsparkctl.contract.codes import NEED_DRAFT
from dsparkctl.contract.messages import Limits, parse_step, step_head
from dsparkctl.contract.records import ReqEntry
from dsparkctl.state.ledger import Ledger, Sampled, Scheduled
from tests.unit.client import tiny
from tests.unit.client.fakes import SLOTS, N, W

CPU = torch.device("cpu")
N_ROUNDS = 25


class Naive:
    """Rank 0's windows as dicts, position to row; knows nothing of rings and ranges."""

    def __init__(self) -> None:
        self.owner: list[str | None] = [None] * SLOTS
        self.rows: list[dict[int, bytes]] = [{} for _ in range(SLOTS)]
        self.dirty = [False] * SLOTS

    def sends(self, step: tiny.Step) -> list[list[bytes]]:
        """Each request's rows of this round's message."""
        return [
            self._sends(request, n_rejected, step.row)
            for request, n_rejected in zip(step.requests, step.rejected, strict=True)
        ]

    def _sends(
        self, request: Scheduled, n_rejected: int, row: Callable[[int], bytes]
    ) -> list[bytes]:
        slot = request.slot
        if self.owner[slot] != request.request_id:
            self.owner[slot], self.rows[slot], self.dirty[slot] = request.request_id, {}, False
        n = min(request.n_rows, W)
        skipped = request.n_rows - n
        first = request.first_pos + skipped
        anchor = first + n - n_rejected
        new = {first + i: row(request.row + skipped + i) for i in range(n - n_rejected)}
        held = {pos: kept for pos, kept in self.rows[slot].items() if pos < first}
        if first - 1 not in held:
            held = {}
        held.update(new)
        self.rows[slot] = {pos: held[pos] for pos in sorted(held) if pos >= anchor - W}
        return list(self.rows[slot].values()) if self.dirty[slot] else list(new.values())


class Engine:
    """Random batches: prompts in chunks of any length, drafts refused, preemption, reused slots."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.n_named = 0
        self.running: dict[int, tuple[str, int, int]] = {}
        """Slot to request id, next position, prompt length."""

    def step(self, *, wants_drafts: bool = True) -> tiny.Step:
        rng = self.rng
        slots = rng.sample(range(SLOTS), rng.randint(1, SLOTS))
        requests, rejected, sampled = [], [], []
        at = rng.randrange(3)
        for slot in slots:
            name, pos, prompt = self._request(slot)
            if pos < prompt:
                n_rows, k, n_rejected = min(rng.randint(1, 3 * W), prompt - pos), 0, 0
                has_sampled = pos + n_rows == prompt
            else:
                k = rng.randint(0, N)
                n_rows, n_rejected, has_sampled = 1 + k, rng.randint(0, k), True
            requests.append(Scheduled(name, slot, at, pos, n_rows, k))
            rejected.append(n_rejected)
            sampled.append(int(has_sampled) * (1 + k - n_rejected))
            self.running[slot] = name, pos + n_rows - n_rejected, prompt
            at += n_rows + rng.choice([0, 0, 0, 1])
        return tiny.step(rng, requests, rejected, sampled, wants_drafts=wants_drafts)

    def _request(self, slot: int) -> tuple[str, int, int]:
        rng, fate = self.rng, self.rng.random()
        if slot not in self.running or fate < 0.1:
            self.n_named += 1
            start = rng.choice([0, 0, rng.randrange(50)])  # behind a prefix-cache hit
            return f"r{self.n_named}", start, start + rng.randint(1, 5 * W)
        name, pos, prompt = self.running[slot]
        if fate < 0.15:  # back at a lower position, or past a gap
            pos = max(0, pos + rng.randint(-2 * W, 3))
        return name, pos, max(prompt, pos)


class Bench:
    """The real rooms and the model, side by side."""

    def __init__(self) -> None:
        self.rows = StagedRows(tiny.HELLO, CPU)
        self.ledger = Ledger(SLOTS, W)
        self.naive = Naive()

    def round(self, step: tiny.Step, *, stage: bool = True) -> list[ReqEntry]:
        parts = self.ledger.open(step.requests)
        sampled = self.rows.keep(parts, step.tensors, stage=stage)
        entries = self.ledger.close(parts, sampled, 0)
        expected = self.naive.sends(step)
        assert [*sampled] == expected_samples(step)
        if stage:
            assert message_rows(self.rows, entries) == [row for part in expected for row in part]
            assert [entry.n_rows for entry in entries] == [len(part) for part in expected]
        self.check_ring()
        return entries

    def soil(self, rng: random.Random) -> None:
        """Any slots get dirty, any get clean."""
        for slot in range(SLOTS):
            is_dirty = rng.random() < 0.4
            self.naive.dirty[slot] = is_dirty
            (self.ledger.soil if is_dirty else self.ledger.clean)([slot])

    def check_ring(self) -> None:
        for slot, held in enumerate(self.naive.rows):
            lo, hi = self.ledger.pages[slot].window
            assert [*range(lo, hi + 1)] == [*held]
            for pos, row in held.items():
                kept = self.rows.ring.rows[slot * W + pos % W]
                assert bytes(kept.view(torch.uint8).tolist()) == row


def expected_samples(step: tiny.Step) -> list[Sampled]:
    return [
        Sampled(
            n_rejected,
            n_sampled > 0 and step.tensors.wants_drafts,
            (step.last_sampled if n_sampled else step.next_prefill)[request.slot],
        )
        for request, n_rejected, n_sampled in zip(
            step.requests, step.rejected, step.sampled, strict=True
        )
    ]


def message_rows(rows: StagedRows, entries: Sequence[ReqEntry]) -> list[bytes]:
    """The rows of a whole STEP, as the worker finds them."""
    head = step_head(
        seq=1, session=1, step_id=1, step_flags=0, row_bytes=tiny.ROW_BYTES, entries=entries
    )
    message = rows.message(head, sum(entry.n_rows for entry in entries))
    assert message.contiguous
    assert message.format == "B"
    found = parse_step(message[32:], Limits(SLOTS, SLOTS * W, 24))
    assert found.entries == entries
    block = bytes(found.rows)
    return [block[at : at + tiny.ROW_BYTES] for at in range(0, len(block), tiny.ROW_BYTES)]


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32))
def test_messages_ring_and_samples_are_those_of_a_model_made_of_dicts(seed: int) -> None:
    """§4.3, §7.3, §7.4: chunks longer than W, rejections, rollbacks, gaps, reuse, dirty slots."""
    rng = random.Random(seed)
    engine, bench = Engine(rng), Bench()
    for _ in range(N_ROUNDS):
        bench.round(engine.step(wants_drafts=rng.random() < 0.9), stage=rng.random() < 0.8)
        bench.soil(rng)


def decode(q: int, pos: int, rejected: int = 0) -> tiny.Step:
    rng = random.Random(1)
    return tiny.step(rng, [Scheduled("a", 0, 0, pos, q, q - 1)], [rejected], [q - rejected])


def test_a_rejected_row_never_overwrites_the_row_w_positions_before_it() -> None:
    bench = Bench()
    bench.round(tiny.step(random.Random(0), [Scheduled("a", 0, 0, 0, 8, 0)], [0], [1]))
    bench.round(decode(4, 8, rejected=3))
    bench.naive.dirty[0] = True
    bench.ledger.soil([0])
    entries = bench.round(decode(2, 9, rejected=1))
    assert (entries[0].first_pos, entries[0].n_rows) == (2, 8)


def test_the_row_block_of_every_message_begins_on_a_page() -> None:
    bench = Bench()
    entries = bench.round(decode(4, 0))
    head = step_head(
        seq=1, session=1, step_id=1, step_flags=0, row_bytes=tiny.ROW_BYTES, entries=entries
    )
    message = bench.rows.message(head, 4)
    assert len(message) == len(head) + 4 * tiny.ROW_BYTES
    address = torch.frombuffer(message, dtype=torch.uint8).data_ptr()
    assert (address + len(head)) % 4096 == 0


def test_nothing_is_drafted_for_when_the_engine_verifies_no_drafts_next() -> None:
    """The rows go out all the same (a STEP without NEED_DRAFT)."""
    rng = random.Random(2)
    step = tiny.step(rng, [Scheduled("a", 0, 0, 0, 1, 0)], [0], [1], wants_drafts=False)
    (entry,) = Bench().round(step)
    assert not entry.req_flags & NEED_DRAFT
    assert entry.n_rows == 1


class NoSync(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails on whatever would make the host wait for a device."""

    SYNCS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "masked_select")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.SYNCS, f"{name} waits for the device"
        self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_dirty", [False, True])
def test_the_device_is_not_waited_for_before_the_end(is_dirty: bool) -> None:
    """§4.2: compaction by `num_rejected` without a host sync; `landed` has the one wait."""
    rows, ledger = StagedRows(tiny.HELLO, CPU), Ledger(SLOTS, W)
    requests = [Scheduled("a", 0, 0, 20, 4, 3), Scheduled("b", 2, 4, 9, 2, 1)]
    step = tiny.step(random.Random(3), requests, [2, 0], [2, 2])
    parts = [part._replace(resyncs=is_dirty) for part in ledger.open(requests)]
    with NoSync() as watch:
        rows.launch(parts, step.tensors, stage=True)
    assert "index_copy_" in watch.seen
    assert [*rows.landed()] == expected_samples(step)


def test_the_watch_for_syncs_bites() -> None:
    with NoSync(), pytest.raises(AssertionError, match="waits for the device"):
        torch.tensor([1]).item()


def test_a_round_takes_few_operations() -> None:
    """Each is a launch on the device: more of them is time in every round."""
    rows, ledger = StagedRows(tiny.HELLO, CPU), Ledger(SLOTS, W)
    step = decode(4, 0)
    parts = ledger.open(step.requests)
    views = ("slice", "split", "split_with_sizes", "view", "select", "reshape", "alias", "detach")
    with NoSync() as watch:
        rows.launch(parts, step.tensors, stage=True)
    rows.landed()
    work = [name for name in watch.seen if name not in views]
    assert len(work) <= 21, work


Change = Callable[[tiny.Step], dict[str, Any]]

MISSHAPEN: list[tuple[Change, str]] = [
    (lambda s: {"taps": s.tensors.taps[:2]}, "expected 3 of"),
    (lambda s: {"taps": [t[:, :3] for t in s.tensors.taps]}, "expected 3 of"),
    (lambda s: {"taps": [t.float() for t in s.tensors.taps]}, "expected bfloat16"),
    (lambda s: {"taps": [t[:3] for t in s.tensors.taps]}, "rows 0 to 4 of 3"),
    (lambda s: {"num_rejected": s.tensors.num_rejected[:0]}, "num_rejected"),
    (lambda s: {"num_sampled": s.tensors.num_sampled.float()}, "num_sampled"),
    (lambda s: {"last_sampled": s.tensors.last_sampled[:1]}, "last_sampled"),
    (lambda s: {"next_prefill_tokens": s.tensors.last_sampled[:1]}, "next_prefill_tokens"),
]


@pytest.mark.parametrize(("change", "named"), MISSHAPEN)
def test_misshapen_tensors_are_refused_by_name(change: Change, named: str) -> None:
    step = decode(4, 0)
    rows, ledger = StagedRows(tiny.HELLO, CPU), Ledger(SLOTS, W)
    parts = ledger.open(step.requests)
    with pytest.raises(ValueError, match=named):
        rows.launch(parts, step.tensors._replace(**change(step)), stage=True)
    assert rows.launch(parts, step.tensors, stage=True) is None


def test_more_requests_than_slots_are_refused() -> None:
    rng = random.Random(4)
    requests = [Scheduled(f"r{i}", i % 4, i, 0, 1, 0) for i in range(5)]
    step = tiny.step(rng, requests, [0] * 5, [1] * 5)
    with pytest.raises(ValueError, match="5 requests for 4 slots"):
        StagedRows(tiny.HELLO, CPU).launch(
            Ledger(SLOTS, W).open(requests), step.tensors, stage=True
        )


def test_the_rooms_take_the_memory_that_the_contract_gives_them() -> None:
    """§8.2 at the live terms; the ring has one row more (`ring`), the buffer a page at most."""
    live = tiny.HELLO._replace(
        num_spec=5, window=128, hidden=5120, row_bytes=30720, max_slots=4, max_rows_per_step=512
    )
    rows, allowed = StagedRows(live, CPU), budget(live)
    assert rows.ring.rows.nbytes - live.row_bytes == allowed.ring_bytes == 15 << 20
    assert rows._gathered.nbytes * 2 == allowed.staging_bytes == 30 << 20
    message = rows.memory.nbytes
    assert 0 <= message - allowed.pinned_bytes <= 4096
    assert message < 16 << 20
