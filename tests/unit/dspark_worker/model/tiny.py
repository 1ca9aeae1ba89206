"""Tiny checkpoints and rows for the model's tests."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dspark_worker.drafter import Append, Draft, DraftRequest, Fault
from dspark_worker.model.drafter import TorchDrafter
from dspark_worker.model.load import load_drafter
from examples.make_tiny_checkpoint import Shape, write_checkpoint
from tests.unit.dspark_worker.model.reference import Array

SMALL = Shape(vocab=64, hidden=32, head_dim=32, window=8, experts=4, noise_id=63)
"""The smallest that still has every part, quick to write and to load."""

OTHER = Shape(
    vocab=80,
    hidden=32,
    heads=4,
    head_dim=24,
    rope_dim=8,
    o_groups=4,
    o_rank=8,
    layers=2,
    taps=2,
    block=4,
    window=5,
    norm_eps=1e-6,
    sinkhorn_iters=7,
    noise_id=0,
    experts=5,
    active=2,
)
"""Everything that the live model does not have (§11, acceptance cases)."""

FAR = 1 << 20


def write(
    directory: Path, shape: Shape = SMALL, *, release: bool = False, seed: int = 5
) -> dict[str, Tensor]:
    return write_checkpoint(directory, shape, release=release, seed=seed)


def load(
    directory: Path, *, dtype: str = "float32", kv_quant: str = "none", max_slots: int = 4
) -> TorchDrafter:
    return load_drafter(
        directory, device="cpu", dtype=dtype, kv_quant=kv_quant, max_slots=max_slots
    )


def edit(directory: Path, changes: dict[str, Tensor | None]) -> None:
    """Replace, add, or (None) remove tensors of `model.safetensors`."""
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, directory / "model.safetensors")


def float64(tensors: dict[str, Tensor]) -> dict[str, Array]:
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


def make_rows(drafter: TorchDrafter, n_rows: int, seed: int = 0) -> Tensor:
    """bf16 [n, T·D]"""
    generator = torch.Generator().manual_seed(seed)
    width = drafter.config.n_taps * drafter.config.hidden
    return torch.randn(n_rows, width, generator=generator).to(torch.bfloat16)


def part(slot: int, first_pos: int, rows: Tensor) -> Append:
    data = rows.contiguous().view(torch.uint8).numpy().tobytes()
    return Append(slot, first_pos, len(rows), memoryview(data))


def request(
    slot: int, lo_pos: int, anchor_pos: int, token: int, n_out: int = 0, *, of: TorchDrafter
) -> DraftRequest:
    return DraftRequest(slot, lo_pos, anchor_pos, token, n_out or of.config.num_spec)


def draft(
    drafter: TorchDrafter, requests: Sequence[DraftRequest], max_model_len: int = FAR
) -> list[Draft]:
    """Drafts that must not be faults."""
    answers = drafter.draft(requests, max_model_len=max_model_len, want_margin=True)
    drafts = [answer for answer in answers if isinstance(answer, Draft)]
    faults = [answer for answer in answers if isinstance(answer, Fault)]
    assert not faults, faults
    return drafts


def hidden_of(drafter: TorchDrafter, one: DraftRequest, max_model_len: int = FAR) -> Tensor:
    """[N, D] before the final norm."""
    seen: list[Tensor] = []
    drafter.trace = lambda name, value: (
        seen.append(value.clone()) if name == "head_hidden" else None
    )
    draft(drafter, [one], max_model_len)
    drafter.trace = None
    return seen[0]


def close(mine: Sequence[float], theirs: Sequence[float], tolerance: float) -> bool:
    return all(abs(a - b) <= tolerance for a, b in zip(mine, theirs, strict=True))
