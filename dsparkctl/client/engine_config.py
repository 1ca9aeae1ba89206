"""vLLM's configuration under the contract's names (§2, §6.2, §6.3).

Decides where each value stands in a VllmConfig of 0.31 to 0.33, and which engines a batch cannot be
read from. Refuses to judge the values themselves (`terms.refusal`), and imports no vllm.
"""

from collections.abc import Sequence
from typing import Any

from dsparkctl.client.settings import Settings
from dsparkctl.client.terms import EngineTerms, TermsError
from dsparkctl.state.n_out import Caps, caps


def terms_of(vllm_config: Any, *, taps: Sequence[int], noise: int) -> EngineTerms:
    """The engine's terms; `taps` (layers whose input is tapped) and `noise` come from vLLM's own
    rules for a drafter's configuration.

    TermsError, in one line, where a batch's spans or taps are not what they seem, or where the
    drafter has no window.
    """
    spec, model = vllm_config.speculative_config, vllm_config.model_config
    parallel, draft = vllm_config.parallel_config, spec.draft_model_config.hf_config
    window: Any = getattr(draft, "sliding_window", None)
    if reason := _refusal(spec, parallel, window):
        raise TermsError(f"remote drafting cannot start: {reason}")
    block_size = getattr(draft, "dspark_block_size", None) or getattr(draft, "block_size", None)
    topk = getattr(spec, "dspark_draft_topk", None) or getattr(draft, "dspark_draft_topk", None)
    return EngineTerms(
        num_spec=spec.num_speculative_tokens,
        window=window,
        hidden=model.get_hidden_size(),
        tap_layer_ids=tuple(taps),
        noise_token_id=noise,
        vocab_size=model.get_vocab_size(),
        max_model_len=model.max_model_len,
        max_slots=vllm_config.scheduler_config.max_num_seqs,
        tp_size=parallel.tensor_parallel_size,
        dtype=str(model.dtype),
        draft_sample_method=spec.draft_sample_method,
        draft_topk=topk,
        watermarking=getattr(vllm_config, "watermark_config", None) is not None,
        block_size=block_size or 0,
    )


def caps_of(vllm_config: Any, settings: Settings) -> Caps:
    """What n_out may be (§6.3), by the engine's dynamic speculation schedule."""
    spec = vllm_config.speculative_config
    schedule = spec.num_speculative_tokens_per_batch_size
    return caps(
        None if schedule is None else [list(item) for item in schedule],
        settings.depth_policy,
        settings.has_depth_file,
        settings.policy,
        settings.n_out_enabled,
        spec.num_speculative_tokens,
    )


def _refusal(spec: Any, parallel: Any, window: Any) -> str:
    if window is None:
        return "the drafter's config.json has no sliding_window (§2)"
    if getattr(spec, "enable_adaptive_verification", False):
        return "enable_adaptive_verification cuts a batch's spans on the device: turn it off"
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        return "prefill context parallel splits the taps among ranks: turn it off"
    return ""
