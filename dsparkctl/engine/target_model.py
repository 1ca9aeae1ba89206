"""The mathematics of the tiny target: embeddings, layers, head, in whatever dtype its weights have.

Like DeepSeek's, the residual stream is C copies: each sub-layer reads a weighted sum of them and
writes its output to all, in other shares, while the copies mix. Here the weights of reading and
writing are the layer's own, not computed from the token. Attention has one key/value head; where
keys and values come from is the caller's: a cache when it runs (`target`), the batch itself in
training. A query sees itself and the keys of the `span - 1` positions before it, and position only
enters by rotation, so a text may grow to any length.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

Attend = Callable[[int, Tensor], Tensor]
"""(layer, [T, H + 2, d] queries, key and value, rotated) -> [T, H·d]."""


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """The target's shape, as target_config.json states it."""

    vocab_size: int
    hidden: int
    n_layers: int
    n_heads: int
    head_dim: int
    ffn_hidden: int
    n_streams: int
    """[C] copies of the residual stream"""
    rope_theta: float
    span: int
    """Positions that a query sees, its own included."""
    tap_layer_ids: tuple[int, ...]
    """Layers whose entering streams are tapped, 0-based."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of `target.safetensors`; inner matrices are [in, out], as they are used."""
        c, hidden = self.n_streams, self.hidden
        found: dict[str, tuple[int, ...]] = {
            "embed": (self.vocab_size, hidden),
            "head": (self.vocab_size, hidden),
            "pre": (c,),
        }
        for n in range(self.n_layers):
            for sub_layer in ("attn", "ffn"):
                at = f"layers.{n}.{sub_layer}"
                found |= {f"{at}.pre": (c,), f"{at}.post": (c,), f"{at}.comb": (c, c)}
            found[f"layers.{n}.attn.qkv"] = (hidden, (self.n_heads + 2) * self.head_dim)
            found[f"layers.{n}.attn.out"] = (self.n_heads * self.head_dim, hidden)
            found[f"layers.{n}.ffn.up"] = (hidden, 2 * self.ffn_hidden)
            found[f"layers.{n}.ffn.down"] = (self.ffn_hidden, hidden)
        return found


class SubLayer(NamedTuple):
    """How attention or feed-forward meets the streams [C, T·D]."""

    pre: Tensor
    """[C] shares of reading"""
    post: Tensor
    """[C] shares of writing"""
    comb: Tensor
    """[C, C]: stream `b` becomes Σ_a comb[b][a] · stream a"""
    into: Tensor
    """[D, ·]"""
    out: Tensor
    """[·, D]"""

    def read(self, streams: Tensor) -> Tensor:
        """[C, T·D] -> the sub-layer's projected input [T, ·]."""
        return unit(collapse(streams, self.pre, len(self.into))) @ self.into

    def write(self, y: Tensor, streams: Tensor) -> Tensor:
        """`y` [T, ·] before the output projection -> the next streams."""
        spread = torch.outer(self.post, (y @ self.out).flatten())
        return torch.addmm(spread, self.comb, streams)


class TargetModel(NamedTuple):
    """All weights, in one dtype."""

    config: TargetConfig
    embed: Tensor
    layers: tuple[tuple[SubLayer, SubLayer], ...]
    pre: Tensor
    head: Tensor

    def __call__(
        self, tokens: Tensor, turns: Tensor, attend: Attend
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """`tokens` int64 [T] and their `turns` -> logits [T, V] and taps, each [T, D].

        A tap is the mean of the copies that enter its layer.
        """
        c = self.config
        streams = self.embed[tokens].view(1, -1).expand(c.n_streams, -1)
        taps = {}
        for n, (attention, feed_forward) in enumerate(self.layers):
            if n in c.tap_layer_ids:
                taps[n] = streams.mean(0).view(-1, c.hidden)
            qkv = attention.read(streams).view(len(tokens), c.n_heads + 2, c.head_dim)
            streams = attention.write(attend(n, rotate(qkv, turns)), streams)
            gate, up = feed_forward.read(streams).chunk(2, dim=-1)
            streams = feed_forward.write(F.silu(gate) * up, streams)
        hidden = unit(collapse(streams, self.pre, c.hidden))
        return F.linear(hidden, self.head), tuple(taps[n] for n in c.tap_layer_ids)


def model_of(config: TargetConfig, weights: Mapping[str, Tensor]) -> TargetModel:
    """`weights` by the names of `TargetConfig.shapes`."""

    def sub_layer(at: str, into: str, out: str) -> SubLayer:
        names = (f"{at}.{name}" for name in ("pre", "post", "comb", into, out))
        return SubLayer(*(weights[name] for name in names))

    layers = tuple(
        (sub_layer(f"layers.{n}.attn", "qkv", "out"), sub_layer(f"layers.{n}.ffn", "up", "down"))
        for n in range(config.n_layers)
    )
    return TargetModel(config, weights["embed"], layers, weights["pre"], weights["head"])


def unit(x: Tensor) -> Tensor:
    """RMS norm without gains: the projections behind it have their own."""
    scale: Tensor = x.shape[-1] ** 0.5 / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * scale


def collapse(streams: Tensor, pre: Tensor, hidden: int) -> Tensor:
    """Σ_c pre[c]·stream c: [C, T·D] -> [T, D]."""
    return (pre.unsqueeze(0) @ streams).view(-1, hidden)


def turns_until(config: TargetConfig, n_positions: int, dtype: torch.dtype) -> Tensor:
    """Rotations of queries and key at each position, none of the value.

    Complex of `dtype` [n_positions, H + 2, d/2].
    """
    half = config.head_dim // 2
    frequencies = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(n_positions, dtype=torch.float64).outer(frequencies).to(dtype)
    turning = torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    return torch.cat(
        (turning.expand(-1, config.n_heads + 1, -1), torch.ones_like(turning)), dim=1
    ).contiguous()


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """[T, H + 2, d] by [T, H + 2, d/2], adjacent pairs."""
    pairs = torch.view_as_complex(x.reshape(*turns.shape, 2))
    return torch.view_as_real(pairs * turns).flatten(-2)


def unseen(query_pos: Tensor, key_pos: Tensor, span: int) -> Tensor:
    """Which keys a query must not see: `query_pos` [S, Q], `key_pos` [S, n] -> bool [S, Q, n]."""
    distance = query_pos.unsqueeze(2) - key_pos.unsqueeze(1)
    return (distance < 0) | (distance >= span)


def attention(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """`q` [S, Q, H, d], `keys` and `values` [S, n, d], `hidden` [S, Q·H, n] -> [S, Q, H·d].

    `hidden` is added to the scores: −∞ or 0. The scores of one query's heads stand together.
    """
    n_spans, n_queries, _, head_dim = q.shape
    scores = torch.baddbmm(
        hidden, q.reshape(n_spans, -1, head_dim), keys.transpose(1, 2), alpha=head_dim**-0.5
    )
    return torch.bmm(torch.softmax(scores, dim=-1), values).view(n_spans, n_queries, -1)


def mask(unseen_keys: Tensor, n_heads: int, dtype: torch.dtype) -> Tensor:
    """bool [S, Q, n] -> what `attention` adds to its scores, [S, Q·H, n]."""
    added = torch.zeros(unseen_keys.shape, dtype=dtype).masked_fill_(unseen_keys, -torch.inf)
    return added.repeat_interleave(n_heads, 1)
