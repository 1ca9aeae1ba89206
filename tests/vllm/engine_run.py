"""One life of the real vLLM engine: prompts in, tokens and what was seen on the way out.

Decides how an engine is started and stepped, and when the worker is killed and comes back. Refuses
to judge what came out: that is `check_engine`. Runs in the rig's own environment.

    python -m tests.vllm.engine_run PLAN_JSON OUT_JSON DATA_PORT ADMIN_PORT
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

from dsparkctl.contract.codes import Op
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.messages import frame
from dsparkctl.net.ask import ask
from dsparkctl.net.dial import dial
from dsparkctl.net.transport import Deadline
from tests.vllm import answering_worker, tiny


class Crowd(NamedTuple):
    """Prompts that are there at once."""

    prompts: list[list[int]]
    max_tokens: int
    outage: bool
    """The worker is killed when a quarter of the tokens are there, and comes back 4 steps later."""


class Plan(NamedTuple):
    """What one life of an engine is made of."""

    target: str
    draft: str
    texts: str
    """JSON file of the texts that the worker knows."""
    tp: int
    speculate: bool
    kv_blocks: int
    max_slots: int
    policy: str
    crowds: list[Crowd]
    schedules_ahead: bool = False
    """vLLM's async scheduling: the host learns one step late how many drafts were rejected."""

    @classmethod
    def read(cls, path: Path) -> Self:
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**found, "crowds": [Crowd(*crowd) for crowd in found["crowds"]]})

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self._asdict()), encoding="utf-8")


class WorkerProcess:
    """The answering worker on two fixed ports, killed and started at will."""

    def __init__(self, plan: Plan, data: int, admin: int) -> None:
        worker = [sys.executable, "-m", "tests.vllm.answering_worker"]
        self._command = [*worker, plan.target, plan.texts, str(data), str(admin)]
        self._admin = Endpoint("tcp", "127.0.0.1", admin)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        pipe = subprocess.PIPE  # the worker ends when we do, and our end of it is closed
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the worker did not start"

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stats(self) -> dict[str, Any]:
        deadline = Deadline(5.0, time.monotonic)
        link = dial(self._admin, deadline)
        try:
            found: dict[str, Any] = json.loads(
                bytes(ask(link, [frame(Op.STATS, 1, 1)], deadline).body)
            )
        finally:
            link.close()
        return found


def run(plan: Plan, ports: tuple[int, int]) -> dict[str, Any]:
    """The engine's life; keys are what `check_engine` reads."""
    worker = WorkerProcess(plan, *ports)
    if plan.speculate:
        os.environ["VLLM_DSPARK_REMOTE_ENDPOINT"] = f"tcp://127.0.0.1:{ports[0]}"
        os.environ["VLLM_DSPARK_REMOTE_IDENTITY"] = answering_worker.IDENTITY.hex()
        os.environ["VLLM_DSPARK_REMOTE_TIMEOUT_MS"] = "5000"
        os.environ["VLLM_DSPARK_REMOTE_POLICY"] = plan.policy
        worker.start()
    try:
        return _run(plan, worker)
    finally:
        if plan.speculate:
            worker.kill()


def _run(plan: Plan, worker: WorkerProcess) -> dict[str, Any]:
    from vllm import LLM

    if plan.schedules_ahead:
        _let_it_schedule_ahead()
    named: dict[str, Any] = {}
    if plan.speculate:
        named["speculative_config"] = {
            "method": "dspark",
            "model": plan.draft,
            "num_speculative_tokens": tiny.N,
        }
        named["worker_extension_cls"] = "tests.vllm.probe.Probe"
    llm = LLM(
        model=plan.target,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=tiny.MAX_LEN,
        max_num_seqs=plan.max_slots,
        max_num_batched_tokens=96,
        tensor_parallel_size=plan.tp,
        block_size=32,
        num_gpu_blocks_override=plan.kv_blocks,
        kv_cache_memory_bytes=64 << 20,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        disable_log_stats=False,
        max_logprobs=2,
        **named,
    )
    if plan.speculate:
        llm.collective_rpc("probe_start")
    found: dict[str, Any] = {"crowds": []}
    for crowd in plan.crowds:
        found["crowds"].append(_serve(llm, plan, crowd, worker))
    found["metrics"] = {
        metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")
    }
    if plan.speculate:
        found["class"] = llm.collective_rpc("probe_class")
        found["remote"] = llm.collective_rpc("probe_remote")
        llm.collective_rpc("probe_close")
    llm.llm_engine.engine_core.shutdown()
    return found


def _let_it_schedule_ahead() -> None:
    """vLLM's CPU platform always turns async scheduling off; nothing else there forbids it."""
    from vllm.platforms import current_platform

    platform = type(current_platform)
    settle = platform.check_and_update_config

    def settle_the_rest(vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        settle(vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    platform.check_and_update_config = staticmethod(settle_the_rest)


def _serve(llm: Any, plan: Plan, crowd: Crowd, worker: WorkerProcess) -> dict[str, Any]:
    """All prompts of a crowd, step by step."""
    from vllm import SamplingParams

    params = SamplingParams(
        temperature=0,
        max_tokens=crowd.max_tokens,
        ignore_eos=True,
        detokenize=False,
        logprobs=None if plan.speculate else 2,
    )
    engine = llm.llm_engine
    for i, prompt in enumerate(crowd.prompts):
        engine.add_request(str(i), {"prompt_token_ids": prompt}, params)
    quarter = len(crowd.prompts) * crowd.max_tokens // 4
    done: dict[int, Any] = {}
    n_tokens: dict[str, int] = {}
    stats = []
    back_in = 4 if crowd.outage and plan.speculate else -1
    while engine.has_unfinished_requests():
        for output in engine.step():
            n_tokens[output.request_id] = len(output.outputs[0].token_ids)
            if output.finished:
                done[int(output.request_id)] = output
        if back_in == 4 and sum(n_tokens.values()) >= quarter:
            stats.append(worker.stats())
            worker.kill()
            back_in = 3
        elif 0 < back_in < 4:
            back_in -= 1
        elif back_in == 0:
            time.sleep(1.2)  # the reconnect backoff, before it would double
            worker.start()
            back_in = -1
    calls = []
    if plan.speculate:
        # In this order: the call waits for a round that is still under way in the workers.
        calls = llm.collective_rpc("probe_calls")
        stats.append(worker.stats())
    return {
        "texts": [[*crowd.prompts[i], *done[i].outputs[0].token_ids] for i in range(len(done))],
        "margins": [_margin(done[i]) for i in range(len(done))],
        "worker": stats,
        "calls": calls,
    }


def _margin(output: Any) -> float | None:
    """The smallest distance between the two best tokens on the way, in nats."""
    if output.outputs[0].logprobs is None:
        return None
    gaps: list[float] = []
    for step in output.outputs[0].logprobs:
        best, second = sorted((entry.logprob for entry in step.values()), reverse=True)[:2]
        gaps.append(best - second)
    return min(gaps)


if __name__ == "__main__":
    _out = run(Plan.read(Path(sys.argv[1])), (int(sys.argv[3]), int(sys.argv[4])))
    Path(sys.argv[2]).write_text(json.dumps(_out), encoding="utf-8")
