"""What each rank's `propose` was asked and what it answered, taken down inside vLLM's workers.

Decides what is kept: host facts, the device's counts, true positions and the answer, as plain
lists; no tensor. vLLM mixes the class into its worker (`worker_extension_cls`) and `collective_rpc`
calls its methods by name on every rank.
"""

from typing import Any


class Probe:
    """Mixed into a worker, which has a `model_runner`."""

    model_runner: Any

    def probe_start(self) -> None:
        """From now on every real round is noted."""
        speculator = self.model_runner.speculator
        self._probe_calls: list[dict[str, Any]] = []
        propose, calls = speculator.propose, self._probe_calls

        def noted(input_batch: Any, *given: Any, **named: Any) -> Any:
            facts = _facts(input_batch, *given, **named)
            drafts = propose(input_batch, *given, **named)
            facts["drafts"] = drafts.tolist()
            n = input_batch.num_reqs
            facts["confidence"] = speculator.draft_token_confidence_probs[:n].tolist()
            calls.append(facts)
            return drafts

        speculator.propose = noted

    def probe_calls(self) -> list[dict[str, Any]]:
        """The rounds noted since the last call."""
        calls = list(self._probe_calls)
        self._probe_calls.clear()
        return calls

    def probe_remote(self) -> dict[str, Any] | None:
        """Rank 0: the client's counters. Other ranks: None."""
        snapshot: dict[str, Any] | None = self.model_runner.speculator.snapshot()
        return snapshot

    def probe_class(self) -> str:
        return type(self.model_runner.speculator).__name__

    def probe_close(self) -> None:
        self.model_runner.speculator.close()


def _facts(
    batch: Any,
    attn_metadata: Any,
    slot_mappings: Any,
    last_hidden_states: Any,
    aux_hidden_states: Any,
    num_sampled: Any,
    num_rejected: Any,
    last_sampled: Any,
    next_prefill_tokens: Any,
    *rest: Any,
    num_speculative_tokens: int | None = None,
    **named: Any,
) -> dict[str, Any]:
    n, starts = batch.num_reqs, batch.query_start_loc_np
    drafts = batch.num_draft_tokens_per_req
    return {
        "req_ids": list(batch.req_ids),
        "slots": batch.idx_mapping_np[:n].tolist(),
        "rows": starts[:n].tolist(),
        "n_rows": batch.num_scheduled_tokens[:n].tolist(),
        "first_pos": [int(batch.positions[start]) for start in starts[:n]],
        "host_first_pos": batch.num_computed_tokens_np[:n].tolist(),
        "is_prefilling": batch.is_prefilling_np[:n].tolist(),
        "n_drafts": None if drafts is None else drafts[:n].tolist(),
        "n_tokens": len(aux_hidden_states[0]),
        "num_sampled": num_sampled.tolist(),
        "num_rejected": num_rejected.tolist(),
        "last_sampled": last_sampled.reshape(-1).tolist(),
        "next_prefill_tokens": next_prefill_tokens[0].tolist(),
        "k": num_speculative_tokens,
    }
