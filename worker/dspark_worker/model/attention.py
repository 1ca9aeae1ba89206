"""Attention of one draft layer: the block over the window and itself (specification §5.3).

Every query sees the whole window and the whole block: one window anchored to the block, nothing
causal inside it (pitfalls 4 and 6 of §13). The single KV head's vector is key and value at once.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dspark_worker.model.kv_quant import KvQuant, through_cache_
from dspark_worker.model.linear import Linear
from dspark_worker.model.norms import RmsNorm
from dspark_worker.model.rope import rotate_
from dspark_worker.model.weights import Weights
from dsparkctl.checkpoint.model_config import ModelConfig


class Attention(NamedTuple):
    """ATTN of one layer."""

    wq_a: Linear
    q_norm: RmsNorm
    wq_b: Linear
    wkv: Linear
    kv_norm: RmsNorm
    sink: Tensor
    """fp32 [H]"""
    wo_a: Linear
    """[t, G, H·d/G] -> [t, G, O], a weight for each group"""
    wo_b: Linear
    n_heads: int
    rope_dim: int
    n_groups: int
    kv_quant: KvQuant

    def kv(self, x: Tensor, turns: Tensor) -> Tensor:
        """Key/value vectors [..., D] -> [..., d] as the cache gives them, at `turns` [..., r/2]."""
        turned = rotate_(self.kv_norm(self.wkv(x)), turns)
        return through_cache_(turned, self.kv_quant, self.rope_dim)

    def __call__(self, x: Tensor, turns: Tensor, window: Tensor, hidden: Tensor | None) -> Tensor:
        """[b, N, D] normed input, `turns` [b, N, r/2], `window` [b, n, d] -> [b, N, D].

        `hidden` [b, 1, n + N] is true where a key is only padding; None when no window is padded.
        """
        n_blocks, n_queries, _ = x.shape
        q = self.wq_b(self.q_norm(self.wq_a(x)))
        q = q.view(n_blocks, n_queries, self.n_heads, -1)
        q = rotate_(q, turns.unsqueeze(2))
        keys = torch.cat((window, self.kv(x, turns)), dim=1)
        o = self.attend(q.flatten(1, 2), keys, hidden)
        o = rotate_(o.view_as(q), turns.unsqueeze(2).conj())
        grouped = o.reshape(n_blocks * n_queries, self.n_groups, -1)
        return self.wo_b(self.wo_a(grouped).flatten(1)).view_as(x)

    def attend(self, q: Tensor, keys: Tensor, hidden: Tensor | None) -> Tensor:
        """`q` [b, N·H, d] heads innermost, `keys` [b, s, d] -> [b, N·H, d] in q's dtype.

        The sink only enters the denominator. What meets the values is the *unnormalised* weight,
        rounded to the compute dtype; the denominator keeps fp32.
        """
        wide = keys.float()
        scores = torch.bmm(q.float(), wide.transpose(1, 2)) * q.shape[-1] ** -0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        top = scores.amax(-1, keepdim=True)
        weights = torch.exp(scores - top)
        sink = self.sink.repeat(q.shape[1] // self.n_heads).unsqueeze(-1)
        total = weights.sum(-1, keepdim=True) + torch.exp(sink - top)
        return (torch.bmm(weights.to(q.dtype).float(), wide) / total).to(q.dtype)


def load_attention(
    weights: Weights, prefix: str, config: ModelConfig, kv_quant: KvQuant
) -> Attention:
    """`prefix` is `mtp.<s>.attn`."""
    return Attention(
        wq_a=weights.linear(f"{prefix}.wq_a"),
        q_norm=weights.norm(f"{prefix}.q_norm"),
        wq_b=weights.linear(f"{prefix}.wq_b"),
        wkv=weights.linear(f"{prefix}.wkv"),
        kv_norm=weights.norm(f"{prefix}.kv_norm"),
        sink=weights.fp32(f"{prefix}.attn_sink"),
        wo_a=weights.grouped_linear(f"{prefix}.wo_a", config.o_groups),
        wo_b=weights.linear(f"{prefix}.wo_b"),
        n_heads=config.n_heads,
        rope_dim=config.rope_dim,
        n_groups=config.o_groups,
        kv_quant=kv_quant,
    )
