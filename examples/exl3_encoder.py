"""An offline encoder of EXL3 layers, for fixtures: exact Viterbi over all 65,536 states of a tile.

It makes whole-number K with any codebook, at some 20 ms a tile of 256 weights. Every tile is a
ring: a first, short search over the seam settles the state there, a second one runs once around.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dspark_worker.model.exl3.codebook import values
from dspark_worker.model.exl3.hadamard import transformed
from dspark_worker.model.exl3.tiles import AREA, SIDE, tile_order
from dsparkctl.checkpoint.exl3 import BLOCK, MARKERS, Codebook

N_SEAM = 24
"""Codes on each side of the seam that settle the state there; at K 1, 16 of them share bits."""

_STATE_BITS = 16
_MARKER_DTYPE = torch.int32


class Encoded(NamedTuple):
    """One layer's tensors and how well they stand for the weight."""

    tensors: dict[str, Tensor]
    """suffix -> tensor, as a file holds it"""
    nmse: float
    """Of the decoded tiles against what was to be coded."""


def encode(weight: Tensor, k: int, codebook: Codebook, seed: int) -> Encoded:
    """`weight` fp32 [out, in] as a checkpoint has it; sides are padded to 128 with zeros."""
    generator = torch.Generator().manual_seed(seed)
    n_out, n_in = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -n_in % BLOCK, 0, -n_out % BLOCK)).T.double()
    table = values(codebook).float()

    def signs(n: int) -> Tensor:
        return 1.0 - 2.0 * torch.randint(0, 2, (n,), generator=generator)

    suh = signs(padded.shape[0]).to(torch.float16)
    spread = padded.square().mean(0).sqrt() / table.std()
    svh = (signs(padded.shape[1]) * spread.clamp(min=2.0**-14)).to(torch.float16)
    turned = transformed((padded / suh.double().unsqueeze(1)).T).T
    aims = transformed(turned / svh.double()).float()

    tiles = aims.unfold(0, SIDE, SIDE).unfold(1, SIDE, SIDE)
    streams = tiles.reshape(*tiles.shape[:2], AREA)[..., torch.tensor(tile_order())]
    states = torch.stack([search_ring(table, k, stream) for stream in streams.flatten(0, 1)])
    error = (table[states] - streams.flatten(0, 1)).square().mean() / aims.square().mean()
    tensors = {
        "trellis": _packed(states, k).view(*streams.shape[:2], SIDE * k),
        "suh": suh,
        "svh": svh,
    }
    if codebook is not Codebook.THREE_INST:
        marker = torch.tensor(MARKERS[codebook.value], dtype=torch.int64)
        tensors[codebook.value] = (marker - (1 << 32)).to(_MARKER_DTYPE)
    return Encoded(tensors, float(error))


def search_ring(table: Tensor, k: int, aims: Tensor) -> Tensor:
    """`table` fp32 [65536], `aims` fp32 [256] in stream order -> int64 [256], the cheapest states;
    the last one leads into the first."""
    search = _Search(table, k)
    around = torch.cat((aims[-N_SEAM:], aims[:N_SEAM]))
    seam = int(search.path(around, None)[N_SEAM - 1])
    return search.path(aims, seam)


class _Search:
    """The cheapest path of states along a stream of aims.

    Of a step's costs only the least over the bits that fall out is kept: [2^(16-K)] a code. The
    path is found again from those on the way back.
    """

    def __init__(self, table: Tensor, k: int) -> None:
        self._k = k
        self._n_fresh = 1 << k
        self._n_old = 1 << (_STATE_BITS - k)
        self._table = table
        self._squares = table.square()

    def path(self, aims: Tensor, seam: int | None) -> Tensor:
        """From any state to any, or from `seam` to `seam`."""
        cost = torch.zeros(1 << _STATE_BITS)
        if seam is not None:
            cost = torch.full_like(cost, torch.inf)
            cost[seam] = 0
        least = []
        for aim in aims.tolist():
            kept = cost.view(self._n_fresh, self._n_old).amin(0)
            least.append(kept)
            cost = torch.add(self._squares, self._table, alpha=-2 * aim)
            cost.view(self._n_old, self._n_fresh).add_(kept.unsqueeze(1))
        state = int(cost.argmin()) if seam is None else seam
        states = [state]
        for step in range(len(aims) - 1, 0, -1):
            state = self._before(state, least[step - 1], float(aims[step - 1]))
            states.append(state)
        return torch.tensor(states[::-1])

    def _before(self, state: int, least: Tensor, aim: float) -> int:
        """The cheapest state that leads to `state`; `least` and `aim` are those of its own step."""
        dropped = torch.arange(self._n_fresh) << (_STATE_BITS - self._k)
        candidates = dropped | state >> self._k
        cost = self._squares[candidates] - 2 * aim * self._table[candidates]
        return int(candidates[(cost + least[candidates >> self._k]).argmin()])


def _packed(states: Tensor, k: int) -> Tensor:
    """int64 [tiles, 256] -> int16 [tiles, 16·K]: the fresh bits of every code, a word's two halves
    exchanged."""
    shifts = torch.arange(k - 1, -1, -1)
    bits = (states.unsqueeze(-1) >> shifts & 1).flatten(1).view(len(states), -1, SIDE)
    words = (bits << torch.arange(SIDE - 1, -1, -1)).sum(-1)
    halves = words.view(len(states), -1, 2).flip(-1).flatten(1)
    return halves.to(torch.int32).to(torch.uint16).view(torch.int16)
