"""From the last hidden states to drafts: base logits, the Markov chain, confidence (§6).

Only the chain is sequential: every token is drafted under the one before it. It ends, and the
confidence with it, at the largest `n_out` of the STEP. All in fp32; of equal logits the lowest id
wins.

Positions below `n_out` must be bit-identical to those of a full block (§6.3 of the contract), and a
matrix product rounds by its number of rows. So the products here keep the shape of the whole block,
whatever `n_out` says: what they cost is reading their weights, once either way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dspark_worker.model import markov
from dspark_worker.model.linear import Linear
from dspark_worker.model.markov import MarkovCache, make_cache
from dspark_worker.model.norms import RmsNorm
from dspark_worker.model.scratch import Scratch
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


@dataclass(frozen=True, slots=True)
class Heads:
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
    cache: MarkovCache | None = None
    scratch: Scratch = field(default_factory=Scratch, repr=False)

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
        shape = (len(base), base.shape[-1])
        logits = self.scratch.get("logits", shape, torch.float32, base.device)
        given, ids, tops, margins = [], [], [], []
        for step in range(n_steps):
            embedded = self.markov_embed[previous]
            bias = markov.bias(previous, embedded, self.markov_head, self.cache, self.scratch)
            torch.add(base[:, step], bias, out=logits)
            top, previous = best_of(logits)
            given.append(embedded)
            ids.append(previous)
            tops.append(top)
            if want_margin:
                margins.append(top - second_best(logits, previous))
            if trace is not None:
                trace("markov_bias", bias)
        conf_logit = self.conf_logits(hidden[:, :n_steps], torch.stack(given, 1))
        if trace is not None:
            trace("base_logits", base)
            trace("conf_logit", conf_logit)
        top = torch.stack(tops, 1)
        margin = torch.stack(margins, 1) if want_margin else torch.zeros_like(top)
        return Sampled(torch.stack(ids, 1), conf_logit, top, margin)

    def conf_logits(self, hidden: Tensor, given: Tensor) -> Tensor:
        """`hidden` [b, n, D] and the conditioning tokens' rows, fp32 [b, n, m] -> fp32 [b, n]."""
        seen = torch.cat((hidden.float(), given), dim=-1)
        return (seen * self.confidence).sum(-1)


def best_of(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row and where it stands first: [b, V] -> [b], int64 [b]; NaN is largest.

    On a CPU torch goes value by value for the place, where numpy goes by vectors.
    """
    if logits.device.type != "cpu":
        return logits.max(-1)[:2]
    places = torch.from_numpy(logits.numpy().argmax(-1))
    return logits.gather(1, places.unsqueeze(1)).squeeze(1), places


def second_best(logits: Tensor, places: Tensor) -> Tensor:
    """The largest of each row but the one at `places`, which is no longer there afterwards."""
    return logits.scatter_(1, places.unsqueeze(1), -torch.inf).amax(-1)


def load_heads(
    weights: Weights,
    config: ModelConfig,
    markov_tokens: Sequence[int] = (),
    markov_bytes: int = 0,
) -> Heads:
    """The heads hang on the last layer's names; the big head is the target's own.

    The Markov bias of `markov_tokens` is kept, in `markov_bytes` at most.
    """
    at = f"mtp.{config.n_layers - 1}"
    embed = weights.fp32(f"{at}.markov_head.embed.weight")
    head = weights.fp32(f"{at}.markov_head.head.weight")
    return Heads(
        norm=weights.norm(f"{at}.norm"),
        head=weights.linear("head", torch.float32),
        markov_embed=embed,
        markov_head=head,
        confidence=weights.fp32(f"{at}.confidence_head.proj.weight").flatten(),
        cache=make_cache(embed, head, markov_tokens, max_bytes=markov_bytes),
    )
