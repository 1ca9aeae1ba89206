"""The drafter on the engine's own side, which resilience and shadow keep (§10).

Decides nothing of its own: the ledger's book says which rows of a step are context, as it does for
the worker, and the same model drafts. Only rows that the target has verified enter its windows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dspark_worker.drafter import Append, Draft, Drafter, DraftRequest
from dsparkctl.client.broadcast import Drafts
from dsparkctl.client.rows import Batch
from dsparkctl.client.staging import StepTensors
from dsparkctl.contract.codes import NEED_DRAFT
from dsparkctl.contract.records import Hello, ReqEntry
from dsparkctl.state.ledger import Ledger, Part, Sampled


class WindowedDrafter:
    """A `LocalDrafter` of `dsparkctl.client.proposer`; `terms` are those of the HELLO."""

    def __init__(self, drafter: Drafter, terms: Hello) -> None:
        self.step: Batch | None = None
        """The step that is being proposed for; whoever runs the engine puts it here."""
        self._drafter = drafter
        self._terms = terms
        self._ledger = Ledger(terms.max_slots, terms.window)

    def propose(self) -> Drafts:
        """Take the step's rows into the windows, and draft for whoever sampled."""
        entries = self._take_rows()
        wanting = [n for n, entry in enumerate(entries) if entry.req_flags & NEED_DRAFT]
        asked = [self._request(entries[n]) for n in wanting]
        n_len = self._terms.max_model_len
        drafted = self._drafter.draft(asked, max_model_len=n_len, want_margin=False)
        ids = torch.zeros(len(entries), self._terms.num_spec, dtype=torch.int64)
        confidence = torch.zeros(len(entries), self._terms.num_spec)
        for n, draft in zip(wanting, drafted, strict=True):
            if isinstance(draft, Draft):
                ids[n] = torch.tensor(draft.ids)
                confidence[n] = torch.tensor(draft.confidence)
        return Drafts(ids, confidence)

    def keep_context(self) -> None:
        """Take the step's rows into the windows, and no more."""
        self._take_rows()

    def _take_rows(self) -> Sequence[ReqEntry]:
        assert self.step is not None
        tensors = self.step.tensors
        assert isinstance(tensors, StepTensors)
        parts = self._ledger.open(self.step.requests)
        entries = self._ledger.close(parts, _sampled(parts, tensors), 0)
        self._drafter.append(
            [
                Append(entry.slot, entry.first_pos, entry.n_rows, _rows(part, entry, tensors.taps))
                for part, entry in zip(parts, entries, strict=True)
            ]
        )
        return entries

    def _request(self, entry: ReqEntry) -> DraftRequest:
        lo_pos = self._ledger.pages[entry.slot].window.lo
        n_out = self._terms.num_spec
        return DraftRequest(entry.slot, lo_pos, entry.anchor_pos, entry.anchor_token, n_out)


def _sampled(parts: Sequence[Part], tensors: StepTensors) -> list[Sampled]:
    found = []
    for n, part in enumerate(parts):
        has_sampled = bool(tensors.num_sampled[n])
        anchor = tensors.last_sampled[part.slot, 0]
        if not has_sampled:
            anchor = tensors.next_prefill_tokens[0, part.slot]
        found.append(Sampled(int(tensors.num_rejected[n]), has_sampled, int(anchor)))
    return found


def _rows(part: Part, entry: ReqEntry, taps: Sequence[Tensor]) -> memoryview:
    """The entry's rows, each row's taps side by side, as bytes."""
    rows = torch.cat([tap[part.row : part.row + entry.n_rows] for tap in taps], dim=1)
    values: Any = rows.view(torch.uint8).numpy()
    return memoryview(values).cast("B")
