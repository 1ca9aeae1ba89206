"""Rounds in two threads (§4.2, `VLLM_DSPARK_REMOTE_ASYNC=1`): the engine's thread never waits.

Decides what happens where, and in which order. The engine's thread settles who is in the batch and
launches the gathering of the rows; then one proxy thread waits for them, asks the worker and fills
the tensor; a gate holds the engine's stream, not its thread, until the tensor is filled. The worker
sees the same messages in the same order, since a round begins only when the one before has ended.
Refuses to know what a round is made of.

The gate opens whatever happens to the round, or the stream behind it would hang for ever. On CUDA
it is a word of device memory that the engine's stream waits on and the proxy's side stream writes,
behind the tensor's contents; that part cannot run where there is no GPU, so that no ordinary test
covers it but for the order of its calls. CUDA must not load kernels while a stream waits at a gate:
hence the first round goes through without one in its way, and `start` warns when kernels are loaded
lazily. On a CPU there is no stream to hold, and the engine's thread itself waits at the gate.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from queue import SimpleQueue
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from dsparkctl.client.broadcast import Word
from dsparkctl.client.environment import OnFail
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.interval import Interval
from dsparkctl.client.rounds import Answer, Begun, Rounds
from dsparkctl.client.rows import Batch
from dsparkctl.client.speaker import Speaker
from dsparkctl.client.staging import StagedRows, StepTensors

log = logging.getLogger(__name__)

_JOIN_S: Final = 30.0
"""Far above what a round can take; a thread that is still busy then is lost."""


class ProxyLost(RuntimeError):  # noqa: N818 -- what happened
    """The last round's thread is still at it; whatever it does then, nobody can tell."""


class Gate(Protocol):
    """Between the proxy's thread and what the engine does next. Rounds count from 1."""

    def hold(self, n: int) -> None:
        """Engine's thread: what is launched from here on waits for `open(n)`."""

    def open(self, n: int) -> None:
        """Proxy's thread: round `n` may go on, behind whatever `work` launched."""

    def work(self) -> AbstractContextManager[object]:
        """Proxy's thread: where it launches its copies."""


class ThreadGate:
    """On a CPU: the engine's thread waits."""

    def __init__(self) -> None:
        self._is_open = threading.Condition()
        self._n_open = 0

    def hold(self, n: int) -> None:
        with self._is_open:
            self._is_open.wait_for(lambda: self._n_open >= n)

    def open(self, n: int) -> None:
        with self._is_open:
            self._n_open = n
            self._is_open.notify_all()

    def work(self) -> AbstractContextManager[object]:
        return nullcontext()


class StreamGate:
    """On CUDA: the engine's stream waits, by `cuStreamWaitValue32` of the `cuda-bindings` package.

    The comparison is cyclic, so that the count of rounds may pass 2^32.
    """

    def __init__(self, device: torch.device) -> None:
        # Late: only an engine that drafts asynchronously on CUDA needs the package.
        driver: Any = import_module("cuda.bindings.driver")
        self._driver = driver
        self._flag = torch.zeros(1, dtype=torch.int32, device=device)
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._address = driver.CUdeviceptr(self._flag.data_ptr())
        self.hold(0)
        self.open(0)
        torch.cuda.synchronize(device)  # the flag is 0 from here on, and both calls work here

    def hold(self, n: int) -> None:
        waits = self._driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        stream = self._handle(torch.cuda.current_stream(self._flag.device))
        self._call(self._driver.cuStreamWaitValue32, stream, n, waits)

    def open(self, n: int) -> None:
        writes = self._driver.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT
        self._call(self._driver.cuStreamWriteValue32, self._handle(self._side), n, writes)

    def work(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._side)

    def _handle(self, stream: "torch.cuda.Stream") -> Any:
        return self._driver.CUstream(stream.cuda_stream)

    def _call(self, function: Any, stream: Any, n: int, flags: Any) -> None:
        (error,) = function(stream, self._address, n & 0xFFFFFFFF, flags)
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"CUDA error: {function.__name__}: {error}")


class ProxyThread:
    """One thread that does one job at a time, and then opens the gate, whatever the job did.

    `rest` is called after that, when nobody waits any more but the next round.
    """

    def __init__(self, gate: Gate, rest: Callable[[], None]) -> None:
        self._gate = gate
        self._rest = rest
        self._jobs: SimpleQueue[tuple[Callable[[], None], int] | None] = SimpleQueue()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._thread = threading.Thread(target=self._loop, name="dspark-proxy", daemon=True)
        self._thread.start()

    def post(self, job: Callable[[], None], n: int) -> None:
        """Round `n`'s second half; done here and now where the thread is gone."""
        self._is_idle.clear()
        if self._thread.is_alive():
            self._jobs.put((job, n))
        else:
            self._do(job, n)

    def join(self) -> None:
        """Wait until the last job is done."""
        if not self._is_idle.wait(_JOIN_S):
            raise ProxyLost(f"the proxy thread has not ended its round for {_JOIN_S:g} s")

    def close(self) -> None:
        """End the thread behind the job it is at."""
        self._jobs.put(None)
        self._thread.join(_JOIN_S)

    def _loop(self) -> None:
        while (posted := self._jobs.get()) is not None:
            self._do(*posted)

    def _do(self, job: Callable[[], None], n: int) -> None:
        try:
            self._safely(job, "the second half of a round broke off")
            self._safely(lambda: self._gate.open(n), "a round's gate does not open")
            self._safely(self._rest, "the report between rounds broke off")
        finally:
            self._is_idle.set()

    @staticmethod
    def _safely(work: Callable[[], None], what: str) -> None:
        try:
            work()
        except BaseException:
            log.exception("%s", what)


class ProxySpeaker(Speaker):
    """Rank 0's half of a proposal, its exchange in a thread of its own."""

    def __init__(
        self,
        rounds: Rounds,
        word: Word,
        on_fail: OnFail,
        interval: Interval,
        *,
        rows: StagedRows,
        gate: Gate,
    ) -> None:
        super().__init__(rounds, word, on_fail, interval)
        self._rows = rows
        self._gate = gate
        self._thread = ProxyThread(gate, interval.look)
        self._n_posted = 0

    def ask(self, batch: Batch) -> Tensor:
        """The tensor; what is launched behind this call finds it filled."""
        requests = batch.requests
        try:
            self._thread.join()
            begun = self.rounds.begin(requests)
            assert isinstance(batch.tensors, StepTensors)
            self._rows.launch(begun.parts, batch.tensors, stage=begun.silence is None)
        except Exception as error:
            if isinstance(error, ProxyLost):
                self.fault = error  # two rounds at once would be worse than an end that all see
            return self.packed(self.faulted(requests, error))
        self._n_posted += 1
        n = self._n_posted
        self._thread.post(lambda: self._end(begun), n)
        if n == 1:
            self._thread.join()
        self._gate.hold(n)
        return self.word.tensor

    def rest(self) -> None:
        """The proxy's thread looks at clock and counters when its round is over."""

    def close(self) -> None:
        self._thread.close()
        super().close()

    def _end(self, begun: Begun) -> None:
        is_filled = False
        try:
            answer = self.guarded(begun.requests, lambda: self._answered(begun))
            with self._gate.work():
                self.packed(answer)
            is_filled = True
        finally:
            if not is_filled:  # the gate is about to open on the drafts of the round before
                with self._gate.work():
                    self.word.packed(Outcome.OWN_FAULT, (), ())

    def _answered(self, begun: Begun) -> Answer:
        return self.rounds.end(begun, self._rows.landed())


def gate_for(device: torch.device) -> Gate:
    return StreamGate(device) if device.type == "cuda" else ThreadGate()
