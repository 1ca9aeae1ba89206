"""A plain greedy speculative loop: target, the worker's drafter, and nothing between them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dspark_worker.drafter import Append, Draft, DraftRequest
from dspark_worker.model.drafter import TorchDrafter
from dsparkctl.engine.target import Span, Target

MAX_MODEL_LEN = 2048


class Judged(NamedTuple):
    """One draft that was verified after all before it were accepted."""

    place: int
    """0..k-1"""
    confidence: float
    is_accepted: bool


class Outcome(NamedTuple):
    texts: list[list[int]]
    """What each prompt was continued with."""
    accepted: list[int]
    """Of every round of every request."""
    judged: list[Judged]

    @property
    def mean(self) -> float:
        return sum(self.accepted) / len(self.accepted)


def speculate(
    target: Target,
    drafter: TorchDrafter,
    prompts: Sequence[Sequence[int]],
    n_tokens: int,
    k: int = 5,
    *,
    spoil: Callable[[Tensor], Tensor] = lambda rows: rows,
    early: int = 0,
) -> Outcome:
    """All prompts at once, each on a slot, until each has `n_tokens` more.

    `spoil` changes tap rows [n, T·D] on their way; `early` is how far the block stands too low.
    """
    outcome = Outcome([[] for _ in prompts], [], [])
    spans = [Span(slot, 0, prompt) for slot, prompt in enumerate(prompts)]
    confidence: dict[int, Sequence[float]] = {}
    while spans:
        out = target.forward(spans)
        best = out.logits.argmax(-1).tolist()
        rows = spoil(torch.cat(out.taps, dim=-1))
        parts, requests, start = [], [], 0
        for span in spans:
            end = start + len(span.tokens)
            n_accepted = len(span.tokens) - 1
            if span.first_pos:
                n_accepted = _n_accepted(span.tokens[1:], best[start:end])
                outcome.accepted.append(n_accepted)
                outcome.judged.extend(
                    Judged(place, confidence[span.slot][place], place < n_accepted)
                    for place in range(min(n_accepted + 1, len(span.tokens) - 1))
                )
                outcome.texts[span.slot].extend(best[start : start + n_accepted])
            anchor = best[start + n_accepted]
            outcome.texts[span.slot].append(anchor)
            anchor_pos = span.first_pos + n_accepted + 1
            if len(outcome.texts[span.slot]) < n_tokens:
                first_pos = max(span.first_pos, anchor_pos - drafter.config.window)
                kept = rows[start + first_pos - span.first_pos : start + n_accepted + 1]
                data = kept.contiguous().view(torch.uint8).numpy().tobytes()
                parts.append(Append(span.slot, first_pos, len(kept), memoryview(data)))
                lo_pos = max(0, anchor_pos - early - drafter.config.window)
                requests.append(DraftRequest(span.slot, lo_pos, anchor_pos - early, anchor, k))
            start = end
        assert not any(drafter.append(parts))
        spans = []
        if not requests:
            break
        drafts = drafter.draft(requests, max_model_len=MAX_MODEL_LEN, want_margin=False)
        for request, draft in zip(requests, drafts, strict=True):
            assert isinstance(draft, Draft)
            confidence[request.slot] = draft.confidence
            tokens = [request.anchor_token, *draft.ids[:k]]
            spans.append(Span(request.slot, request.anchor_pos + early, tokens))
    return outcome


def _n_accepted(drafted: Sequence[int], best: Sequence[int]) -> int:
    n = 0
    while n < len(drafted) and drafted[n] == best[n]:
        n += 1
    return n


def distinct_fourgrams(texts: Sequence[Sequence[int]]) -> float:
    """Share of the 4-grams of all texts that are not repeats."""
    grams = [tuple(text[i : i + 4]) for text in texts for i in range(len(text) - 3)]
    return len(set(grams)) / len(grams)
