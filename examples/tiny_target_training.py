"""Training of the small engine's target on the generated language (`dsparkctl.engine.prompts`).

Decides how the target's weights begin and what a batch is. The mathematics is the engine's own
(`target_model`), in float32 and over whole texts instead of a cache.
"""

import math
import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor

from dsparkctl.engine.prompts import documents
from dsparkctl.engine.target_model import (
    TargetConfig,
    attention,
    mask,
    model_of,
    turns_until,
    unseen,
)
from dsparkctl.engine.words import VOCABULARY

CONFIG = TargetConfig(
    vocab_size=len(VOCABULARY),
    hidden=128,
    n_layers=4,
    n_heads=4,
    head_dim=32,
    ffn_hidden=256,
    n_streams=4,
    rope_theta=10000.0,
    span=64,
    tap_layer_ids=(1, 2, 3),
)

Weights = dict[str, Tensor]


def train_target(
    config: TargetConfig, *, n_steps: int, batch: int, length: int, lr: float, seed: int
) -> Weights:
    """Weights by the names of `TargetConfig.shapes`, in float32 but every value a bf16."""
    weights = initial(config, torch.Generator().manual_seed(seed))
    optimiser = torch.optim.AdamW(groups(weights, decay=0.02), lr=lr, betas=(0.9, 0.98))
    texts = _batches(random.Random(f"target-{seed}"), batch, length)
    whole = WholeTexts(config, batch, length - 1)
    for step in range(n_steps):
        for group in optimiser.param_groups:
            group["lr"] = lr * schedule(step, n_steps)
        tokens = next(texts)
        logits, _ = whole(weights, tokens[:, :-1])
        loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(weights.values()), 1.0)
        optimiser.step()
        if step % 100 == 0 or step == n_steps - 1:
            right = (logits.argmax(-1) == tokens[:, 1:].flatten()).view(batch, -1)[:, 32:]
            print(f"target step {step} loss {loss.item():.3f} right {right.float().mean():.3f}")  # noqa: T201
    return {name: t.detach().bfloat16().float() for name, t in weights.items()}


class WholeTexts:
    """The target over texts of one length from position 0, without a cache."""

    def __init__(self, config: TargetConfig, n_texts: int, length: int) -> None:
        self._config = config
        self._shape = (n_texts, length)
        positions = torch.arange(length).unsqueeze(0)
        hidden = unseen(positions, positions, config.span)
        self._mask = mask(hidden, config.n_heads, torch.float32)
        self._turns = turns_until(config, length, torch.float32).repeat(n_texts, 1, 1)

    def __call__(self, weights: Weights, tokens: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """int64 [B, S] -> logits [B·S, V], taps [B·S, D] each."""
        n_heads = self._config.n_heads
        added = self._mask.expand(len(tokens), -1, -1)

        def attend(_: int, qkv: Tensor) -> Tensor:
            rows = qkv.view(*self._shape, *qkv.shape[1:])
            q, k, v = rows[:, :, :n_heads], rows[:, :, n_heads], rows[:, :, n_heads + 1]
            return attention(q, k, v, added).flatten(0, 1)

        return model_of(self._config, weights)(tokens.flatten(), self._turns, attend)


def initial(config: TargetConfig, generator: torch.Generator) -> Weights:
    """Copies that differ: each is written in shares of its own and mixes with the others."""
    weights: Weights = {}
    for name, shape in config.shapes().items():
        noise = torch.randn(shape, generator=generator)
        kind = name.rpartition(".")[2]
        if kind == "pre":
            weights[name] = 0.25 + 0.15 * noise
        elif kind == "post":
            weights[name] = 1.0 + 0.5 * noise
        elif kind == "comb":
            weights[name] = 0.7 * torch.eye(*shape) + 0.075 + 0.05 * noise
        elif kind in ("embed", "head"):
            weights[name] = noise * (0.5 if kind == "embed" else shape[1] ** -0.5)
        else:
            depth = (2 * config.n_layers) ** -0.5 if kind in ("out", "down") else 1.0
            weights[name] = noise * depth * shape[0] ** -0.5
    return {name: t.requires_grad_() for name, t in weights.items()}


def groups(weights: Weights, decay: float) -> list[dict[str, object]]:
    """Matrices decay, small parameters do not."""
    large = [t for t in weights.values() if t.numel() >= 1024]
    small = [t for t in weights.values() if t.numel() < 1024]
    return [{"params": large, "weight_decay": decay}, {"params": small, "weight_decay": 0.0}]


def schedule(step: int, n_steps: int) -> float:
    """A short warm-up, then a cosine down to a fiftieth."""
    warm = min(1.0, (step + 1) / 50)
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / n_steps)))


def _batches(chance: random.Random, batch: int, length: int) -> Iterator[Tensor]:
    texts = documents(chance)
    while True:
        yield torch.tensor([[next(text) for _ in range(length)] for text in _few(texts, batch)])


def _few(texts: Iterator[Iterator[int]], n: int) -> list[Iterator[int]]:
    return [next(texts) for _ in range(n)]
