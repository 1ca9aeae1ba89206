"""The speculators, in an engine that is not there: a vLLM of a few names (§4, §10, §12).

What only the real engine can show is in `tests/vllm`.
"""

import importlib
import logging
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dsparkctl.client.plugin import POSITIONAL
from dsparkctl.client.terms import TermsError

PREFIX = "VLLM_DSPARK_REMOTE_"
N, SLOTS = 5, 4


class Group:
    """vLLM's tensor-parallel group with one rank in it."""

    rank_in_group = 0

    def broadcast(self, input_: Tensor, src: int = 0) -> Tensor:
        return input_


class Stock:
    """vLLM's DSparkSpeculator as far as ours leans on it; notes what its model was asked for."""

    says_confidence = True

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.draft_token_confidence_probs = torch.full((SLOTS, N), 0.25)
        self.done: list[str] = []

    def propose(self, input_batch: Any, *given: Any, **named: Any) -> Tensor:
        self.done.append("context" if named.get("is_profile") else "graph")
        self._generate_draft()
        if self.says_confidence:
            self.draft_token_confidence_probs[:] = 0.75
        return torch.full((input_batch.num_reqs, N), 9)

    def _generate_draft(self) -> None:
        self.done.append("draft")


def config(**changed: Any) -> Any:
    """The parts of a VllmConfig that are read, as V4.1 has them but for the sizes."""
    draft = {
        "sliding_window": 8,
        "dspark_block_size": N,
        "dspark_target_layer_ids": [1, 2, 3],
        "dspark_noise_token_id": 99,
    }
    spec = {
        "num_speculative_tokens": N,
        "draft_sample_method": "greedy",
        "dspark_draft_topk": None,
        "enable_adaptive_verification": False,
        "num_speculative_tokens_per_batch_size": [(1, 2, 5), (3, 4, 4)],
    }
    engine: dict[str, Any] = {"dtype": torch.bfloat16, "watermark_config": None}
    for name, value in changed.items():
        next(part for part in (draft, spec, engine) if name in part)[name] = value
    return SimpleNamespace(
        model_config=SimpleNamespace(
            dtype=engine["dtype"],
            max_model_len=1000,
            get_hidden_size=lambda: 4,
            get_vocab_size=lambda: 100,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=SLOTS),
        parallel_config=SimpleNamespace(tensor_parallel_size=2, prefill_context_parallel_size=1),
        speculative_config=SimpleNamespace(
            draft_model_config=SimpleNamespace(hf_config=SimpleNamespace(**draft)), **spec
        ),
        watermark_config=engine["watermark_config"],
    )


@pytest.fixture
def speculator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, imported where a vLLM is; nobody listens at the endpoint."""
    gpu = "vllm.v1.worker.gpu.spec_decode"
    names: dict[str, dict[str, Any]] = {
        "vllm.distributed.parallel_state": {"get_tp_group": Group},
        f"{gpu}.eagle.eagle3_utils": {
            "get_eagle3_aux_layers_from_config": lambda spec: tuple(
                spec.draft_model_config.hf_config.dspark_target_layer_ids
            )
        },
        f"{gpu}.speculator": {"BaseSpeculator": type("BaseSpeculator", (), {})},
        f"{gpu}.utils": {"get_parallel_drafting_token_id": lambda hf: hf.dspark_noise_token_id},
    }
    for name, members in names.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        parents = name.split(".")[:-1]
        for i in range(len(parents)):
            parent = ".".join(parents[: i + 1])
            monkeypatch.setitem(sys.modules, parent, sys.modules.get(parent, ModuleType(parent)))
    monkeypatch.setenv(f"{PREFIX}ENDPOINT", "tcp://127.0.0.1:9")
    monkeypatch.setenv(f"{PREFIX}IDENTITY", "ab" * 32)
    ours = "dsparkctl.client.speculator"
    monkeypatch.delitem(sys.modules, ours, raising=False)
    yield importlib.import_module(ours)
    sys.modules.pop(ours, None)


def called_by_name() -> dict[str, Any]:
    """As the runner calls it in a dummy run."""
    return dict(zip(POSITIONAL, (one_request(), *arguments()), strict=True))


def one_request() -> Any:
    return SimpleNamespace(
        num_reqs=1,
        req_ids=["a"],
        idx_mapping_np=[2],
        query_start_loc_np=[0],
        num_scheduled_tokens=[3],
        num_draft_tokens_per_req=None,
        num_computed_tokens_np=[0],
        is_prefilling_np=[True],
        positions=[0, 1, 2],
    )


def arguments() -> tuple[Any, ...]:
    """What stands between the batch and the keywords, for one request of three rows."""
    return (
        None,
        None,
        None,
        [torch.ones(4, 4, dtype=torch.bfloat16)] * 3,
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([0], dtype=torch.int32),
        torch.full((SLOTS, 1), 7),
        torch.zeros((1, SLOTS), dtype=torch.int32),
        None,
        None,
    )


def test_capacity_gives_the_runner_what_it_reads_and_is_no_draft_model(speculator: Any) -> None:
    chosen = speculator.remote_class(Stock)
    assert not issubclass(chosen, Stock)
    ours = chosen(config(), torch.device("cpu"))
    assert ours.supports_mm_inputs is ours.enable_adaptive_verification is False
    assert ours.draft_logits is ours.pcp_manager is None
    assert ours.draft_token_confidence_probs.shape == (SLOTS, N)
    ours.init_cudagraph_manager(None)
    ours.capture(capture_phase="a fork's own")


@pytest.mark.parametrize("named", [{"dummy_run": True}, {"dummy_run": True, "is_profile": True}])
def test_a_dummy_run_sends_nothing_and_counts_no_round(
    speculator: Any, named: dict[str, bool]
) -> None:
    ours = speculator.remote_class(Stock)(config(), torch.device("cpu"))
    drafts = ours.propose(**called_by_name(), dp_sync=None, **named)
    assert drafts.tolist() == [[0] * N]
    assert drafts.dtype == torch.int64
    assert ours.snapshot()["step_id"] == 0


@pytest.mark.parametrize(
    "named",
    [
        {"dp_sync": None, "mm_inputs": None},
        {"dp_sync_state": None, "mm_inputs": None, "num_speculative_tokens": N},
        {"dp_sync_state": None, "mm_inputs": None, "num_speculative_tokens": 0},
    ],
)
def test_without_a_worker_drafts_and_confidences_are_writable_zeros(
    speculator: Any, named: dict[str, Any]
) -> None:
    """§10, as 0.31 and as 0.32 call it."""
    ours = speculator.remote_class(Stock)(config(), torch.device("cpu"))
    ours.draft_token_confidence_probs[:] = 0.9
    drafts = ours.propose(one_request(), *arguments(), **named)
    assert drafts.tolist() == [[0] * N]
    with torch.inference_mode():  # as the runner does
        drafts[:, 2:] = -1
    assert ours.draft_token_confidence_probs[0].tolist() == [0.0] * N
    snapshot = ours.snapshot()
    assert snapshot["fallback_no_connection"] == snapshot["step_id"] == 1


def test_what_ours_says_goes_where_vllm_logs(
    speculator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    ours = logging.getLogger("dsparkctl")
    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [Handler()])
    monkeypatch.setattr(logging.getLogger("vllm"), "level", logging.INFO)
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(ours, name, getattr(ours, name))
    speculator.remote_class(Stock)(config(), torch.device("cpu"))
    assert any("remote drafting by tcp://127.0.0.1:9" in line for line in said)


def test_resilience_drafts_locally_where_the_worker_is_not_there(
    speculator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}POLICY", "resilience")
    chosen = speculator.remote_class(Stock)
    assert issubclass(chosen, Stock)
    ours = chosen(config(), torch.device("cpu"))
    drafts = ours.propose(one_request(), *arguments(), num_speculative_tokens=N)
    assert drafts.tolist() == [[9] * N]
    assert ours.draft_token_confidence_probs[0].tolist() == [0.75] * N
    assert ours.done == ["graph", "draft"]


def test_a_local_drafter_without_confidences_leaves_none_of_the_round_before(
    speculator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§10: 0.0, never the worker's last ones."""
    monkeypatch.setenv(f"{PREFIX}POLICY", "resilience")
    monkeypatch.setattr(Stock, "says_confidence", False)
    ours = speculator.remote_class(Stock)(config(), torch.device("cpu"))
    ours.draft_token_confidence_probs[:] = 0.9
    ours.propose(one_request(), *arguments(), num_speculative_tokens=N)
    assert ours.draft_token_confidence_probs[0].tolist() == [0.0] * N


def test_the_local_context_is_kept_without_drafting_when_no_drafts_are_wanted(
    speculator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§10: its context KV is updated every round; around CUDA graphs, which draft as well."""
    monkeypatch.setenv(f"{PREFIX}POLICY", "resilience")
    ours = speculator.remote_class(Stock)(config(), torch.device("cpu"))
    drafts = ours.propose(one_request(), *arguments(), num_speculative_tokens=0)
    assert drafts.tolist() == [[0] * N]
    assert ours.done == ["context"]
    ours.propose(one_request(), *arguments(), num_speculative_tokens=N)
    assert ours.done == ["context", "graph", "draft"]


def test_a_dummy_run_is_the_local_drafters_alone(
    speculator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}POLICY", "shadow")
    ours = speculator.remote_class(Stock)(config(), torch.device("cpu"))
    assert ours.propose(**called_by_name(), dummy_run=True).tolist() == [[9] * N]
    assert ours.snapshot()["step_id"] == 0


def test_a_stock_class_that_cannot_keep_context_alone_is_refused(
    speculator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}POLICY", "resilience")
    with pytest.raises(AttributeError, match="_generate_draft"):
        speculator.remote_class(type("Other", (), {}))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"draft_sample_method": "probabilistic"}, "greedy"),
        ({"dspark_draft_topk": 8}, "dspark_draft_topk"),
        ({"watermark_config": object()}, "watermarking"),
        ({"dtype": torch.float16}, "bfloat16"),
        ({"num_speculative_tokens": 4}, "num_speculative_tokens is 4"),
        ({"dspark_block_size": None}, "block"),
        ({"sliding_window": None}, "sliding_window"),
        ({"enable_adaptive_verification": True}, "enable_adaptive_verification"),
    ],
)
def test_an_engine_that_cannot_draft_remotely_says_why_in_one_line(
    speculator: Any, changed: dict[str, Any], reason: str
) -> None:
    """§12."""
    with pytest.raises(TermsError, match=reason) as caught:
        speculator.remote_class(Stock)(config(**changed), torch.device("cpu"))
    assert "\n" not in str(caught.value)
