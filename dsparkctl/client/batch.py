"""vLLM's input batch as the round sees it (§2, §7.1): who is in the step, and which rows are whose.

Decides where each request's span begins, in the tap tensors and in the request. Refuses to know
rows, and imports neither vllm nor torch.

Where a decoding request stands, the host does not know: under async scheduling its count is an
upper bound, since the step before may have rejected drafts. Rank 0's book knows, once that step's
round has ended, and what it does not know the device does.
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

from dsparkctl.state.ledger import Ledger, Scheduled


class Requests(Sequence[Scheduled]):
    """The requests of `input_batch`, in its order.

    They are read when the first one is asked for: an async round asks when the one before it has
    ended. Without a `ledger` positions may be too high; ranks other than 0 do not need them.
    """

    def __init__(self, input_batch: Any, ledger: Ledger | None) -> None:
        self._batch = input_batch
        self._ledger = ledger
        self._found: list[Scheduled] | None = None

    def __len__(self) -> int:
        return int(self._batch.num_reqs)

    @overload
    def __getitem__(self, index: int) -> Scheduled: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Scheduled]: ...
    def __getitem__(self, index: int | slice) -> Scheduled | Sequence[Scheduled]:
        return self._read()[index]

    def __iter__(self) -> Iterator[Scheduled]:
        return iter(self._read())

    def _read(self) -> list[Scheduled]:
        if self._found is None:
            self._found = [self._request(i) for i in range(len(self))]
        return self._found

    def _request(self, i: int) -> Scheduled:
        batch = self._batch
        slot = int(batch.idx_mapping_np[i])
        n_drafts = batch.num_draft_tokens_per_req
        return Scheduled(
            request_id=batch.req_ids[i],
            slot=slot,
            row=int(batch.query_start_loc_np[i]),
            first_pos=self._first_pos(i, slot),
            n_rows=int(batch.num_scheduled_tokens[i]),
            k_window=0 if n_drafts is None else int(n_drafts[i]),
        )

    def _first_pos(self, i: int, slot: int) -> int:
        """Exact on the host while a prompt is computed; then where the last round ended."""
        batch = self._batch
        if self._ledger is None or batch.is_prefilling_np[i]:
            return int(batch.num_computed_tokens_np[i])
        page = self._ledger.pages[slot]
        if page.owner == batch.req_ids[i] and page.window.hi >= page.window.lo:
            return page.window.hi + 1
        # As after a fault of our own, which empties the book: wait for the device.
        return int(batch.positions[int(batch.query_start_loc_np[i])])
