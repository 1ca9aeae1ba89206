"""The C residual streams and how a sub-layer reads and writes them (mHC; specification §5.1).

Three coefficients sets are computed from the streams before a sub-layer: `pre` (how the *next*
sub-layer collapses them, V4.1), `post` (how the output is spread) and `comb` (how they mix, made
doubly stochastic by Sinkhorn's iterations). All in fp32; `spread` rounds once.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from dspark_worker.model.weights import Weights
from dsparkctl.checkpoint.model_config import ModelConfig


class Mixing(NamedTuple):
    """Coefficients of t tokens, fp32."""

    pre: Tensor
    """[t, C]"""
    post: Tensor
    """[t, C]"""
    comb: Tensor
    """[t, C, C]: M[a][b] takes stream a into stream b"""


class Mixer(NamedTuple):
    """MIX of one sub-layer."""

    fn: Tensor
    """fp32 [(2+C)C, C·D]"""
    base: Tensor
    """fp32 [(2+C)C]"""
    scale: Tensor
    """fp32 [3]: of pre, post and comb. A parameter, no quantisation scale (pitfall 15)."""
    n_streams: int
    iters: int
    norm_eps: float
    hc_eps: float

    def __call__(self, streams: Tensor) -> Mixing:
        """[t, C, D] -> coefficients; one RMS over all C·D components."""
        flat = streams.flatten(1).float()
        rms = torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.norm_eps)
        return self.coefficients(F.linear(flat, self.fn) * rms)

    def coefficients(self, u: Tensor) -> Mixing:
        """`u` fp32 [t, (2+C)C], already scaled by its RMS."""
        c = self.n_streams
        pre = torch.sigmoid(u[:, :c] * self.scale[0] + self.base[:c]) + self.hc_eps
        post = 2 * torch.sigmoid(u[:, c : 2 * c] * self.scale[1] + self.base[c : 2 * c])
        logits = u[:, 2 * c :] * self.scale[2] + self.base[2 * c :]
        return Mixing(pre, post, sinkhorn(logits.view(-1, c, c), self.iters, self.hc_eps))


def sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """fp32 [t, C, C] -> nearly doubly stochastic, ending on columns."""
    # Some 40 tiny steps per sub-layer: in place, and with `small` made once, they cost half.
    small = torch.full((), eps, device=logits.device)
    m = torch.softmax(logits, dim=-1).add_(small)
    m.div_(m.sum(-2, keepdim=True).add_(small))
    for _ in range(iters - 1):
        m.div_(m.sum(-1, keepdim=True).add_(small))
        m.div_(m.sum(-2, keepdim=True).add_(small))
    return m


def load_mixer(weights: Weights, prefix: str, config: ModelConfig) -> Mixer:
    """`prefix` is `mtp.<s>.hc_attn` or `mtp.<s>.hc_ffn`."""
    return Mixer(
        weights.fp32(f"{prefix}_fn"),
        weights.fp32(f"{prefix}_base"),
        weights.fp32(f"{prefix}_scale"),
        config.n_streams,
        config.sinkhorn_iters,
        config.norm_eps,
        config.hc_eps,
    )


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """Σ_c pre[c]·X[c] in fp32, then the streams' dtype: [t, C, D], [t, C] -> [t, D]."""
    return torch.bmm(pre.unsqueeze(1), streams.float()).squeeze(1).to(streams.dtype)


def spread(y: Tensor, streams: Tensor, mixing: Mixing) -> Tensor:
    """POST: X'[b] = post[b]·y + Σ_a M[a][b]·X[a], rounded once: [t, D], [t, C, D] -> [t, C, D]."""
    kept = torch.bmm(mixing.comb.transpose(1, 2), streams.float())
    return torch.addcmul(kept, mixing.post.unsqueeze(-1), y.float().unsqueeze(1)).to(streams.dtype)
