"""The three codebooks: a 16-bit state is a number (EXL3 specification §4).

Computed, not stored. Every value is an fp16 number, so the fp32 table holds it exactly. Integer
arithmetic is modulo 2^32; the one rounding is from fp32 to fp16 (a detour over fp64 would round
twice).
"""

from functools import cache

import torch
from torch import Tensor

from dsparkctl.checkpoint.exl3 import MARKERS, Codebook

N_STATES = 1 << 16

_MUL1_SCALE = 0x1EEE
_MUL1_OFFSET = 0xC931
"""fp16 bits: 0.00676727… and -10.3828125."""


@cache
def table(codebook: Codebook, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`dtype` [65536]: the value of every state."""
    return values(codebook).to(device, dtype)


def values(codebook: Codebook) -> Tensor:
    """fp16 [65536] on the CPU."""
    state = torch.arange(N_STATES, dtype=torch.int64)
    if codebook is Codebook.MUL1:
        x = MARKERS["mul1"] * state
        byte_sum = (x & 0xFF) + (x >> 8 & 0xFF) + (x >> 16 & 0xFF) + (x >> 24 & 0xFF)
        line = _half(torch.tensor([_MUL1_SCALE, _MUL1_OFFSET]))
        return ((1024 + byte_sum).float() * line[0] + line[1]).to(torch.float16)
    x = MARKERS["mcg"] * state if codebook is Codebook.MCG else 89226354 * state + 64248484
    pair = x & 0x8FFF8FFF ^ 0x3B603B60
    return (_half(pair & 0xFFFF) + _half(pair >> 16 & 0xFFFF)).to(torch.float16)


def _half(bits: Tensor) -> Tensor:
    """fp16 bit patterns in integers -> fp32."""
    halves = bits.to(torch.int32).to(torch.uint16).view(torch.float16)
    return halves.float()
