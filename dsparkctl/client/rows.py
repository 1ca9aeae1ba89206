"""What a round asks of tensors, and no more: keep the new rows, stage what is sent (§4.2, §7.3).

Decides nothing. The torch rooms `ring` and `staging` answer it; a simulation answers it with bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from dsparkctl.contract.layout import Buffer
from dsparkctl.state.ledger import Part, Sampled, Scheduled

Tensors_contra = TypeVar("Tensors_contra", contravariant=True)
Tensors_co = TypeVar("Tensors_co", covariant=True)


class Rows(Protocol[Tensors_contra]):
    """The ring, and the one buffer that a STEP's rows are sent from."""

    def keep(
        self, parts: Sequence[Part], tensors: Tensors_contra, *, stage: bool
    ) -> Sequence[Sampled]:
        """Write each part's accepted rows into the ring, and say what the device knew.

        With `stage` the rows of every part's `sent` positions lie in the buffer when this returns,
        part by part, positions ascending. It waits for the device once, at its end.
        """

    def message(self, head: bytes, n_rows: int) -> Buffer:
        """`head` put right in front of the first `n_rows` staged rows: one contiguous message."""


class Batch(NamedTuple):
    """One engine step: its requests in batch order, and whatever `Rows` needs of it."""

    requests: Sequence[Scheduled]
    tensors: object
