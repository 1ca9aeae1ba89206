"""One draft layer, and the order in which its sub-layers read and write the streams (§5).

The V4.1 order: a sub-layer collapses the streams with the coefficients of the sub-layer *before*
it, and the last ones go to the head. Each coefficient set is computed from the streams as they
stand before its own sub-layer.
"""

from typing import NamedTuple

from torch import Tensor

from dspark_worker.model.attention import Attention, load_attention
from dspark_worker.model.experts import Experts, load_experts
from dspark_worker.model.kv_quant import KvQuant
from dspark_worker.model.norms import RmsNorm
from dspark_worker.model.streams import Mixer, collapse, load_mixer, spread
from dspark_worker.model.trace import Trace
from dspark_worker.model.weights import Weights
from dsparkctl.checkpoint.model_config import ModelConfig


class Context(NamedTuple):
    """What all layers of one forward share: b blocks of N queries over padded windows."""

    turns: Tensor
    """complex64 [b, N, r/2], the rotation at each query's position"""
    hidden: Tensor | None
    """bool [b, 1, n + N]: true where a key is padding; None when nothing is padded"""


class Block(NamedTuple):
    """Layer s."""

    attn_mixer: Mixer
    attn_norm: RmsNorm
    attention: Attention
    ffn_mixer: Mixer
    ffn_norm: RmsNorm
    experts: Experts

    def __call__(
        self, streams: Tensor, pre: Tensor, window: Tensor, context: Context, trace: Trace | None
    ) -> tuple[Tensor, Tensor]:
        """`streams` [b·N, C, D], `pre` [b·N, C], `window` [b, n, d] -> the next layer's two."""
        attn_mix = self.attn_mixer(streams)
        x = self.attn_norm(collapse(streams, pre))
        n_blocks, n_queries, _ = context.turns.shape
        y = self.attention(
            x.view(n_blocks, n_queries, -1), context.turns, window, context.hidden
        ).view_as(x)
        streams = spread(y, streams, attn_mix)

        ffn_mix = self.ffn_mixer(streams)
        y = self.experts(self.ffn_norm(collapse(streams, attn_mix.pre)), trace)
        return spread(y, streams, ffn_mix), ffn_mix.pre


def load_block(weights: Weights, layer: int, config: ModelConfig, kv_quant: KvQuant) -> Block:
    """Take every tensor of layer `layer`."""
    at = f"mtp.{layer}"
    return Block(
        attn_mixer=load_mixer(weights, f"{at}.hc_attn", config),
        attn_norm=weights.norm(f"{at}.attn_norm"),
        attention=load_attention(weights, f"{at}.attn", config, kv_quant),
        ffn_mixer=load_mixer(weights, f"{at}.hc_ffn", config),
        ffn_norm=weights.norm(f"{at}.ffn_norm"),
        experts=load_experts(weights, f"{at}.ffn", config),
    )
