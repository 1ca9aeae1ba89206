"""From tap tensors to the bytes of a STEP (§4.2, §4.3, §7.4), without a word from the device.

Decides how a round's rows travel: every candidate row is written into the ring, the rejected ones
into its dump; the rows of the message are then gathered from the ring, so that a clean slot and a
resync take one path. How many rows were rejected is known on the device alone: anchors, the start
of a resync and where each entry's rows begin are computed there, and the host learns of them with
the one wait at the end. Refuses to know entries, generations and connections.

The same code runs on CPU tensors. On CUDA the copies to pinned memory are asynchronous, ordered
by the stream that is current in `launch` (the engine's) or by the one given, and end in one event;
this part cannot run where there is no GPU, so no ordinary test covers it.
"""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple

import torch
from torch import Tensor

from dsparkctl.client.pinned import host_bytes, host_tensor
from dsparkctl.client.ring import Ring
from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.messages import rows_offset
from dsparkctl.contract.records import Hello
from dsparkctl.state.ledger import Part, Sampled

_PAGE_BYTES: Final = 4096
_KNOWN_SHAPES: Final = 4096
"""Shapes remembered as checked; prefill chunks come in any length."""


class StepTensors(NamedTuple):
    """What the engine's step left on the device (§2). Token tensors may be longer than needed."""

    taps: Sequence[Tensor]
    """n_taps × [T, hidden] bf16; T may be padded."""
    num_sampled: Tensor
    """[n_req] int; 0 for a partial prefill chunk."""
    num_rejected: Tensor
    """[n_req] int."""
    last_sampled: Tensor
    """[max_slots] or [max_slots, 1] int, by slot."""
    next_prefill_tokens: Tensor
    """[max_slots] or [lookahead, max_slots] int, by slot; row 0 counts."""
    wants_drafts: bool
    """False: the engine verifies no drafts next (its k is 0), so that none are needed."""


class _Launched(NamedTuple):
    """A round whose rows and numbers are on their way to the host."""

    slots: Sequence[int]
    wants_drafts: bool


class StagedRows:
    """The ring and the buffer that messages are sent from: `Rows[StepTensors]`.

    Row values are `n_taps * hidden` bf16. `stream`: where the device's work goes; None: whatever
    is current in `launch`. One round at a time: `landed` before the next `launch`.
    """

    def __init__(
        self, hello: Hello, device: torch.device, stream: "torch.cuda.Stream | None" = None
    ) -> None:
        self.ring = Ring(hello, device)
        self._n_taps, self._hidden = hello.n_taps, hello.hidden
        self._max_slots = hello.max_slots
        self._row_bytes = hello.row_bytes
        self._is_cuda = device.type == "cuda"
        self._stream = stream
        self._event = torch.cuda.Event() if self._is_cuda else None  # type: ignore[no-untyped-call]
        self._checked: set[object] = set()
        self._launched: _Launched | None = None

        n_rows = hello.max_slots * hello.window
        self._gathered = self._on_device(n_rows, self.ring)
        self._staged = self._on_device(n_rows, self.ring) if self._is_cuda else None
        self._count = torch.arange(n_rows, device=device)
        self._plan = _Words(3 * (hello.max_slots + n_rows), device)
        self._plan_there = torch.empty_like(self._plan.words, device=device)
        self._said = _Words(4 * hello.max_slots, device)
        self._message = _MessageBuffer(n_rows, hello, device)

    def keep(
        self, parts: Sequence[Part], tensors: StepTensors, *, stage: bool
    ) -> Sequence[Sampled]:
        """See `Rows`."""
        self.launch(parts, tensors, stage=stage)
        return self.landed()

    @property
    def memory(self) -> memoryview:
        """Where every message lies, for carriers that want it registered (§8.2)."""
        return self._message.memory

    def message(self, head: bytes, n_rows: int) -> memoryview:
        """See `Rows`. The view holds until the next round."""
        return self._message.bytes(head, n_rows)

    @torch.inference_mode()
    def launch(self, parts: Sequence[Part], tensors: StepTensors, *, stage: bool) -> None:
        """The device's share of `keep`; waits for nothing. ValueError for misshapen tensors."""
        self._check(parts, tensors)
        if self._launched is not None and self._event is not None:
            self._event.synchronize()  # the round before broke off; its copies must not meet ours
        with self._on_stream():
            if parts:
                self._work(parts, tensors, stage)
            if self._event is not None:
                self._event.record()
        self._launched = _Launched([part.slot for part in parts], tensors.wants_drafts)

    def landed(self) -> Sequence[Sampled]:
        """Wait for the device; what it knew, for each part in turn. The rows are then staged."""
        assert self._launched is not None, "nothing was launched"
        slots, wants_drafts = self._launched
        self._launched = None
        if self._event is not None:
            self._event.synchronize()
        n = len(slots)
        said: list[int] = self._said.words[: 2 * (n + self._max_slots)].tolist()
        found = []
        for i, slot in enumerate(slots):
            has_sampled = said[n + i] > 0
            anchor_token = said[2 * n + (0 if has_sampled else self._max_slots) + slot]
            found.append(Sampled(said[i], has_sampled and wants_drafts, anchor_token))
        return found

    # --- on the device ----------------------------------------------------------------------------

    def _work(self, parts: Sequence[Part], tensors: StepTensors, stage: bool) -> None:
        n, width = len(parts), self.ring.width
        n_rows = sum(part.n_rows for part in parts)
        first, end, base, owner, pos, place = self._planned(parts, n_rows)
        rejected = tensors.num_rejected[:n]
        anchor = end - rejected

        self._gather(parts, tensors.taps)
        is_rejected = pos >= (anchor.index_select(0, owner) if n > 1 else anchor)
        self.ring.put(self._gathered[:n_rows], place.masked_fill_(is_rejected, self.ring.dump))

        if stage:
            # `Part.sent`; where a part does not resync, anchor - W is never above its first row.
            first = torch.maximum(first, anchor - width)
            ends = (anchor - first).cumsum(0)
            most = sum(_most_sent(part, width) for part in parts)
            count = self._count[:most]
            shift = anchor - ends
            if n > 1:
                # Behind the last row, where the bound is too high, rows of the last part repeat.
                owner = torch.searchsorted(ends[:-1], count, right=True)
                shift, base = shift.index_select(0, owner), base.index_select(0, owner)
            self._stage((count + shift).remainder_(width).add_(base), most)
        self._say(n, rejected, tensors)

    def _planned(self, parts: Sequence[Part], n_rows: int) -> Sequence[Tensor]:
        """What the host knows, on the device with one copy, all int64.

        For each part: where its message would begin, where its candidates end, its slot's place;
        for each candidate row: its part, its position, its place in the ring.
        """
        n, width = len(parts), self.ring.width
        words = [part.lo_pos if part.resyncs else part.first_pos for part in parts]
        words += [part.first_pos + part.n_rows for part in parts]
        words += [part.slot * width for part in parts]
        for i, part in enumerate(parts):
            words += [i] * part.n_rows
        for part in parts:
            words += range(part.first_pos, part.first_pos + part.n_rows)
        for part in parts:
            words += self.ring.places(part.slot, part.first_pos, part.n_rows)
        here = self._plan.filled(words)
        there = self._plan_there[: len(words)].copy_(here, non_blocking=True)
        return there.split_with_sizes([n, n, n, n_rows, n_rows, n_rows])

    def _gather(self, parts: Sequence[Part], taps: Sequence[Tensor]) -> None:
        """The candidate rows of all parts, one below the other, each row's taps side by side."""
        at = 0
        for start, stop in _spans(parts):
            out = self._gathered[at : at + stop - start]
            torch.cat([tap[start:stop] for tap in taps], dim=1, out=out)
            at += stop - start

    def _stage(self, place: Tensor, n_rows: int) -> None:
        out = self._message.rows[:n_rows]
        if self._staged is None:
            self.ring.take(place, out)
        else:
            self.ring.take(place, self._staged[:n_rows])
            out.copy_(self._staged[:n_rows], non_blocking=True)

    def _say(self, n: int, rejected: Tensor, tensors: StepTensors) -> None:
        """Rejected and sampled by part, then both kinds of anchor by slot."""
        prefill = tensors.next_prefill_tokens
        found = (
            rejected,
            tensors.num_sampled[:n],
            tensors.last_sampled.reshape(-1)[: self._max_slots],
            (prefill if prefill.dim() == 1 else prefill[0])[: self._max_slots],
        )
        there = torch.cat([tensor.to(torch.int64) for tensor in found])
        self._said.words[: 2 * (n + self._max_slots)].copy_(there, non_blocking=True)

    # --- small things -----------------------------------------------------------------------------

    def _on_device(self, n_rows: int, ring: Ring) -> Tensor:
        return ring.rows.new_empty((n_rows, ring.rows.shape[1]))

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _check(self, parts: Sequence[Part], tensors: StepTensors) -> None:
        """Shapes and kinds, once for each; spans every time, since a slice is never too long."""
        seen = (
            len(parts),
            *[(tap.shape, tap.dtype) for tap in tensors.taps],
            *[(t.shape, t.dtype) for t in tensors[1:5]],
        )
        if seen not in self._checked:
            self._check_shapes(len(parts), tensors)
            if len(self._checked) == _KNOWN_SHAPES:
                self._checked.clear()
            self._checked.add(seen)
        n_tokens = tensors.taps[0].shape[0]
        for part in parts:
            if not 0 <= part.row <= part.row + part.n_rows <= n_tokens:
                raise ValueError(
                    f"slot {part.slot}: rows {part.row} to {part.row + part.n_rows} of {n_tokens}"
                )

    def _check_shapes(self, n: int, tensors: StepTensors) -> None:
        if n > self._max_slots:
            raise ValueError(f"{n} requests for {self._max_slots} slots")
        shapes = {tuple(tap.shape) for tap in tensors.taps}
        if len(tensors.taps) != self._n_taps or shapes != {(len(tensors.taps[0]), self._hidden)}:
            raise ValueError(
                f"taps {[tuple(tap.shape) for tap in tensors.taps]}, "
                f"expected {self._n_taps} of [tokens, {self._hidden}]"
            )
        if any(tap.dtype is not torch.bfloat16 for tap in tensors.taps):
            raise ValueError(f"taps are {tensors.taps[0].dtype}, expected bfloat16 (§3)")
        counts = {"num_sampled": tensors.num_sampled, "num_rejected": tensors.num_rejected}
        for name, tensor in counts.items():
            _require_ints(name, tensor, tensor.shape[:1], n)
        tokens = tensors.last_sampled
        _require_ints("last_sampled", tokens, (tokens.numel(),), self._max_slots)
        tokens = tensors.next_prefill_tokens
        _require_ints("next_prefill_tokens", tokens, tokens.shape[-1:], self._max_slots)


class _Words:
    """Int64 words on the host, for copies to and from the device."""

    def __init__(self, n: int, device: torch.device) -> None:
        self.words = host_tensor(n, torch.int64, device)
        self._view = host_bytes(self.words).cast("q")

    def filled(self, words: Sequence[int]) -> Tensor:
        """The first of them hold `words`."""
        self._view[: len(words)] = array("q", words)
        return self.words[: len(words)]


class _MessageBuffer:
    """§8.2's pinned buffer: rows that begin on a page, and room for the longest head before."""

    def __init__(self, n_rows: int, hello: Hello, device: torch.device) -> None:
        self._row_bytes = hello.row_bytes
        head_room = HEADER_BYTES + rows_offset(hello.max_slots)
        n_bytes = n_rows * hello.row_bytes
        whole = host_tensor(head_room + _PAGE_BYTES + n_bytes, torch.uint8, device)
        self._start = head_room + -(whole.data_ptr() + head_room) % _PAGE_BYTES
        rows = whole[self._start : self._start + n_bytes].view(torch.bfloat16)
        self.rows = rows.view(n_rows, -1)
        self.memory = host_bytes(whole)

    def bytes(self, head: bytes, n_rows: int) -> memoryview:
        start = self._start - len(head)
        self.memory[start : self._start] = head
        return self.memory[start : self._start + n_rows * self._row_bytes]


def _spans(parts: Sequence[Part]) -> Iterator[tuple[int, int]]:
    """The candidate rows in the tap tensors, neighbours joined: one span in a decode step."""
    start = stop = parts[0].row
    for part in parts:
        if part.row != stop:
            yield start, stop
            start = part.row
        stop = part.row + part.n_rows
    yield start, stop


def _most_sent(part: Part, width: int) -> int:
    """Rows that a part sends when none is rejected."""
    return len(part.sent(0, width))


def _require_ints(name: str, tensor: Tensor, shape: Sequence[int], least: int) -> None:
    """`shape` is what is read of the tensor: one number, at least `least`."""
    is_whole = not (tensor.is_floating_point() or tensor.dtype is torch.bool)
    if not is_whole or len(shape) != 1 or shape[0] < least:
        raise ValueError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}, expected {least} or more integers"
        )
