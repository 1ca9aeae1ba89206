"""Two real ranks over gloo, rank 0 with a worker over TCP (§4.1; field reports 10 and 11).

Whatever happens to rank 0's exchange, both ranks get one tensor, and no rank waits for ever: every
answer is awaited with a deadline.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from dsparkctl.client.terms import EngineTerms
from dsparkctl.contract.codes import EntryStatus, FrameStatus
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.records import Hello
from tests.e2e.hostile import (
    Deed,
    HostileWorker,
    answer,
    half,
    hang_up,
    hostile_worker,
    nothing,
    reply_of,
    slam,
)
from tests.e2e.rank import LOCAL_ID
from tests.e2e.running import Worker, running_worker
from tests.unit.client.fakes import HELLO, VOCAB, edited, entry_status, status

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
RECOVERS_S = 30.0


class Rank:
    """One process, and what it says, line by line."""

    def __init__(self, rank: int, store: Path, terms: EngineTerms, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.e2e.rank"),
                *(str(rank), str(store), json.dumps(asdict(terms))),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=env,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def tell(self, slots: list[int]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(slots) + "\n")
        self.process.stdin.flush()

    def said(self) -> dict[str, Any]:
        line = self._lines.get(timeout=WAIT_S)
        assert line, "the rank ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> int:
        """No more steps; the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WAIT_S)

    def clear(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self._reader.join(WAIT_S)
        self.process.stdin.close()
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")


class Pair:
    """Both ranks of one engine."""

    def __init__(self, ranks: list[Rank]) -> None:
        self.ranks = ranks
        self.seen: list[str] = []

    def step(self, *slots: int) -> dict[str, Any]:
        """One engine step; both ranks got and made the same of it."""
        for rank in self.ranks:
            rank.tell([*slots] or [0])
        ours, theirs = (rank.said() for rank in self.ranks)
        assert len(ours["words"]) == len(theirs["words"]) > 1
        assert ours["words"] == theirs["words"]
        if "raised" in ours or "raised" in theirs:
            return {"raised": [ours.get("raised"), theirs.get("raised")]}
        assert ours == theirs
        self.seen.append(ours["outcome"])
        return ours

    def until(self, outcome: str, *slots: int) -> dict[str, Any]:
        """Steps until one comes to this, as an engine of 20 ms a step would."""
        ends_at = time.monotonic() + RECOVERS_S
        while time.monotonic() < ends_at:
            found = self.step(*slots)
            if found["outcome"] == outcome:
                return found
            time.sleep(0.02)
        raise AssertionError(f"no {outcome} in {self.seen[-50:]}")


@contextmanager
def pair(tmp_path: Path, endpoint: Endpoint, hello: Hello, **settings: str) -> Iterator[Pair]:
    env = {
        "ENDPOINT": str(endpoint),
        "IDENTITY": hello.drafter_identity.hex(),
        "MARKOV_IDENTITY": hello.markov_identity.hex(),
        "TIMEOUT_MS": "400",
        **settings,
    }
    whole = os.environ | {f"VLLM_DSPARK_REMOTE_{name}": text for name, text in env.items()}
    store = tmp_path / f"store{time.monotonic_ns()}"
    ranks = [Rank(i, store, terms_of(hello), whole) for i in range(2)]
    try:
        for i, rank in enumerate(ranks):
            assert rank.said() == {"ready": i}
        yield Pair(ranks)
        assert [rank.end() for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.clear()


def terms_of(hello: Hello) -> EngineTerms:
    return EngineTerms(
        num_spec=hello.num_spec,
        window=hello.window,
        hidden=hello.hidden,
        tap_layer_ids=hello.tap_layer_ids[: hello.n_taps],
        noise_token_id=hello.noise_token_id,
        vocab_size=hello.vocab_size,
        max_model_len=hello.max_model_len,
        max_slots=hello.max_slots,
        tp_size=2,
        dtype="bfloat16",
        draft_sample_method="greedy",
        draft_topk=None,
        watermarking=False,
        block_size=hello.num_spec,
    )


def is_blank(found: dict[str, Any]) -> bool:
    return not any(map(any, found["ids"])) and not any(map(any, found["confidence"]))


def real_worker(endpoint: Endpoint | None = None) -> Any:
    again = () if endpoint is None else ("--listen", str(endpoint))
    return running_worker("--drafter", "scripted", *again)


# --- a real worker process ------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", ["0", "1"])
def test_both_ranks_see_one_tensor_while_a_real_worker_lives_stops_and_dies(
    tmp_path: Path, is_async: str
) -> None:
    """Drafts, a late answer, no connection, a worker killed, a new one, the kill switch."""
    switch = tmp_path / "off"
    with real_worker() as worker:
        given = {"SWITCH_FILE": str(switch), "ASYNC": is_async}
        with pair(tmp_path, worker.data, worker.own, **given) as engine:
            engine.until("DRAFTED")
            found = engine.step(0, 2)
            assert found["outcome"] == "DRAFTED"
            assert not is_blank(found)

            os.kill(worker.process.pid, signal.SIGSTOP)
            found = engine.step(0, 1)
            os.kill(worker.process.pid, signal.SIGCONT)
            assert found["outcome"] == "TIMEOUT"
            assert is_blank(found)
            assert engine.step(0)["outcome"] == "NO_CONNECTION"
            engine.until("DRAFTED", 0, 1)

            switch.touch()
            assert is_blank(engine.until("SWITCHED_OFF", 0, 1, 3))
            switch.unlink()
            engine.until("DRAFTED", 0, 1, 3)

            worker.process.kill()
            worker.process.wait()
            found = engine.step(1, 3)
            assert found["outcome"] in ("NO_CONNECTION", "TRANSPORT")
            assert is_blank(found)
            with revived(worker):
                engine.until("DRAFTED", 1, 3)


@contextmanager
def revived(worker: Worker) -> Iterator[None]:
    """A new worker process where the killed one listened."""
    with real_worker(worker.data) as again:
        assert again.data == worker.data
        yield


def test_a_worker_that_was_never_there_and_one_of_another_checkpoint(tmp_path: Path) -> None:
    nobody = Endpoint("tcp", "127.0.0.1", 1)
    with pair(tmp_path, nobody, HELLO) as engine:
        assert engine.step(0, 1)["outcome"] == "NO_CONNECTION"
    with (
        real_worker() as worker,
        pair(tmp_path, worker.data, worker.own, IDENTITY="ab" * 32) as engine,
    ):
        assert engine.step(0)["outcome"] == "DISABLED"
        assert engine.step(0, 1)["outcome"] == "DISABLED"


# --- a worker that does one thing wrong at a time -------------------------------------------------

WRONG: list[tuple[Deed, str]] = [
    (nothing, "TIMEOUT"),
    (half, "TRANSPORT"),
    (hang_up, "TRANSPORT"),
    (slam, "TRANSPORT"),
    (reply_of(lambda reply: reply[:-4]), "BAD_REPLY"),
    (reply_of(edited(lambda r: r._replace(draft_ids=(VOCAB,) * 3))), "BAD_REPLY"),
    (reply_of(status(FrameStatus.INTERNAL)), "FRAME_ERROR"),
    (reply_of(status(FrameStatus.NO_SESSION)), "FRAME_ERROR"),
    (reply_of(entry_status(EntryStatus.BAD_ENTRY)), "ENTRY_ERRORS"),
    (reply_of(entry_status(EntryStatus.STALE_GENERATION)), "ENTRY_ERRORS"),
]


@pytest.fixture
def hostile() -> Iterator[HostileWorker]:
    with hostile_worker() as worker:
        yield worker


def test_no_wrong_answer_parts_the_ranks(tmp_path: Path, hostile: HostileWorker) -> None:
    with pair(tmp_path, hostile.endpoint, HELLO, TRIP="0") as engine:
        for deed, outcome in WRONG:
            engine.until("DRAFTED")
            hostile.will(deed)
            found = engine.step(0)
            assert found["outcome"] == outcome
            assert is_blank(found)
        engine.until("DRAFTED")


def test_the_ranks_count_a_cooldown_alike(tmp_path: Path, hostile: HostileWorker) -> None:
    """§10: rank 0 alone counts; the other one is told."""
    hostile.will(*[reply_of(status(FrameStatus.INTERNAL))] * 4)
    with pair(tmp_path, hostile.endpoint, HELLO, TRIP="3", COOLDOWN="5") as engine:
        for _ in range(17):
            engine.step(0, 1)
    failed, silent = ["FRAME_ERROR"], ["COOLDOWN"] * 5
    assert engine.seen == [*failed * 3, *silent, *failed, *silent, *["DRAFTED"] * 3]


def test_both_ranks_run_their_local_drafter_in_the_same_rounds(
    tmp_path: Path, hostile: HostileWorker
) -> None:
    """§10, resilience: the decision is broadcast, so both ranks run it."""
    with pair(tmp_path, hostile.endpoint, HELLO, POLICY="resilience") as engine:
        engine.until("DRAFTED")
        hostile.will(nothing, answer)
        found = engine.step(0, 1)
        assert (found["outcome"], found["local"]) == ("TIMEOUT", "propose")
        assert found["ids"] == [[LOCAL_ID] * HELLO.num_spec] * 2
        assert engine.until("DRAFTED")["local"] == "keep"


@pytest.mark.parametrize("is_async", ["0", "1"])
def test_raise_ends_both_ranks(tmp_path: Path, hostile: HostileWorker, is_async: str) -> None:
    """`ON_FAIL=raise`: never one rank alone, or the other waits in the next collective."""
    with pair(tmp_path, hostile.endpoint, HELLO, ON_FAIL="raise", ASYNC=is_async) as engine:
        assert engine.step(0)["outcome"] == "DRAFTED"
        hostile.will(nothing)
        ours, theirs = engine.step(0)["raised"]
        assert "TIMEOUT" in ours
        assert "rank 0 failed" in theirs
