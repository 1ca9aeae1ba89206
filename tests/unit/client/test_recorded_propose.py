"""What vLLM 0.32 really called `propose` with, through the client and a desk (§4.3, §7.1, §7.2).

The recording holds several requests at once, chunked prefill, preempted requests that come back, a
prefix-cache hit, rejected drafts, reused slots, and positions that the host knew only a bound of
(`tests/vllm/record.py`). Tap rows are made here: each names its request and position.
"""

import json
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dspark_worker.desk import Desk
from dspark_worker.drafter import Append, Fault
from dspark_worker.scripted import ScriptedDrafter
from dsparkctl.client.batch import Requests
from dsparkctl.client.broadcast import Alone, Word
from dsparkctl.client.environment import OnFail
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.interval import Interval
from dsparkctl.client.link import WorkerLink
from dsparkctl.client.proposer import Choice, Proposal, Proposer
from dsparkctl.client.rounds import Rounds
from dsparkctl.client.rows import Batch
from dsparkctl.client.speaker import Speaker
from dsparkctl.client.staging import StagedRows, StepTensors
from dsparkctl.client.switch import Switch
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.layout import Buffer
from dsparkctl.contract.messages import parse_header
from dsparkctl.contract.records import Hello
from dsparkctl.net.transport import Broken, Deadline
from dsparkctl.state.breaker import Breaker
from dsparkctl.state.n_out import Caps
from tests.unit.client import tiny
from tests.unit.client.fakes import Clock

FILE = Path(__file__).parents[2] / "golden/propose/qwen3-tiny.json"
RECORDING: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
CALLS: list[dict[str, Any]] = RECORDING["calls"]
TERMS: dict[str, Any] = RECORDING["terms"]
W: int = TERMS["window"]

HELLO: Hello = tiny.HELLO._replace(
    **TERMS, noise_token_id=0, max_rows_per_step=TERMS["max_slots"] * W
)


def row(req_id: str, pos: int) -> bytes:
    """24 bytes that no other position has, every bf16 of them finite."""
    words = struct.pack("<II", zlib.crc32(req_id.encode()), pos)
    return bytes(b & 0x3F for b in words * 3)


class KeepingDrafter(ScriptedDrafter):
    """Scripted drafts, and the rows as they came."""

    def __init__(self) -> None:
        super().__init__(
            num_spec=HELLO.num_spec,
            window=W,
            vocab_size=HELLO.vocab_size,
            row_bytes=HELLO.row_bytes,
            max_slots=HELLO.max_slots,
        )
        self.rows: dict[tuple[int, int], bytes] = {}

    def append(self, parts: Sequence[Append]) -> list[Fault | None]:
        for part in parts:
            for i in range(part.n_rows):
                data = bytes(part.rows[i * HELLO.row_bytes : (i + 1) * HELLO.row_bytes])
                self.rows[part.slot, part.first_pos + i] = data
        return super().append(parts)


class Worker:
    """A desk that can be lost with everything it holds."""

    def __init__(self) -> None:
        self.drafter = KeepingDrafter()
        self.desk = Desk(HELLO, self.drafter, worker_name="recorded", clock=lambda: 0.0, about=dict)
        self.is_gone = False


class DeskLink:
    """A carrier that ends in a desk; a `Link`."""

    endpoint = Endpoint("tcp", "10.0.0.1", 18620)

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        worker.desk.connected()

    def exchange(self, parts: Sequence[Buffer], deadline: Deadline) -> memoryview:
        self.check()
        message = b"".join(bytes(part) for part in parts)
        body = memoryview(message)[HEADER_BYTES:]
        return memoryview(self._worker.desk.answer(parse_header(message), body, 0.0))

    def check(self) -> None:
        if self._worker.is_gone:
            raise Broken(f"{self.endpoint}: gone")

    def close(self) -> None:
        """There is nothing to give up."""


class Rank0:
    """The client as `start` puts it together, on a carrier and a clock of our own."""

    def __init__(self) -> None:
        self.worker = Worker()
        clock = Clock()
        link = WorkerLink(
            HELLO,
            lambda _: DeskLink(self.worker),
            timeout_s=1.0,
            clock=clock,
            new_session=lambda: 7,
        )
        self.clock = clock
        self.rounds = Rounds(
            link,
            StagedRows(HELLO, torch.device("cpu")),
            Breaker(3, 256),
            switch=Switch(None),
            caps=Caps((), "not asked for"),
            clock=clock,
        )
        word = Word(HELLO.max_slots, HELLO.num_spec, torch.device("cpu"))
        interval = Interval(self.rounds, None, every_s=0, metrics_file=None, clock=clock)
        speaker = Speaker(self.rounds, word, OnFail.FALLBACK, interval)
        self.proposer = Proposer(word, Alone(), Choice(), speaker=speaker)

    def propose(self, call: dict[str, Any]) -> Proposal:
        requests = Requests(input_batch(call), self.rounds.ledger)
        return self.proposer.propose(Batch(requests, step_tensors(call)))

    def windows(self) -> list[tuple[int, int]]:
        return [(page.window.lo, page.window.hi) for page in self.rounds.ledger.pages]


def input_batch(call: dict[str, Any]) -> Any:
    """As much of vLLM's InputBatch as is read, by vLLM's names."""
    positions: dict[int, int] = dict(zip(call["rows"], call["first_pos"], strict=True))
    return SimpleNamespace(
        num_reqs=len(call["req_ids"]),
        req_ids=call["req_ids"],
        idx_mapping_np=call["slots"],
        query_start_loc_np=call["rows"],
        num_scheduled_tokens=call["n_rows"],
        num_draft_tokens_per_req=call["n_drafts"],
        num_computed_tokens_np=call["host_first_pos"],
        is_prefilling_np=call["is_prefilling"],
        positions=positions,
    )


def step_tensors(call: dict[str, Any]) -> StepTensors:
    """The tap rows by request and position; a rejected row is no row of its position."""
    rows = [b"\x3e" * HELLO.row_bytes] * call["n_tokens"]
    for i, req_id in enumerate(call["req_ids"]):
        for j in range(call["n_rows"][i] - call["num_rejected"][i]):
            rows[call["rows"][i] + j] = row(req_id, call["first_pos"][i] + j)
    whole = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.bfloat16)
    taps = whole.view(call["n_tokens"], HELLO.n_taps, HELLO.hidden)
    return StepTensors(
        [taps[:, i].contiguous() for i in range(HELLO.n_taps)],
        torch.tensor(call["num_sampled"], dtype=torch.int32),
        torch.tensor(call["num_rejected"], dtype=torch.int32),
        torch.tensor(call["last_sampled"], dtype=torch.int64).view(-1, 1),
        torch.tensor([call["next_prefill_tokens"]], dtype=torch.int32),
        wants_drafts=call["k"] != 0,
    )


def held(worker: Worker, window: tuple[int, int], slot: int) -> list[bytes | None]:
    lo, hi = window
    return [worker.drafter.rows.get((slot, pos)) for pos in range(lo, hi + 1)]


class Owners:
    """A naive recount: whose text each slot holds, and from which position on."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[str, int]] = {}

    def after(self, call: dict[str, Any]) -> dict[int, tuple[str, int, int]]:
        """Slot -> request, first and last position that a window of W rows must hold."""
        found = {}
        for i, req_id in enumerate(call["req_ids"]):
            slot, first = call["slots"][i], call["first_pos"][i]
            owner, lowest = self._of.get(slot, ("", 0))
            lowest = min(lowest, first) if owner == req_id else first
            self._of[slot] = req_id, lowest
            last = first + call["n_rows"][i] - call["num_rejected"][i] - 1
            found[slot] = req_id, max(lowest, last - W + 1), last
        return found


def test_the_recording_holds_what_it_is_said_to_hold() -> None:
    assert max(len(call["req_ids"]) for call in CALLS) >= 3
    entries = [
        (call["req_ids"][i], call["slots"][i], call["is_prefilling"][i], call["num_sampled"][i])
        for call in CALLS
        for i in range(len(call["req_ids"]))
    ]
    assert any(prefilling and not sampled for _, _, prefilling, sampled in entries)
    slots: dict[str, set[int]] = {}
    for req_id, slot, _, _ in entries:
        slots.setdefault(req_id, set()).add(slot)
    assert len(slots) > TERMS["max_slots"]
    assert any(sum(call["num_rejected"]) for call in CALLS)
    starts = {
        r: p for c in reversed(CALLS) for r, p in zip(c["req_ids"], c["first_pos"], strict=True)
    }
    assert any(pos > 0 for pos in starts.values()), "no prefix-cache hit"
    assert any(call["first_pos"] != call["host_first_pos"] for call in CALLS)


def test_positions_come_from_the_book_where_the_host_has_a_bound() -> None:
    rank0 = Rank0()
    for call in CALLS:
        requests = Requests(input_batch(call), rank0.rounds.ledger)
        assert [r.first_pos for r in requests] == call["first_pos"]
        rank0.propose(call)


def test_every_window_is_the_one_a_naive_recount_expects() -> None:
    """§4.3, §7.2: byte for byte, after every round, on both sides."""
    rank0, owners = Rank0(), Owners()
    for call in CALLS:
        proposal = rank0.propose(call)
        assert proposal.outcome in (Outcome.DRAFTED, Outcome.APPENDED)
        for slot, (req_id, lo, hi) in owners.after(call).items():
            assert rank0.windows()[slot] == (lo, hi)
            wanted = [row(req_id, pos) for pos in range(lo, hi + 1)]
            assert held(rank0.worker, (lo, hi), slot) == wanted
    counts = rank0.rounds.counters.snapshot()
    assert counts["bad_entries"] == counts["internal_entries"] == counts["stale_generation"] == 0
    assert counts["partial_windows"] == partial_windows()
    assert counts["steps_sent"] == len(CALLS)


def partial_windows() -> int:
    """Entries that need drafts while rows before them were never computed: a prefix hit (§7.4)."""
    owners, n = Owners(), 0
    for call in CALLS:
        windows = owners.after(call)
        for slot, sampled in zip(call["slots"], call["num_sampled"], strict=True):
            _, lo, hi = windows[slot]
            n += bool(sampled and hi - lo + 1 < min(W, hi + 1))
    return n


@pytest.mark.parametrize("at", [3, len(CALLS) // 3, len(CALLS) // 2])
def test_a_worker_that_lost_everything_has_the_same_windows_again(at: int) -> None:
    """§7.4: one resync per slot, from the ring."""
    rank0, owners = Rank0(), Owners()
    for n, call in enumerate(CALLS):
        if n == at:
            rank0.worker.is_gone = True
            rank0.worker = Worker()
        elif n == at + 1:
            rank0.clock.wait(2.0)
        outcome = rank0.propose(call).outcome
        assert outcome in (Outcome.DRAFTED, Outcome.APPENDED) or n == at
        for slot, (req_id, lo, hi) in owners.after(call).items():
            if n > at:
                wanted = [row(req_id, pos) for pos in range(lo, hi + 1)]
                assert held(rank0.worker, (lo, hi), slot) == wanted
    assert rank0.rounds.counters.snapshot()["resyncs"] >= 1
