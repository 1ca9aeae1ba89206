"""The self-test draft: can this worker draft, and does it still draft what it drafted at start?

Decides what the test is: a fixed window in the drafter's spare slot, one block, the same answer as
the first time. It never touches a request's slot. When to run it is the server's business.
"""

import logging
import struct

from dspark_worker.drafter import Append, Draft, Drafter, DraftRequest, Fault
from dsparkctl.contract.records import Hello

log = logging.getLogger(__name__)

_ROWS = 4


class SelfTest:
    """Runs in slot `max_slots`, the one behind the last request's."""

    def __init__(self, own: Hello, drafter: Drafter) -> None:
        self._own = own
        self._drafter = drafter
        self._first: Draft | None = None
        n_rows = min(_ROWS, own.window, own.max_model_len)
        # bf16 values between 1 and 2, all different along a row and from row to row.
        values = [
            0x3F80 + (7 * column + 31 * row) % 128
            for row in range(n_rows)
            for column in range(own.row_bytes // 2)
        ]
        rows = memoryview(bytearray(struct.pack(f"<{len(values)}H", *values)))
        self._append = Append(own.max_slots, 0, n_rows, rows)
        self._request = DraftRequest(own.max_slots, 0, n_rows, own.vocab_size - 1, own.num_spec)

    def run(self) -> str:
        """Why the worker cannot be trusted to draft, or an empty string."""
        try:
            return self._run()
        except Exception as error:
            log.debug("self-test draft raised", exc_info=True)
            return f"the drafter raised {error!r}"

    def _run(self) -> str:
        (fault,) = self._drafter.append([self._append])
        if fault is not None:
            return f"append: {fault.reason}"
        (draft,) = self._drafter.draft(
            [self._request], max_model_len=self._own.max_model_len, want_margin=True
        )
        if isinstance(draft, Fault):
            return f"draft: {draft.reason}"
        draft = Draft(tuple(draft.ids), tuple(draft.confidence), tuple(draft.margin))
        if not all(0 <= token < self._own.vocab_size for token in draft.ids):
            return f"draft ids {draft.ids} outside the vocabulary of {self._own.vocab_size}"
        if not all(0.0 <= value <= 1.0 for value in draft.confidence):
            return f"confidences {draft.confidence} outside 0 to 1"
        if self._first is None:
            self._first = draft
        elif draft.ids != self._first.ids:
            return f"draft ids {draft.ids}, at start they were {self._first.ids}"
        return ""
