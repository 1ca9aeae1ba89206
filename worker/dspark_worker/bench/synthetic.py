"""A drafter without a checkpoint: the right shapes, random numbers.

Decides how little memory that takes. Routed experts share the weights of a few, each too large for
a processor's caches, so that reading them costs what reading all of them would; the embedding
shares the head's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from dspark_worker.model import kv_quant
from dspark_worker.model.drafter import TorchDrafter
from dspark_worker.model.linear import GroupedLinear, Linear, PlainLinear
from dspark_worker.model.load import assemble
from dspark_worker.model.norms import RmsNorm
from dspark_worker.model.weights import Weights
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.model_config import ModelConfig
from dsparkctl.checkpoint.tensors import expected_tensors

SHARED_BYTES: Final = 512 << 20
"""Routed experts of a layer are all different up to this."""

_NOISE: Final = 1 << 16


class MadeUpWeights(Weights):
    """Hands out tensors by name as an open checkpoint does."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype
        self._eps = config.norm_eps
        self._shapes = {one.name: one.shape for one in expected_tensors(config)}
        self._n_experts = n_different_experts(config, dtype)
        generator = torch.Generator().manual_seed(7)
        self._noise = torch.randn(_NOISE, generator=generator)
        self._held: dict[tuple[str, torch.dtype], Tensor] = {}

    def matrix(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        name, dtype = self._shared(name), dtype or self.dtype
        held = self._held.get((name, dtype))
        if held is None:
            held = self._held[name, dtype] = self._make(name, dtype)
        return held

    def fp32(self, name: str) -> Tensor:
        return self.matrix(name, torch.float32)

    def linear(self, prefix: str, dtype: torch.dtype | None = None) -> Linear:
        return PlainLinear(self.matrix(f"{prefix}.weight", dtype))

    def grouped_linear(self, prefix: str, n_groups: int) -> GroupedLinear:
        weight = self.matrix(f"{prefix}.weight")
        return GroupedLinear(weight.view(n_groups, -1, weight.shape[1]))

    def norm(self, prefix: str) -> RmsNorm:
        return RmsNorm(self.fp32(f"{prefix}.weight"), self._eps)

    def _shared(self, name: str) -> str:
        if name == "embed.weight" and self.dtype == torch.float32:
            return "head.weight"
        parts = name.split(".")
        if "experts" in parts:
            at = parts.index("experts") + 1
            parts[at] = str(int(parts[at]) % self._n_experts)
        return ".".join(parts)

    def _make(self, name: str, dtype: torch.dtype) -> Tensor:
        """Noise of a weight's usual size; ones for a norm."""
        shape = self._shapes[name]
        made = torch.empty(shape, dtype=dtype, device=self.device)
        if len(shape) == 1:
            return made.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        noise = (self._noise * shape[-1] ** -0.5).to(self.device, dtype)
        flat = made.view(-1)
        for at in range(0, len(flat), _NOISE - 1):  # odd, so that rows are not alike
            part = flat[at : at + _NOISE - 1]
            part.copy_(noise[: len(part)])
        return made


def n_different_experts(config: ModelConfig, dtype: torch.dtype) -> int:
    one = 3 * config.hidden * config.expert_hidden * dtype.itemsize
    return max(1, min(config.n_experts, SHARED_BYTES // one))


def made_up_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """About what the weights will take."""
    sizes: Mapping[str, int] = {
        one.name: torch.Size(one.shape).numel() for one in expected_tensors(config)
    }
    experts = sum(n for name, n in sizes.items() if ".experts." in name)
    heads = sum(n for name, n in sizes.items() if name.startswith(("head.", "embed.")))
    others = sum(sizes.values()) - experts - heads
    kept = experts * n_different_experts(config, dtype) // config.n_experts + others
    own_embed = 0 if dtype == torch.float32 else heads // 2 * dtype.itemsize
    return kept * dtype.itemsize + heads // 2 * 4 + own_embed


def make_up(
    config: ModelConfig, *, device: str, dtype: str, kv_quant_name: str, max_slots: int
) -> TorchDrafter:
    """The drafter; CheckpointError, one line, where this machine cannot hold it."""
    where, kind = torch.device(device), getattr(torch, dtype)
    wanted, free = made_up_bytes(config, kind), _free_bytes()
    if where.type == "cpu" and free is not None and wanted > free:
        raise CheckpointError(
            f"a synthetic model of hidden {config.hidden} takes {wanted / 1e9:.1f} GB,"
            f" {free / 1e9:.1f} GB are free; try a smaller one"
        )
    quant = kv_quant.choose(kv_quant_name, config.head_dim, config.rope_dim)
    model = assemble(MadeUpWeights(config, where, kind), config, quant)
    return TorchDrafter(
        model, config, device=where, dtype=kind, kv_quant=quant, max_slots=max_slots
    )


def _free_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in lines)
    return int(values["MemAvailable"].split()[0]) << 10
