"""What the engine's own configuration says, and the HELLO that follows from it (§6.2, §12).

Decides whether an engine like this can be drafted for remotely. Refuses to know where its
configuration was read; the identities come from the settings (§6.7).
"""

from dataclasses import dataclass

from pydantic import ValidationError

from dsparkctl.config import defaults
from dsparkctl.config.hello import MAX_TAPS, HelloParams
from dsparkctl.contract.records import Hello

_BF16_BYTES = 2


class TermsError(Exception):
    """An engine that remote drafting cannot start for; the message is one line."""


@dataclass(frozen=True, slots=True)
class EngineTerms:
    """The engine's values under the contract's names (§2, §6.2)."""

    num_spec: int
    """N: drafts a request and round."""
    window: int
    """W: rows kept and sent per request."""
    hidden: int
    tap_layer_ids: tuple[int, ...]
    """Decoder layers whose input is tapped, in the order of the rows' parts."""
    noise_token_id: int
    vocab_size: int
    max_model_len: int
    max_slots: int
    """`max_num_seqs`."""
    tp_size: int
    dtype: str
    """Of the taps, `bfloat16` or `torch.bfloat16`."""
    draft_sample_method: str
    draft_topk: int | None
    """None and 0: not set."""
    watermarking: bool
    block_size: int
    """The drafter's own `dspark_block_size`."""

    @property
    def row_bytes(self) -> int:
        """A row is every tap's hidden vector in bf16, side by side (§3)."""
        return len(self.tap_layer_ids) * self.hidden * _BF16_BYTES


def refusal(terms: EngineTerms) -> str:
    """Why remote drafting cannot start, every reason on one line; empty when it can (§12)."""
    reasons = []
    if terms.draft_sample_method != "greedy":
        reasons.append(
            f"draft_sample_method is {terms.draft_sample_method}: drafts must be greedy (§12)"
        )
    if terms.draft_topk:
        reasons.append(f"dspark_draft_topk is {terms.draft_topk}: unset it (§12)")
    if terms.watermarking:
        reasons.append("watermarking is on: drafts are not sampled with it, turn it off (§12)")
    if terms.dtype.removeprefix("torch.") != "bfloat16":
        reasons.append(f"taps are {terms.dtype}: rows are bfloat16 (§3)")
    if terms.num_spec != terms.block_size:
        reasons.append(
            f"num_speculative_tokens is {terms.num_spec}: the drafter's block has "
            f"{terms.block_size} (§2)"
        )
    if not 1 <= len(terms.tap_layer_ids) <= MAX_TAPS:
        reasons.append(f"{len(terms.tap_layer_ids)} taps: a HELLO names 1 to {MAX_TAPS} (§6.2)")
    if not 1 <= terms.max_slots <= defaults.SLOTS_LIMIT:
        reasons.append(
            f"max_num_seqs is {terms.max_slots}: expected 1 to {defaults.SLOTS_LIMIT} (§6.4)"
        )
    if terms.num_spec >= terms.window:
        # §4.3: every row of a decode step must be a candidate, rejected ones included.
        reasons.append(f"the window has {terms.window} rows: a decode step {terms.num_spec + 1}")
    return "; ".join(reasons)


def hello(terms: EngineTerms, drafter_identity: bytes, markov_identity: bytes) -> Hello:
    """What rank 0 says first; TermsError when `refusal` has a reason, or a value does not fit.

    Identities are 32 bytes each; zeros as the second: no Markov cache (§6.2).
    """
    if reason := refusal(terms):
        raise TermsError(f"remote drafting cannot start: {reason}")
    try:
        return HelloParams.from_checkpoint(
            terms,
            drafter_identity=drafter_identity,
            markov_identity=markov_identity,
            max_model_len=terms.max_model_len,
            max_slots=terms.max_slots,
            tp_size=terms.tp_size,
        ).record()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        reason = f"{where}: {said}" if where else said
        raise TermsError(f"remote drafting cannot start: {reason}") from None
