"""The tiny target as the engine runs it: many requests' tokens in one forward, in float64.

Decides how spans of different length share one padded attention, and that results hang on what a
request's cache holds, never on how a batch is cut: float64 keeps the difference of two cuts near
1e-12, far below any margin between two tokens. Which slot belongs to whom, and which positions
hold, it refuses to know.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from dsparkctl.engine.kv_cache import KvCache
from dsparkctl.engine.target_model import (
    TargetConfig,
    attention,
    mask,
    model_of,
    turns_until,
    unseen,
)

WEIGHTS_FILE = "target.safetensors"
CONFIG_FILE = "target_config.json"


class Span(NamedTuple):
    """One request's part of a forward step."""

    slot: int
    first_pos: int
    """Position of `tokens[0]`; cached positions from it on are overwritten, earlier ones read."""
    tokens: Sequence[int]
    """At least one."""


class Forward(NamedTuple):
    """Rows of all spans, in span order."""

    logits: Tensor
    """float64 [T, V]"""
    taps: tuple[Tensor, ...]
    """Per tap layer bf16 [T, hidden], in the order of `tap_layer_ids`."""


class TargetWeights(NamedTuple):
    """What a target is made of."""

    config: TargetConfig
    tensors: Mapping[str, Tensor]
    """By the names of `TargetConfig.shapes`, in any floating dtype."""


class Target:
    """The model with a key/value cache of `n_slots` requests of `max_model_len` positions."""

    def __init__(self, weights: TargetWeights, n_slots: int, max_model_len: int) -> None:
        config, tensors = weights
        self.config = config
        self.vocab_size = config.vocab_size
        self.hidden = config.hidden
        self.tap_layer_ids = config.tap_layer_ids
        self._max_model_len = max_model_len
        self._model = model_of(config, {name: t.double() for name, t in tensors.items()})
        self._turns = turns_until(config, max_model_len, torch.float64)
        self._cache = KvCache(config.n_layers, n_slots, max_model_len, config.head_dim)

    @classmethod
    def load(cls, directory: Path, n_slots: int, max_model_len: int) -> "Target":
        """From the two files that `examples/train_tiny.py` writes beside the drafter."""
        return cls(read_weights(directory), n_slots, max_model_len)

    @torch.inference_mode()
    def forward(self, spans: Sequence[Span]) -> Forward:
        """Run all spans at once; slots are unique, positions end before `max_model_len`."""
        rows = _Rows(spans)
        assert rows.end_pos <= self._max_model_len, "positions beyond max_model_len"
        positions, n_heads = rows.positions, self.config.n_heads
        key_pos = rows.key_positions(self.config.span)
        hidden = unseen(rows.padded(positions), key_pos, self.config.span)
        added = mask(hidden, n_heads, torch.float64)
        key_pos = key_pos.clamp_max(self._max_model_len - 1)
        places = self._cache.places(rows.slots, positions)
        key_places = self._cache.places(rows.span_slots.unsqueeze(1), key_pos)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            self._cache.store(layer, places, qkv[:, n_heads:])
            keys, values = self._cache.gather(layer, key_places)
            return rows.unpadded(attention(rows.padded(qkv[:, :n_heads]), keys, values, added))

        logits, taps = self._model(rows.tokens, self._turns[positions], attend)
        return Forward(logits, tuple(tap.to(torch.bfloat16) for tap in taps))

    def copy_kv(self, src_slot: int, dst_slot: int, n_tokens: int) -> None:
        """A prefix-cache hit: take over the first `n_tokens` positions."""
        self._cache.copy(src_slot, dst_slot, n_tokens)


class _Rows:
    """The spans' tokens as rows [T], and the way to [S, Q] padded to the longest span and back."""

    def __init__(self, spans: Sequence[Span]) -> None:
        lengths = [len(span.tokens) for span in spans]
        self.tokens = torch.tensor([token for span in spans for token in span.tokens])
        self.positions = torch.tensor(
            [span.first_pos + i for span in spans for i in range(len(span.tokens))]
        )
        self.slots = torch.tensor([span.slot for span in spans for _ in span.tokens])
        self.span_slots = torch.tensor([span.slot for span in spans])
        self.end_pos = max(span.first_pos + len(span.tokens) for span in spans)
        self._first_pos = torch.tensor([span.first_pos for span in spans])
        self._shape = (len(spans), max(lengths))
        self._there: Tensor | None = None
        if len(set(lengths)) > 1:
            # A padded query repeats its span's first row: finite, and dropped on the way back.
            there: list[int] = []
            back: list[int] = []
            start = 0
            for n, length in enumerate(lengths):
                padding = [start] * (max(lengths) - length)
                there += [*range(start, start + length), *padding]
                back += range(n * max(lengths), n * max(lengths) + length)
                start += length
            self._there, self._back = torch.tensor(there), torch.tensor(back)

    def key_positions(self, span: int) -> Tensor:
        """[S, n] positions that hold all keys which the span's queries see.

        Behind a short span they run on, beyond `max_model_len` too: keys that no query sees.
        """
        n_keys = min(span - 1 + self._shape[1], self.end_pos)
        first = (self._first_pos - span + 1).clamp_min(0)
        return first.unsqueeze(1) + torch.arange(n_keys)

    def padded(self, x: Tensor) -> Tensor:
        """[T, ...] -> [S, Q, ...]"""
        if self._there is not None:
            x = x.index_select(0, self._there)
        return x.reshape(*self._shape, *x.shape[1:])

    def unpadded(self, x: Tensor) -> Tensor:
        """[S, Q, ...] -> [T, ...]"""
        x = x.flatten(0, 1)
        return x if self._there is None else x.index_select(0, self._back)


def read_weights(directory: Path) -> TargetWeights:
    """ValueError names the tensor that is missing, too many or of another shape."""
    stated = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    config = TargetConfig(**{**stated, "tap_layer_ids": tuple(stated["tap_layer_ids"])})
    tensors = load_file(directory / WEIGHTS_FILE)
    shapes = config.shapes()
    wrong = sorted(
        name
        for name in shapes.keys() | tensors.keys()
        if name not in tensors or tuple(tensors[name].shape) != shapes.get(name)
    )
    if wrong:
        raise ValueError(f"{directory / WEIGHTS_FILE}: {wrong[0]} is not as {CONFIG_FILE} says")
    return TargetWeights(config, tensors)
