"""The stream of a tile, its order, and decoding in chunks (EXL3 spec §2, §3, §12)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_worker.model.exl3 import tiles
from dspark_worker.model.exl3.codebook import values
from dsparkctl.checkpoint.exl3 import Codebook
from tests.unit.dspark_worker.model.exl3.layers import trellis

ALL_T = (*range(16, 129, 16), 24, 40, 56)


def slow(codes: torch.Tensor, codebook: Codebook) -> torch.Tensor:
    """fp16 [in, out], from the definition: bit by bit, weight by weight."""
    n_rows, n_columns, n_words = codes.shape
    table = values(codebook)
    found = torch.empty(16 * n_rows, 16 * n_columns, dtype=torch.float16)
    whole, is_half = n_words // 16, n_words % 16 == 8
    for a in range(n_rows):
        for b in range(n_columns):
            u = [value & 0xFFFF for value in codes[a, b].tolist()]
            pairs = [u[2 * j] | u[2 * j + 1] << 16 for j in range(n_words // 2)]
            ring = "".join(f"{word:032b}" for word in pairs)
            end = 0
            for i in range(256):
                end += whole + (i % 2 if is_half else 0)
                state = int("".join(ring[n % len(ring)] for n in range(end - 16, end)), 2)
                lane, j = divmod(i, 8)
                row = 2 * (lane % 4) + (j & 1) + 8 * (j >> 1 & 1)
                column = lane // 4 + 8 * (j >> 2)
                found[16 * a + row, 16 * b + column] = table[state]
    return found


@pytest.mark.parametrize("n_words", ALL_T)
@pytest.mark.parametrize("codebook", Codebook)
def test_every_k_decodes_as_the_definition_says(n_words: int, codebook: Codebook) -> None:
    """K 1 to 8 and 1.5, 2.5, 3.5; more than one tile each way."""
    codes = trellis(32, 48, n_words, seed=n_words)
    out = torch.empty(32, 48, dtype=torch.float16)
    found = tiles.in_order(tiles.decode(codes, codebook, out))
    assert torch.equal(found, slow(codes, codebook))


@pytest.mark.parametrize("n_words", ALL_T)
def test_a_tile_has_all_its_bits_used_up(n_words: int) -> None:
    ends = tiles.state_ends(n_words)
    assert len(ends) == 256
    assert ends[-1] == 16 * n_words
    assert ends == sorted(set(ends))


def test_the_order_within_a_tile_is_a_permutation() -> None:
    assert sorted(tiles.tile_order()) == list(range(256))
    assert tiles.tile_order()[:8] == [0, 16, 128, 144, 8, 24, 136, 152]


@given(n_rows=st.integers(1, 7), chunk=st.integers(1, 4), n_words=st.sampled_from(ALL_T))
def test_chunks_do_not_show(n_rows: int, chunk: int, n_words: int) -> None:
    codes = trellis(16 * n_rows, 32, n_words, seed=n_rows)
    whole, parts = torch.empty(16 * n_rows, 32), torch.empty(16 * n_rows, 32)
    tiles.decode(codes, Codebook.MCG, whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "CHUNK_WEIGHTS", 512 * chunk)
        tiles.decode(codes, Codebook.MCG, parts)
    assert torch.equal(whole, parts)


def test_a_part_of_the_columns_is_decoded_without_the_rest() -> None:
    codes = trellis(32, 256, 80)
    whole = tiles.in_order(tiles.decode(codes, Codebook.MUL1, torch.empty(32, 256)))
    part = tiles.in_order(tiles.decode(codes[:, 8:], Codebook.MUL1, torch.empty(32, 128)))
    assert torch.equal(part, whole[:, 128:])


def test_one_flipped_bit_changes_no_more_weights_than_it_is_seen_by() -> None:
    """§10: ⌈16/K⌉ of them."""
    codes = trellis(16, 16, 64)
    before = tiles.decode(codes, Codebook.MUL1, torch.empty(16, 16)).clone()
    codes[0, 0, 5] ^= 1 << 3
    after = tiles.decode(codes, Codebook.MUL1, torch.empty(16, 16))
    assert 1 <= int((before != after).sum()) <= 4
