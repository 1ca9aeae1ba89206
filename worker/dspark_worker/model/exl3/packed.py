"""One EXL3 layer in memory, packed (EXL3 specification §1, §5, §6).

W = diag(suh) · H · D · H · diag(svh), D being the decoded trellis. Whoever multiplies keeps W
apart: `linear` turns activations instead. `dense` is for those who need W itself.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dspark_worker.model.exl3.hadamard import transformed
from dspark_worker.model.exl3.tiles import SIDE, decode, in_order
from dsparkctl.checkpoint.exl3 import BLOCK, Codebook

_DENSE_COLUMNS = 8 * BLOCK


class Packed(NamedTuple):
    """Sides are stored ones, multiples of 128."""

    trellis: Tensor
    """int16 [in/16, out/16, T]"""
    codebook: Codebook
    suh: Tensor
    """fp32 [in]: sign and scale of each input"""
    svh: Tensor
    """fp32 [out]: of each output, applied last"""
    bias: Tensor | None
    """fp32 [out]"""

    @property
    def n_in(self) -> int:
        return self.trellis.shape[0] * SIDE

    @property
    def n_out(self) -> int:
        return self.trellis.shape[1] * SIDE

    @property
    def n_weights(self) -> int:
        return self.n_in * self.n_out

    def columns(self, start: int, stop: int) -> "Packed":
        """The layer of the outputs `start .. stop - 1`, multiples of 128; a view."""
        bias = None if self.bias is None else self.bias[start:stop]
        trellis = self.trellis[:, start // SIDE : stop // SIDE]
        return self._replace(trellis=trellis, svh=self.svh[start:stop], bias=bias)

    def decoded(self, out: Tensor) -> Tensor:
        """D into `out` [in, out], contiguous; its columns are as `tiles.decode` leaves them."""
        return decode(self.trellis, self.codebook, out)

    def inner(self, dtype: torch.dtype = torch.float16) -> Tensor:
        """D, [in, out], columns in their order; exact in fp16 and fp32."""
        space = torch.empty(self.n_in, self.n_out, dtype=dtype, device=self.trellis.device)
        return in_order(self.decoded(space)).contiguous()

    def dense(self) -> Tensor:
        """W, fp32 [in, out], without the bias: computed in fp64, rounded once."""
        found = torch.empty(self.n_in, self.n_out, device=self.trellis.device)
        for start in range(0, self.n_out, _DENSE_COLUMNS):
            part = self.columns(start, min(start + _DENSE_COLUMNS, self.n_out))
            inner = part.inner(torch.float32).double()
            turned = transformed(transformed(inner.T).T * part.suh.double().unsqueeze(1))
            found[:, start : start + part.n_out] = turned * part.svh.double()
        return found


def signs(packed: Tensor) -> Tensor:
    """Legacy int16 [n/16] -> fp32 [n]: bit b of a word is the sign of its element b, 1 being minus
    (§6)."""
    bits = packed.to(torch.int32).unsqueeze(-1) >> torch.arange(SIDE, dtype=torch.int32)
    return (1 - 2 * (bits & 1)).flatten(-2).float()
