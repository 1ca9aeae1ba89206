"""The speculators that vLLM runs instead of its own (§4, §10): capacity, or beside the stock one.

Decides how the runner's arguments become a `Batch`, and what the runner finds on a speculator.
Refuses to know rounds, connections and policies: that is `proposer` and everything below it. Read
against vLLM 0.31, 0.32 and 0.33; only `plugin` imports this module, inside an engine.

Capacity derives from BaseSpeculator, which makes the runner load no draft weights and allocate no
draft KV. Resilience and shadow derive from the stock class, whose drafter stays whole.
"""

import logging
import os
from typing import Any, Final

import torch
from torch import Tensor
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator
from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id

from dsparkctl.client.batch import Requests
from dsparkctl.client.broadcast import Drafts, OverEngine
from dsparkctl.client.engine_config import caps_of, terms_of
from dsparkctl.client.environment import Policy
from dsparkctl.client.proposer import LocalDrafter, Proposer
from dsparkctl.client.rows import Batch
from dsparkctl.client.settings import Settings
from dsparkctl.client.staging import StepTensors
from dsparkctl.client.start import join_rank, start_rank0
from dsparkctl.client.terms import hello

QUERY_PASS: Final = "_generate_draft"
"""The stock drafter's method that drafts once its context is up to date."""


class Remote:
    """What both kinds have in common: the proposer, and the way from the runner to it."""

    is_dspark_remote = True

    _proposer: Proposer
    _num_spec: int
    _device: torch.device
    draft_token_confidence_probs: Tensor
    """[max_num_seqs, N] float32, by batch index; what the engine's depth policy reads."""

    def start(self, vllm_config: Any, device: torch.device, local: LocalDrafter | None) -> None:
        """SettingsError or TermsError, in one line, where remote drafting cannot start (§12)."""
        _log_where_vllm_does()
        settings = _settings()
        spec = vllm_config.speculative_config
        terms = terms_of(
            vllm_config,
            taps=get_eagle3_aux_layers_from_config(spec) or (),
            noise=get_parallel_drafting_token_id(spec.draft_model_config.hf_config),
        )
        hello(terms, settings.identity, settings.markov_identity)  # refuses before anything else
        group = get_tp_group()
        broadcast = OverEngine(group)
        self._num_spec, self._device = terms.num_spec, device
        self.draft_token_confidence_probs = torch.zeros(
            (terms.max_slots, terms.num_spec), dtype=torch.float32, device=device
        )
        if group.rank_in_group == 0:
            self._proposer = start_rank0(
                settings,
                terms,
                device=device,
                broadcast=broadcast,
                caps=caps_of(vllm_config, settings),
                local=local,
            )
        else:
            self._proposer = join_rank(
                settings, terms, device=device, broadcast=broadcast, local=local
            )

    def drafts(
        self,
        input_batch: Any,
        aux_hidden_states: Any,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Tensor,
        num_speculative_tokens: int | None,
    ) -> Tensor:
        """[num_reqs, N] int64, the caller's own."""
        wants_drafts = num_speculative_tokens != 0  # None: 0.31, whose k is fixed
        speaker = self._proposer.speaker
        ledger = None if speaker is None else speaker.rounds.ledger
        tensors = StepTensors(
            aux_hidden_states,
            num_sampled,
            num_rejected,
            last_sampled,
            next_prefill_tokens,
            wants_drafts,
        )
        batch = Batch(Requests(input_batch, ledger), tensors)
        proposal = self._proposer.propose(batch, wants_drafts=wants_drafts)
        self.draft_token_confidence_probs[: len(batch.requests)] = proposal.confidence
        return proposal.draft_ids

    def no_drafts(self, input_batch: Any) -> Tensor:
        """For a run without requests: memory profiling, warm-up, an idle rank."""
        shape = (input_batch.num_reqs, self._num_spec)
        return torch.zeros(shape, dtype=torch.int64, device=self._device)

    def snapshot(self) -> dict[str, Any] | None:
        """Rank 0's counters; None on the other ranks."""
        speaker = self._proposer.speaker
        return None if speaker is None else speaker.interval.snapshot()

    def close(self) -> None:
        self._proposer.close()


class CapacitySpeculator(Remote, BaseSpeculator):  # type: ignore[misc]  # vllm is not there to check
    """No drafter on the Spark (§10): what the runner would load, allocate and capture is not."""

    supports_mm_inputs = False
    enable_adaptive_verification = False
    draft_logits = None
    """Greedy drafts: the rejection sampler compares tokens."""

    pcp_manager: Any = None
    """The runner sets it."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.start(vllm_config, device, None)

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Nothing is captured."""

    def capture(self, **_: Any) -> None:
        """Nothing is captured."""

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Tensor,
        temperature: Any,
        seeds: Any,
        *,
        dummy_run: bool = False,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
        **_: Any,
    ) -> Tensor:
        """See BaseSpeculator; a dummy run sends nothing."""
        if dummy_run or is_profile:
            return self.no_drafts(input_batch)
        return self.drafts(
            input_batch,
            aux_hidden_states,
            num_sampled,
            num_rejected,
            last_sampled,
            next_prefill_tokens,
            num_speculative_tokens,
        )


class KeptDrafter(Remote):
    """Mixed in front of the stock class (`remote_class`): its drafter stays, ours comes first."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)  # type: ignore[call-arg]  # the stock class's
        self._call: dict[str, Any] = {}
        self._is_context_only = False
        self.start(vllm_config, device, self.Local(self))

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Tensor,
        temperature: Any,
        seeds: Any,
        **named: Any,
    ) -> Tensor:
        """See BaseSpeculator; a dummy run is the stock drafter's alone."""
        self._call = {
            "input_batch": input_batch,
            "attn_metadata": attn_metadata,
            "slot_mappings": slot_mappings,
            "last_hidden_states": last_hidden_states,
            "aux_hidden_states": aux_hidden_states,
            "num_sampled": num_sampled,
            "num_rejected": num_rejected,
            "last_sampled": last_sampled,
            "next_prefill_tokens": next_prefill_tokens,
            "temperature": temperature,
            "seeds": seeds,
            **named,
        }
        if named.get("dummy_run") or named.get("is_profile"):
            return self.local_drafts()
        return self.drafts(
            input_batch,
            aux_hidden_states,
            num_sampled,
            num_rejected,
            last_sampled,
            next_prefill_tokens,
            named.get("num_speculative_tokens"),
        )

    def local_drafts(self, **named: Any) -> Tensor:
        """The stock class's propose, with this round's arguments."""
        found: Tensor = super().propose(**{**self._call, **named})  # type: ignore[misc]
        return found

    def _generate_draft(self, *given: Any, **named: Any) -> None:
        if not self._is_context_only:
            super()._generate_draft(*given, **named)  # type: ignore[misc]

    class Local:
        """The stock drafter as the proposer sees it."""

        def __init__(self, speculator: "KeptDrafter") -> None:
            self._speculator = speculator

        def propose(self) -> Drafts:
            # Where the stock drafter says no confidence, the worker's last ones must not stand.
            confidence = self._speculator.draft_token_confidence_probs.zero_()
            ids = self._speculator.local_drafts().clone()
            return Drafts(ids, confidence[: len(ids)].clone())

        def keep_context(self) -> None:
            # A profile run goes around CUDA graphs, which draft and store the context in one.
            self._speculator._is_context_only = True
            try:
                self._speculator.local_drafts(is_profile=True)
            finally:
                self._speculator._is_context_only = False


def remote_class(stock: type) -> type:
    """The class that stands in for `stock`, vLLM's DSparkSpeculator, under the policy that is set.

    SettingsError for settings that cannot be used; AttributeError where the stock drafter cannot be
    told to keep its context without drafting.
    """
    if _settings().policy is Policy.CAPACITY:
        return CapacitySpeculator
    getattr(stock, QUERY_PASS)
    return type("KeptDSparkSpeculator", (KeptDrafter, stock), {})


def _settings() -> Settings:
    settings = Settings.from_environment(os.environ)
    assert settings is not None, "the plugin looks for the endpoint first"
    return settings


def _log_where_vllm_does() -> None:
    """vLLM sets up its own logger alone: what ours says below a warning would be lost."""
    engine, ours = logging.getLogger("vllm"), logging.getLogger("dsparkctl")
    if engine.handlers and not ours.handlers:
        ours.handlers, ours.propagate = list(engine.handlers), False
        ours.setLevel(engine.level)
