"""Release formats back to numbers: fp8 tiles and packed fp4 (model specification §2).

Both give fp32 tensors whose every value is exact: a code of three or one mantissa bits times a
power of two. The dtype that the model computes in holds them exactly too, bf16 included.
"""

import torch
from torch import Tensor

TILE = 32

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def fp8_tiles(codes: Tensor, scale: Tensor) -> Tensor:
    """`codes` e4m3 [out, in] × `scale` e8m0 [⌈out/32⌉, ⌈in/32⌉] -> fp32 [out, in].

    The tiles of the last row and column may be cut short.
    """
    n_out, n_in = codes.shape
    factors = scale.to(torch.float32)
    factors = factors.repeat_interleave(TILE, 0)[:n_out].repeat_interleave(TILE, 1)[:, :n_in]
    return codes.to(torch.float32) * factors


def fp4_packed(packed: Tensor, scale: Tensor) -> Tensor:
    """`packed` int8 [out, in/2] × `scale` e8m0 [out, in/32] -> fp32 [out, in].

    The low nibble is the even input; bit 3 of a nibble is the sign.
    """
    n_out, n_bytes = packed.shape
    table = torch.tensor(_E2M1 + tuple(-value for value in _E2M1), device=packed.device)
    byte = packed.view(torch.uint8).to(torch.int32)
    values = table[torch.stack((byte & 0xF, byte >> 4), dim=-1)]
    groups = values.view(n_out, 2 * n_bytes // TILE, TILE)
    return (groups * scale.to(torch.float32).unsqueeze(-1)).view(n_out, 2 * n_bytes)
