"""A target without mathematics, and drafters that know it: for tests of the engine around them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dsparkctl.client.fallback import Outcome
from dsparkctl.client.rows import Batch
from dsparkctl.client.staging import StepTensors
from dsparkctl.engine.scheduler import Rules
from dsparkctl.engine.target import Forward, Span
from dsparkctl.state.n_out import Caps, Range

VOCAB = 97
HIDDEN = 4
N_TAPS = 3
N = 5
WINDOW = 20
MAX_MODEL_LEN = 256

CAPS = Caps((Range(1, 2, 5), Range(3, 4, 4)), "")
RULES = Rules(n_slots=4, window=WINDOW, n_budget=48, max_model_len=MAX_MODEL_LEN, caps=CAPS)


def following(tokens: Sequence[int]) -> int:
    """The next token of this toy's language; every token before it counts."""
    value = len(tokens)
    for token in tokens:
        value = (value * 31 + token + 7) % 100_003
    return value % VOCAB


def continued(prompt: Sequence[int], n: int) -> list[int]:
    tokens = [*prompt]
    for _ in range(n):
        tokens.append(following(tokens))
    return tokens[len(prompt) :]


class ToyTarget:
    """Its cache holds the tokens themselves, so what is missing or wrong in it shows at once."""

    def __init__(self, n_slots: int) -> None:
        self.cache: list[dict[int, int]] = [{} for _ in range(n_slots)]
        self.n_rows: list[int] = []
        """Of every forward."""

    def forward(self, spans: Sequence[Span]) -> Forward:
        assert len({span.slot for span in spans}) == len(spans)
        choices, rows = [], []
        for slot, first_pos, tokens in spans:
            cache = self.cache[slot]
            for pos, token in enumerate(tokens, first_pos):
                cache[pos] = token
                choices.append(following([cache[p] for p in range(pos + 1)]))
                rows.append([float(pos + 1), float(token), float(slot), 1.0])
        self.n_rows.append(len(rows))
        logits = torch.nn.functional.one_hot(torch.tensor(choices), VOCAB).double()
        tap = torch.tensor(rows, dtype=torch.bfloat16)
        return Forward(logits, tuple(tap.clone() for _ in range(N_TAPS)))

    def copy_kv(self, src_slot: int, dst_slot: int, n_tokens: int) -> None:
        source = self.cache[src_slot]
        self.cache[dst_slot].update({pos: source[pos] for pos in range(n_tokens)})


class Proposed(NamedTuple):
    outcome: Outcome
    draft_ids: Tensor
    confidence: Tensor
    n_drafted: int


Drafts = Callable[[list[int]], tuple[list[int], list[float]]]
"""Tokens up to the anchor -> N drafts and confidences."""


class ToyProposer:
    """Knows each request's tokens from the engine's own requests, and notes every batch."""

    def __init__(self, tokens_of: Callable[[str], list[int]], drafts: Drafts) -> None:
        self.batches: list[Batch] = []
        self._tokens_of = tokens_of
        self._drafts = drafts

    def propose(self, batch: Batch) -> Proposed:
        tensors = batch.tensors
        assert isinstance(tensors, StepTensors)
        self.batches.append(Batch(batch.requests, _kept(tensors)))
        ids, confidence = [], []
        for i, request in enumerate(batch.requests):
            end_pos = request.first_pos + request.n_rows - int(tensors.num_rejected[i])
            known = self._tokens_of(request.request_id)
            drafts: tuple[list[int], list[float]] = ([0] * N, [0.0] * N)
            if tensors.num_sampled[i]:
                drafts = self._drafts([*known[:end_pos], int(tensors.last_sampled[request.slot])])
            ids.append(drafts[0])
            confidence.append(drafts[1])
        n_drafted = int((tensors.num_sampled > 0).sum())
        return Proposed(Outcome.DRAFTED, torch.tensor(ids), torch.tensor(confidence), n_drafted)


def no_drafts(_tokens: list[int]) -> tuple[list[int], list[float]]:
    return [0] * N, [0.0] * N


def _kept(tensors: StepTensors) -> StepTensors:
    """The engine writes into some of them again in its next round."""
    return tensors._replace(
        last_sampled=tensors.last_sampled.clone(),
        next_prefill_tokens=tensors.next_prefill_tokens.clone(),
    )
