"""The Markov bias of a token, by product or from rows kept since loading (specification §6, §10).

Decides what makes the two the same to the last bit: a matrix product rounds by its shape, so every
product has the same number of rows, whoever asks and however many ask at once; the rows that are
kept came out of it too. The cache is therefore a pure speed-up, and is checked to be one when it is
made.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dspark_worker.model.scratch import Scratch

log = logging.getLogger(__name__)

_ROWS = {"cpu": 2}
"""Rows of one product: on a CPU two cost what one does, reading the weights."""
_ROWS_ELSEWHERE = 4

_BUILD_ROWS = 64
_CHECKED = 8


class MarkovCache(NamedTuple):
    """Bias rows of some tokens."""

    places: Tensor
    """int32 [V]: the token's row, -1 where there is none"""
    rows: Tensor
    """fp32 [n, V]"""

    @property
    def n_bytes(self) -> int:
        return self.rows.nbytes + self.places.nbytes


def product(embedded: Tensor, head: Tensor, scratch: Scratch) -> Tensor:
    """`embedded` fp32 [b, m] · `head` fp32 [V, m]ᵀ -> [b, V], in scratch until the next product."""
    n_rows = _ROWS.get(head.device.type, _ROWS_ELSEWHERE)
    n_asked, rank = embedded.shape
    n_padded = -(-n_asked // n_rows) * n_rows
    out = scratch.get("markov_bias", (n_padded, head.shape[0]), torch.float32, head.device)
    if n_padded != n_asked:
        padded = scratch.get("markov_embedded", (n_padded, rank), torch.float32, head.device)
        padded[:n_asked] = embedded
        padded[n_asked:] = 0
        embedded = padded
    turned = head.t()
    for at in range(0, n_padded, n_rows):
        torch.mm(embedded[at : at + n_rows], turned, out=out[at : at + n_rows])
    return out[:n_asked]


def bias(
    previous: Tensor, embedded: Tensor, head: Tensor, cache: MarkovCache | None, scratch: Scratch
) -> Tensor:
    """The bias [b, V] that `previous` int64 [b] puts on the next token; lives until the next one.

    `embedded` are the rows of these tokens in the embedding. Kept rows are read, the others
    multiplied out.
    """
    if cache is None:
        return product(embedded, head, scratch)
    places = cache.places[previous].tolist()
    missing = [n for n, place in enumerate(places) if place < 0]
    if len(missing) == len(places):
        return product(embedded, head, scratch)
    shape = (len(places), head.shape[0])
    out = scratch.get("markov_rows", shape, torch.float32, head.device)
    for n, place in enumerate(places):
        if place >= 0:
            out[n] = cache.rows[place]
    if missing:
        asked = torch.tensor(missing, device=head.device)
        out[asked] = product(embedded[asked], head, scratch)
    return out


def make_cache(
    embed: Tensor, head: Tensor, tokens: Sequence[int], *, max_bytes: int
) -> MarkovCache | None:
    """Rows of `tokens`, as many of the first as `max_bytes` hold; None where there is no use in it.

    `embed` and `head` are fp32 [V, m]; ids are unique and below V.
    """
    n_vocab = len(head)
    fitting = max(0, (max_bytes - 4 * n_vocab) // (4 * n_vocab))
    kept = list(tokens[:fitting])
    if len(kept) < len(tokens):
        log.warning(
            "markov cache: %d of %d rows fit into %d MiB (markov_cache_mb); the rest is multiplied",
            *(len(kept), len(tokens), max_bytes >> 20),
        )
    if not kept:
        return None
    ids = torch.tensor(kept, device=head.device)
    try:
        rows = torch.empty(len(kept), n_vocab, device=head.device)
    except (MemoryError, RuntimeError):
        log.warning("markov cache: no memory for %d rows; every bias is multiplied", len(kept))
        return None
    scratch = Scratch()
    for at in range(0, len(kept), _BUILD_ROWS):
        part = slice(at, at + _BUILD_ROWS)
        rows[part] = product(embed[ids[part]], head, scratch)
    place_of = torch.full((n_vocab,), -1, dtype=torch.int32, device=head.device)
    place_of[ids] = torch.arange(len(kept), dtype=torch.int32, device=head.device)
    cache = MarkovCache(place_of, rows)
    return cache if _is_exact(cache, embed, head, kept) else None


def _is_exact(cache: MarkovCache, embed: Tensor, head: Tensor, kept: Sequence[int]) -> bool:
    """Whether a product gives the kept bits in every place and whatever stands beside it."""
    some = torch.tensor(kept[:: max(1, len(kept) // _CHECKED)][:_CHECKED], device=head.device)
    scratch = Scratch()
    for shift in range(_ROWS.get(head.device.type, _ROWS_ELSEWHERE)):
        asked = some.roll(shift)[: len(some) - shift or None]
        if not torch.equal(product(embed[asked], head, scratch), cache.rows[cache.places[asked]]):
            log.warning("markov cache: this machine's products differ by place; no row is kept")
            return False
    return True
