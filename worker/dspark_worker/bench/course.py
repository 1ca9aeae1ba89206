"""Rounds through a real desk and a real socket, each timed part by part.

Decides what a round of the course is: every request sends its new rows, and has a block drafted or,
in a prefill, not. The engine's side is a thread that sleeps while the worker computes. Windows are
full before the first round that counts.
"""

import queue
import select
import socket
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

import torch

from dspark_worker.bench.products import Products
from dspark_worker.bench.stopwatch import INSIDE, Stopwatch, watch
from dspark_worker.data_link import DataLink, ReceiveBuffer
from dspark_worker.desk import Desk
from dspark_worker.model.drafter import TorchDrafter
from dspark_worker.stats import Stats
from dsparkctl.config.hello import HelloParams
from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, EntryStatus
from dsparkctl.contract.framing import HEADER_BYTES, PREFIX_BYTES, prefix
from dsparkctl.contract.messages import hello_frame, parse_step_reply, step_head
from dsparkctl.contract.records import ReqEntry

PARTS: Final = ("receive", "apply", *INSIDE, "rest", "reply")
"""Of a round; `rest` is what a draft does beside its named parts: embedding, gather, mixing."""

_SESSION: Final = 1
_LAST_POS: Final = 1 << 30


class Load(NamedTuple):
    """What every round of a course brings."""

    n_requests: int
    n_rows: int
    """of each request"""
    n_out: int
    """drafts asked for, 0: all"""
    drafting: bool = True


class Sample(NamedTuple):
    """One round, in seconds of the stopwatch's clock."""

    parts: dict[str, float]
    whole: float
    floor: float
    """its matrix products alone, done right after it"""


class _Taken(Stats):
    """The desk's own statistics, and the last duration of each kind."""

    def __init__(self, num_spec: int) -> None:
        super().__init__(num_spec)
        self.last: dict[str, float] = {}

    def took(self, part: str, seconds: float) -> None:
        super().took(part, seconds)
        self.last[part] = seconds


class Course:
    """A drafter behind a desk, and an engine that talks to it. Close it."""

    def __init__(
        self, drafter: TorchDrafter, clock: Callable[[], float], *, max_slots: int
    ) -> None:
        self._watch = Stopwatch(clock)
        watch(drafter, self._watch)
        self._clock = clock
        own = HelloParams.from_checkpoint(
            drafter.config,
            drafter_identity=bytes(32),
            max_slots=max_slots,
            max_model_len=_LAST_POS,
        ).record()
        self._own = own
        self._desk = Desk(own, drafter, worker_name="bench", clock=clock)
        self._taken = self._desk.stats = _Taken(own.num_spec)
        ours, theirs = socket.socketpair()
        n_bytes = (1 << 20) + max_slots * own.window * own.row_bytes
        self._link = DataLink(ours, ReceiveBuffer(n_bytes), clock)
        self._engine = _Engine(theirs)
        self._seq = 0
        self._next_pos = [0] * max_slots
        self._generation = 0
        self._rows = _rows(own.row_bytes, own.window)
        self._ask(hello_frame(self._bump(), _SESSION, own))
        self._engine.reply()
        self.fill()

    def close(self) -> None:
        self._engine.close()
        self._link.close()

    def fill(self) -> None:
        """A full window in every slot, under a new generation."""
        self._generation += 1
        n_slots, window = len(self._next_pos), self._own.window
        self._next_pos = [0] * n_slots
        self._step(Load(n_slots, window, 0, False), NEW_GEN)

    def note(self, load: Load) -> Products:
        """The products of one round."""
        self._prepare(load)
        noted = Products()
        self._step(load, around=noted)
        return noted

    def run(self, load: Load, n_rounds: int, products: Products | None = None) -> list[Sample]:
        """Play rounds; after each, its products alone where they are given."""
        samples: list[Sample] = []
        for _ in range(n_rounds):
            self._prepare(load)
            whole, parts = self._step(load)
            floor = 0.0
            if products is not None:
                began = self._clock()
                products.again()
                floor = self._clock() - began
            samples.append(Sample(parts, whole, floor))
        return samples

    def _prepare(self, load: Load) -> None:
        """Near the last position everything starts over."""
        if max(self._next_pos) + load.n_rows + self._own.num_spec >= _LAST_POS:
            self.fill()

    def _step(
        self, load: Load, flags: int = 0, around: Products | None = None
    ) -> tuple[float, dict[str, float]]:
        entries = [
            ReqEntry(
                slot=slot,
                req_flags=flags | (NEED_DRAFT if load.drafting else 0),
                n_out=load.n_out,
                k_window=0,
                generation=self._generation,
                first_pos=self._next_pos[slot],
                n_rows=load.n_rows,
                anchor_pos=self._next_pos[slot] + load.n_rows,
                anchor_token=(7 * self._seq + slot) % self._own.vocab_size,
            )
            for slot in range(load.n_requests)
        ]
        for slot in range(load.n_requests):
            self._next_pos[slot] += load.n_rows
        head = step_head(
            seq=self._bump(),
            session=_SESSION,
            step_id=self._seq,
            step_flags=0,
            row_bytes=self._own.row_bytes,
            entries=entries,
        )
        rows = self._rows[: load.n_rows * self._own.row_bytes]
        self._watch.take()
        whole = self._ask(head, *[rows] * load.n_requests, around=around)
        reply = self._engine.reply()
        statuses = parse_step_reply(memoryview(reply)[HEADER_BYTES:]).statuses
        if any(one.status > EntryStatus.PARTIAL_WINDOW for one in statuses):
            raise RuntimeError(f"the worker answered {statuses}")
        return whole, self._parts(whole)

    def _parts(self, whole: float) -> dict[str, float]:
        """Every part's seconds of the round that just went by; they sum up to it."""
        inside, taken = self._watch.take(), self._taken.last
        parts = {part: inside.get(part, 0.0) for part in INSIDE}
        parts["receive"] = inside["receive"]
        stored = parts["main_proj"] + parts["context KV"]
        parts["apply"] = taken["apply"] - stored
        parts["rest"] = taken["draft"] - sum(parts[part] for part in INSIDE) + stored
        parts["reply"] = whole - parts["receive"] - taken["apply"] - taken["draft"]
        return parts

    def _ask(self, *message: bytes | memoryview, around: Products | None = None) -> float:
        """One message through socket, desk and socket: seconds from its arrival to its reply."""
        clock, link = self._clock, self._link
        self._engine.send(prefix(sum(map(len, message))), *message)
        select.select([link.sock], [], [])
        began = clock()
        while not link.receive():
            pass
        self._watch.spent["receive"] += clock() - began
        header, body = link.message()
        if around is None:
            reply = self._desk.answer(header, body, link.received_at)
        else:
            with around:
                reply = self._desk.answer(header, body, link.received_at)
        link.send(reply)
        took = clock() - began
        link.consume()
        return took

    def _bump(self) -> int:
        self._seq += 1
        return self._seq


class _Engine:
    """The other end of the socket: a thread sends, since a message may be longer than a buffer."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: queue.SimpleQueue[tuple[bytes | memoryview, ...] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def send(self, *parts: bytes | memoryview) -> None:
        self._queue.put(parts)

    def reply(self) -> bytes:
        """The whole reply that the worker has handed to the kernel."""
        n_bytes = int.from_bytes(self._sock.recv(PREFIX_BYTES, socket.MSG_WAITALL), "little")
        return self._sock.recv(n_bytes, socket.MSG_WAITALL)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._sock.close()

    def _run(self) -> None:
        while (parts := self._queue.get()) is not None:
            for part in parts:
                self._sock.sendall(part)


def _rows(row_bytes: int, n_rows: int) -> memoryview:
    """bf16 noise around one: fixed, finite, no two rows alike."""
    generator = torch.Generator().manual_seed(11)
    values = torch.randn(n_rows, row_bytes // 2, generator=generator).to(torch.bfloat16)
    return memoryview(values.view(torch.uint8).numpy().tobytes())
