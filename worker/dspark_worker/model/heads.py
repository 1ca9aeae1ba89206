"""From the last hidden states to drafts: base logits, the Markov chain, confidence (§6).

Only the chain is sequential: every token is drafted under the one before it. It ends, and the
confidence with it, at the largest `n_out` of the STEP. All in fp32; of equal logits the lowest id
wins.

Positions below `n_out` must be bit-identical to those of a full block (§6.3 of the contract), and a
matrix product rounds by its number of rows. So the products here keep the shape of the whole block,
whatever `n_out` says: what they cost is reading their weights, once either way.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from dspark_worker.model.linear import Linear
from dspark_worker.model.norms import RmsNorm
from dspark_worker.model.trace import Trace
from dspark_worker.model.weights import Weights
from dsparkctl.checkpoint.model_config import ModelConfig


class Sampled(NamedTuple):
    """What was drafted for b requests in the first `n_steps` positions of each block."""

    ids: Tensor
    """int64 [b, n_steps]"""
    conf_logit: Tensor
    """fp32 [b, n_steps]; not finite when the hidden state is not"""
    top: Tensor
    """fp32 [b, n_steps], the winning logit: not finite when any logit is NaN or one is +inf"""
    margin: Tensor
    """fp32 [b, n_steps], top1 - top2; zeros where nobody asked"""


class Heads(NamedTuple):
    """Head, Markov head and confidence head, all fp32."""

    norm: RmsNorm
    head: Linear
    """fp32 [..., D] -> fp32 [..., V]"""
    markov_embed: Tensor
    """[V, m]"""
    markov_head: Tensor
    """[V, m]"""
    confidence: Tensor
    """[D + m]"""

    def base_logits(self, hidden: Tensor) -> Tensor:
        """`hidden` [b, N, D] before the final norm -> fp32 [b, N, V]; it depends on no draft."""
        return self.head(self.norm(hidden).float())

    def sample(
        self,
        base: Tensor,
        hidden: Tensor,
        anchors: Tensor,
        n_steps: int,
        *,
        want_margin: bool,
        trace: Trace | None = None,
    ) -> Sampled:
        """Draft greedily from `base` fp32 [b, N, V] and `hidden` [b, N, D]; `anchors` int64 [b].

        The confidence of a step looks at the token that conditioned it, not at its draft.
        """
        previous = anchors
        given, ids, tops, margins = [], [], [], []
        for step in range(n_steps):
            embedded = self.markov_embed[previous]
            bias = F.linear(embedded, self.markov_head)
            logits = base[:, step] + bias
            top, previous = logits.max(-1)
            given.append(embedded)
            ids.append(previous)
            tops.append(top)
            if want_margin:
                best = logits.topk(2).values
                margins.append(best[:, 0] - best[:, 1])
            if trace is not None:
                trace("markov_bias", bias)
        seen = torch.cat((hidden[:, :n_steps].float(), torch.stack(given, 1)), dim=-1)
        conf_logit = (seen * self.confidence).sum(-1)
        if trace is not None:
            trace("base_logits", base)
            trace("conf_logit", conf_logit)
        top = torch.stack(tops, 1)
        margin = torch.stack(margins, 1) if want_margin else torch.zeros_like(top)
        return Sampled(torch.stack(ids, 1), conf_logit, top, margin)


def load_heads(weights: Weights, config: ModelConfig) -> Heads:
    """The heads hang on the last layer's names; the big head is the target's own."""
    at = f"mtp.{config.n_layers - 1}"
    return Heads(
        norm=weights.norm(f"{at}.norm"),
        head=weights.linear("head", torch.float32),
        markov_embed=weights.fp32(f"{at}.markov_head.embed.weight"),
        markov_head=weights.fp32(f"{at}.markov_head.head.weight"),
        confidence=weights.fp32(f"{at}.confidence_head.proj.weight").flatten(),
    )
