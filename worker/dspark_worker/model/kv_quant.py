"""What a stored key/value vector loses in the cache format of the engine (model specification §7).

Both formats quantise to e4m3 with a power-of-two scale for each group and come back: the values are
those a cache read would give, in the dtype the model computes in. `v4_record_64` is what the live
Sparks do: the rotated components stay bf16 there, whatever the compute dtype, since that is how the
record holds them.
"""

from enum import Enum

import torch
from torch import Tensor

from dsparkctl.checkpoint.errors import CheckpointError

E4M3_MAX = 448.0
AMAX_MIN = 1e-4

_WITHOUT_SECOND_SIGN = ~0x4000
"""A negative code widens to two sign bits; the lower one is no part of the exponent."""


class KvQuant(Enum):
    """The formats by the names the operator gives them."""

    NONE = "none"
    MXFP8_32 = "mxfp8_32"
    V4_RECORD_64 = "v4_record_64"


def choose(name: str, head_dim: int, rope_dim: int) -> KvQuant:
    """Resolve `auto` and refuse a format whose groups do not divide the dims; `CheckpointError`."""
    still_dim = head_dim - rope_dim
    record_fits = still_dim > 0 and still_dim % 64 == 0
    if name == "auto":
        return KvQuant.V4_RECORD_64 if record_fits else KvQuant.NONE
    try:
        chosen = KvQuant(name)
    except ValueError:
        known = ", ".join(kind.value for kind in KvQuant)
        raise CheckpointError(f"kv-quant {name!r} is not known; use auto, {known}") from None
    if chosen is KvQuant.V4_RECORD_64 and not record_fits:
        raise CheckpointError(
            f"kv-quant v4_record_64: groups of 64 do not divide the {still_dim} unrotated"
            " components of a head; use none"
        )
    if chosen is KvQuant.MXFP8_32 and head_dim % 32:
        raise CheckpointError(
            f"kv-quant mxfp8_32: groups of 32 do not divide the {head_dim} components of a head;"
            " use none"
        )
    return chosen


def through_cache_(kv: Tensor, kind: KvQuant, rope_dim: int) -> Tensor:
    """`kv` [..., d] after rope becomes, in place, what a read of the cache returns."""
    if kind is KvQuant.MXFP8_32:
        _through_e4m3_(kv, 32)
    elif kind is KvQuant.V4_RECORD_64:
        _through_e4m3_(kv[..., :-rope_dim], 64)
        if kv.dtype != torch.bfloat16:
            turned = kv[..., -rope_dim:]
            turned.copy_(turned.to(torch.bfloat16))
    return kv


def _through_e4m3_(x: Tensor, group: int) -> None:
    groups = x.view(*x.shape[:-1], -1, group)
    wide = groups.float()
    amax = wide.abs().amax(-1, keepdim=True).clamp_min(AMAX_MIN)
    # ratio = m·2^e with m in [0.5, 1): ceil(log2) is e, but e - 1 at an exact power of two,
    # where a float logarithm may land on either side.
    mantissa, exponent = torch.frexp(amax / E4M3_MAX)
    exponent = exponent - (mantissa == 0.5).to(exponent.dtype)
    scale = torch.ldexp(torch.ones_like(amax), exponent)
    codes = (wide / scale).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    # Neither has an exponent to speak of: what is not finite must not become finite here (R29).
    groups.copy_(_values(codes).mul_(scale + (amax - amax)))


def _values(codes: Tensor) -> Tensor:
    """Finite e4m3 -> fp32, exactly: its bits are those of an fp16 number 2^8 times smaller.

    Ten times as fast on a CPU as converting, which goes value by value there.
    """
    bits = codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(7)
    return bits.bitwise_and_(_WITHOUT_SECOND_SIGN).view(torch.float16).float().mul_(256.0)
