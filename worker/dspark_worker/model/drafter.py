"""The DSpark drafter: tap rows in, drafts out (model specification §4 to §7).

`append` turns the rows of a whole STEP into key/value vectors with one projection and keeps those;
`draft` runs all requests of a STEP through the layers in one forward, then samples. Which rows a
window holds is the desk's to say. A row or a draft that is not finite is a fault of its own entry:
nothing here mixes two requests but matrix products, and those keep rows apart.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dspark_worker.drafter import Append, Draft, DraftRequest, Fault
from dspark_worker.model.block import Block, Context
from dspark_worker.model.context_kv import ContextKv
from dspark_worker.model.exl3.cache import DecodedCache
from dspark_worker.model.graphs import HeadStage, recorder_for
from dspark_worker.model.heads import Heads, Sampled
from dspark_worker.model.kv_quant import KvQuant
from dspark_worker.model.linear import Linear
from dspark_worker.model.norms import RmsNorm
from dspark_worker.model.rope import Rope
from dspark_worker.model.scratch import Scratch
from dspark_worker.model.streams import collapse
from dspark_worker.model.trace import Trace
from dspark_worker.model.window_kv import WindowKv
from dsparkctl.checkpoint.model_config import ModelConfig

NOT_FINITE = "not finite"

_CPU = torch.device("cpu")


class Model(NamedTuple):
    """Everything that was loaded."""

    embed: Tensor
    """[V, D] in the compute dtype"""
    main_proj: Linear
    main_norm: RmsNorm
    blocks: tuple[Block, ...]
    heads: Heads
    context_kv: ContextKv
    rope: Rope


class TorchDrafter:
    """The `Drafter` of `dspark_worker.drafter`, in torch."""

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        *,
        device: torch.device,
        dtype: torch.dtype,
        kv_quant: KvQuant,
        max_slots: int,
        backend: str = "torch",
        weight_cache: DecodedCache | None = None,
    ) -> None:
        """`backend` is who multiplies with EXL3 weights, `weight_cache` what they decode into."""
        self.config = config
        self.backend = backend
        self.weight_cache = weight_cache
        self.device = str(device)
        self.dtype = str(dtype).removeprefix("torch.")
        self.kv_quant = kv_quant.value
        self.trace: Trace | None = None
        self._model = model
        self._device = device
        self._dtype = dtype
        self._heads = HeadStage(model.heads, recorder_for(model.heads, device))
        self._scratch = Scratch()
        self._windows = WindowKv(
            n_layers=config.n_layers,
            n_slots=max_slots + 1,  # the last one is the self-test's
            window=config.window,
            head_dim=config.head_dim,
            dtype=dtype,
            device=device,
        )
        self._warm(max_slots)

    def gpu_mem_bytes(self) -> int:
        """Bytes that torch holds on the device; 0 on the CPU (§6.5)."""
        if self._device.type != "cuda":
            return 0
        return torch.cuda.memory_allocated(self._device)

    def rebuild(self, change: Callable[[Model], Model]) -> None:
        """Put another model in the place of this one, made of its parts (`bench` measures them)."""
        self._model = change(self._model)
        self._heads = HeadStage(self._model.heads, None)

    def markov_cache_size(self) -> tuple[int, int]:
        """Tokens whose Markov bias is kept, and the bytes of that (§10 of the specification)."""
        cache = self._model.heads.cache
        return (0, 0) if cache is None else (len(cache.rows), cache.n_bytes)

    @torch.inference_mode()
    def append(self, parts: Sequence[Append]) -> Sequence[Fault | None]:
        """Project and keep the rows of all entries; a row that is not finite is kept too (R29)."""
        n_rows = sum(part.n_rows for part in parts)
        if not n_rows:
            return [None] * len(parts)
        main_x = self._model.main_norm(self._model.main_proj(self._rows(parts, n_rows)))
        positions = [
            torch.arange(part.first_pos, part.first_pos + part.n_rows, device=self._device)
            for part in parts
        ]
        kv = self._model.context_kv(main_x, self._model.rope.at(torch.cat(positions)))
        self._windows.store([(part.slot, part.first_pos, part.n_rows) for part in parts], kv)
        if self.trace is not None:
            self.trace("main_x", main_x)
        # The largest is finite where all are: NaN counts as largest.
        finite = kv.abs().amax(-1).amax(0).isfinite().tolist()
        faults: list[Fault | None] = []
        start = 0
        for part in parts:
            ok = all(finite[start : start + part.n_rows])
            faults.append(None if ok else Fault(f"a row of slot {part.slot} is {NOT_FINITE}"))
            start += part.n_rows
        return faults

    @torch.inference_mode()
    def draft(
        self, requests: Sequence[DraftRequest], *, max_model_len: int, want_margin: bool
    ) -> Sequence[Draft | Fault]:
        """One forward over all requests, then the Markov chain; at most `max_slots` requests."""
        n_vocab = self.config.vocab_size
        results: list[Draft | Fault] = [Fault("anchor token outside the vocabulary")] * len(
            requests
        )
        known = [n for n, r in enumerate(requests) if 0 <= r.anchor_token < n_vocab]
        if known:
            drafted = self._draft([requests[n] for n in known], max_model_len, want_margin)
            for n, result in zip(known, drafted, strict=True):
                results[n] = result
        return results

    @torch.inference_mode()
    def window_kv(self, slot: int, lo_pos: int, end_pos: int) -> Tensor:
        """[L, n, d] of the positions `lo_pos .. end_pos - 1`, for replays; no copy is promised."""
        return self._windows.gather([(slot, lo_pos, end_pos)]).kv[:, 0]

    @torch.inference_mode()
    def _warm(self, max_slots: int) -> None:
        """Record what decoding repeats; on a CPU nothing is."""
        shape = (1, self.config.num_spec, self.config.hidden)
        self._heads.warm(torch.zeros(shape, dtype=self._dtype, device=self._device), max_slots)

    def _rows(self, parts: Sequence[Append], n_rows: int) -> Tensor:
        """The entries' bytes as [n_rows, T·D] in the compute dtype; bf16 widens exactly."""
        shape = (n_rows, self.config.n_taps * self.config.hidden)
        on_gpu = self._device.type == "cuda"
        dtype = torch.bfloat16 if on_gpu else self._dtype
        staged = self._scratch.get("staged", shape, dtype, _CPU, pinned=on_gpu)
        start = 0
        for part in parts:
            if not part.n_rows:
                continue
            # Rows of a STEP can be looked at where they lie; torch wants that to be writable.
            data = bytearray(part.rows) if part.rows.readonly else part.rows
            rows = torch.frombuffer(data, dtype=torch.bfloat16).view(part.n_rows, -1)
            staged[start : start + part.n_rows].copy_(rows)
            start += part.n_rows
        return staged.to(self._device, self._dtype, non_blocking=True) if on_gpu else staged

    def _forward(self, requests: Sequence[DraftRequest], max_model_len: int) -> Tensor:
        """The pre-norm hidden states [b, N, D] of every block."""
        config, model = self.config, self._model
        n_spec = config.num_spec
        ids = [[r.anchor_token, *[config.noise_token_id] * (n_spec - 1)] for r in requests]
        last_pos = max_model_len - 1
        queries = [[min(r.anchor_pos + j, last_pos) for j in range(n_spec)] for r in requests]
        windows = self._windows.gather([(r.slot, r.lo_pos, r.anchor_pos) for r in requests])
        padding = windows.padding
        if padding is not None:
            padding = torch.nn.functional.pad(padding, (0, n_spec)).unsqueeze(1)
        context = Context(model.rope.at(torch.tensor(queries, device=self._device)), padding)

        tokens = model.embed[torch.tensor(ids, device=self._device).flatten()]
        streams = tokens.unsqueeze(1).repeat(1, config.n_streams, 1)
        # All streams are equal still: any weights that sum to 1 collapse them alike (§5).
        pre = torch.zeros(len(tokens), config.n_streams, device=self._device)
        pre[:, 0] = 1.0
        for block, window in zip(model.blocks, windows.kv, strict=True):
            streams, pre = block(streams, pre, window, context, self.trace)
        hidden = collapse(streams, pre)
        if self.trace is not None:
            self.trace("head_hidden", hidden)
        return hidden.view(len(requests), n_spec, -1)

    def _draft(
        self, requests: Sequence[DraftRequest], max_model_len: int, want_margin: bool
    ) -> list[Draft | Fault]:
        hidden = self._forward(requests, max_model_len)
        sampled = self._heads(
            hidden,
            torch.tensor([r.anchor_token for r in requests], device=self._device),
            max(r.n_out for r in requests),
            want_margin=want_margin,
            trace=self.trace,
        )
        return _unpack(sampled, requests, self.config.num_spec)


def _unpack(sampled: Sampled, requests: Sequence[DraftRequest], n_spec: int) -> list[Draft | Fault]:
    """One value per request, zeros behind its `n_out` (§6.3), from one transfer off the device."""
    confidence = torch.sigmoid(sampled.conf_logit)
    finite = sampled.top.isfinite() & sampled.conf_logit.isfinite() & sampled.margin.isfinite()
    columns = (sampled.ids, confidence, sampled.margin, finite)
    # fp64 holds ids and fp32 values alike.
    table = torch.stack([column.double() for column in columns], dim=1).tolist()
    results: list[Draft | Fault] = []
    for request, rows in zip(requests, table, strict=True):
        ids, confidences, margins, ok = (row[: request.n_out] for row in rows)
        if not all(ok):
            results.append(Fault(f"the draft of slot {request.slot} is {NOT_FINITE}"))
            continue
        zeros = [0] * (n_spec - request.n_out)
        results.append(Draft([*map(int, ids), *zeros], confidences + zeros, margins + zeros))
    return results
