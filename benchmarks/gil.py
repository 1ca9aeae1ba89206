"""What another busy Python thread costs a round, in both modes and at two switch intervals (§4.2).

A worker process answers STEPs of one decode request at the live row size; rank 0 runs whole rounds,
CPU tensors and all, for a while: its own thread free, and beside a thread that only computes in
Python, as vLLM's process has some. µs a round, 10th, 50th and 99th percentile.

`thread` is what the engine's own thread spends per round. In the two-thread mode on a GPU that is
all the engine waits for; on a CPU it waits at the gate too, so `call` is printed beside it.
"""

import argparse
import json
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dsparkctl.client.broadcast import Alone
from dsparkctl.client.proposer import Proposer
from dsparkctl.client.proxy import ProxySpeaker
from dsparkctl.client.rows import Batch
from dsparkctl.client.settings import Settings
from dsparkctl.client.staging import StepTensors
from dsparkctl.client.start import start_rank0
from dsparkctl.client.terms import EngineTerms
from dsparkctl.contract.codes import NEED_DRAFT, Op
from dsparkctl.contract.framing import HEADER_BYTES, prefix
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import (
    Limits,
    frame,
    parse_header,
    parse_hello,
    parse_step,
    step_reply_frame,
)
from dsparkctl.contract.records import HelloReply, ReplyHeader, ReqStatus
from dsparkctl.state.ledger import Scheduled
from dsparkctl.state.n_out import Caps

CPU = torch.device("cpu")
N, K = 5, 5
IDENTITY = bytes(31) + b"\1"

TERMS = EngineTerms(
    num_spec=N,
    window=128,
    hidden=5120,
    tap_layer_ids=(37, 38, 39),
    noise_token_id=128799,
    vocab_size=129280,
    max_model_len=327680,
    max_slots=4,
    tp_size=2,
    dtype="bfloat16",
    draft_sample_method="greedy",
    draft_topk=None,
    watermarking=False,
    block_size=N,
)


def serve(listener: socket.socket) -> None:
    """Accepts everything and drafts ones; as quick as Python is."""
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(16 << 20))
    while True:
        if not sock.recv_into(buffer, 4, socket.MSG_WAITALL):
            return
        n = int.from_bytes(buffer[:4], "little")
        sock.recv_into(buffer, n, socket.MSG_WAITALL)
        reply = answer(buffer[:n])
        sock.sendall(prefix(len(reply)) + reply)


def answer(message: memoryview) -> bytes:
    header = parse_header(message)
    body = message[HEADER_BYTES:]
    if header.op == Op.HELLO:
        hello = parse_hello(body)
        said = HelloReply(
            proto=1,
            max_slots=hello.max_slots,
            max_rows_per_step=hello.max_rows_per_step,
            capabilities=1,
            window=hello.window,
            num_spec=hello.num_spec,
            drafter_identity=hello.drafter_identity,
            markov_identity=hello.markov_identity,
            worker_name=b"bench",
        )
        return frame(Op.HELLO, header.seq, header.session, pack(said))
    step = parse_step(body, Limits(4, 512, TERMS.row_bytes))
    n = len(step.entries)
    assert all(entry.req_flags & NEED_DRAFT for entry in step.entries)
    return step_reply_frame(
        seq=header.seq,
        session=header.session,
        head=ReplyHeader(step.head.step_id, n, N, 0, 1, 1, (0, 0)),
        statuses=[
            ReqStatus(0, min(entry.anchor_pos, 128), entry.generation) for entry in step.entries
        ],
        draft_ids=[1] * n * N,
        confidence=[0.5] * n * N,
        margin=None,
    )


class Engine:
    """One request: a prefill of W rows, then decode steps with every draft accepted."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self._pos = 0
        self._taps = [torch.zeros(128, TERMS.hidden, dtype=torch.bfloat16) for _ in range(3)]
        self._tensors = StepTensors(
            self._taps,
            torch.ones(1, dtype=torch.int32),
            torch.zeros(1, dtype=torch.int32),
            torch.ones(4, 1, dtype=torch.int64),
            torch.ones(1, 4, dtype=torch.int32),
            wants_drafts=True,
        )

    def step(self) -> None:
        n_rows, k = (1 + K, K) if self._pos else (128, 0)
        request = Scheduled("r", 0, 0, self._pos, n_rows, k)
        self._pos += n_rows
        found = self._proposer.propose(Batch([request], self._tensors))
        assert int(found.draft_ids[0, 0]) == 1, found


@contextmanager
def busy(is_busy: bool) -> Iterator[None]:
    """A thread that computes in Python until the block ends."""
    is_over = threading.Event()

    def compute() -> None:
        x = 0
        while not is_over.is_set():
            for i in range(1000):
                x = (x * 31 + i) & 0xFFFF

    thread = threading.Thread(target=compute, daemon=True)
    if is_busy:
        thread.start()
    yield
    is_over.set()
    if is_busy:
        thread.join()


def measured(*, is_async: bool, is_busy: bool, interval_s: float, n_rounds: int) -> dict[str, Any]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    worker = multiprocessing.get_context("fork").Process(
        target=serve, args=(listener,), daemon=True
    )
    worker.start()
    env = {
        "ENDPOINT": f"tcp://127.0.0.1:{port}",
        "IDENTITY": IDENTITY.hex(),
        "ASYNC": str(int(is_async)),
        "TIMEOUT_MS": "2000",
        "LOG_INTERVAL_S": "0",
    }
    settings = Settings.from_environment(
        {f"VLLM_DSPARK_REMOTE_{name}": text for name, text in env.items()}
    )
    assert settings is not None
    proposer = start_rank0(settings, TERMS, device=CPU, broadcast=Alone(), caps=Caps((), ""))
    engine = Engine(proposer)
    own_us: list[float] = []
    speaker = proposer.speaker
    if isinstance(speaker, ProxySpeaker):
        hold = speaker._gate.hold

        def timed(n: int) -> None:
            started = time.perf_counter()
            hold(n)
            own_us.append(-(time.perf_counter() - started) * 1e6)

        speaker._gate.hold = timed  # type: ignore[method-assign]
    sys.setswitchinterval(interval_s)  # behind `start_rank0`, which sets its own
    call_us = []
    for _ in range(20):
        engine.step()
    own_us.clear()
    with busy(is_busy):
        for _ in range(n_rounds):
            started = time.perf_counter()
            engine.step()
            call_us.append((time.perf_counter() - started) * 1e6)
    thread_us = [call + own for call, own in zip(call_us, own_us, strict=True)] if own_us else None
    proposer.close()
    worker.kill()
    worker.join()
    listener.close()
    return {"call": spread(call_us), "thread": spread(thread_us or call_us)}


def spread(times: list[float]) -> tuple[float, float, float]:
    cuts = statistics.quantiles(times, n=100)
    return round(cuts[9]), round(cuts[49]), round(cuts[98])


def shown(cuts: tuple[float, float, float]) -> str:
    return "".join(f"{cut:7.0f}" for cut in cuts)


def main() -> None:
    parser = argparse.ArgumentParser(description="what a busy thread costs a round")
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for is_busy in (False, True):
        for is_async in (False, True):
            for interval_s in (5e-3, 1e-5):
                found = measured(
                    is_async=is_async,
                    is_busy=is_busy,
                    interval_s=interval_s,
                    n_rounds=given.rounds,
                )
                rows.append({"busy": is_busy, "async": is_async, "interval_s": interval_s, **found})
                if not given.json:
                    print(
                        f"{'busy' if is_busy else 'free':5}"
                        f"{'async' if is_async else 'sync':6} {interval_s:7.0e} s"
                        f"  call {shown(found['call'])}  thread {shown(found['thread'])}",
                        flush=True,
                    )
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
