"""EXL3 layers made up for tests: every bit string is a legal trellis."""

import torch
from torch import Tensor

from dspark_worker.model.exl3.packed import Packed
from dsparkctl.checkpoint.exl3 import MARKERS, Codebook

CPU = torch.device("cpu")


def trellis(n_in: int, n_out: int, n_words: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (n_in // 16, n_out // 16, n_words)
    return torch.randint(-32768, 32768, shape, generator=generator, dtype=torch.int16)


def signs_of(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 1.0 - 2.0 * torch.randint(0, 2, (n,), generator=generator)


def packed(
    n_in: int = 128,
    n_out: int = 128,
    bits: float = 4,
    codebook: Codebook = Codebook.MUL1,
    seed: int = 0,
) -> Packed:
    """Weights of about 1/√in."""
    scale = n_in**-0.5
    return Packed(
        trellis(n_in, n_out, round(16 * bits), seed),
        codebook,
        signs_of(n_in, seed + 1) * 1.5,
        signs_of(n_out, seed + 2) * scale,
        None,
    )


def tensors(n_in: int, n_out: int, k: int, *, seed: int, scale: float) -> dict[str, Tensor]:
    """suffix -> tensor as a file holds it, of mul1."""
    return {
        "trellis": trellis(n_in, n_out, 16 * k, seed),
        "suh": signs_of(n_in, seed + 1).half(),
        "svh": (signs_of(n_out, seed + 2) * scale).half(),
        "mul1": torch.tensor(MARKERS["mul1"] - (1 << 32), dtype=torch.int32),
    }
