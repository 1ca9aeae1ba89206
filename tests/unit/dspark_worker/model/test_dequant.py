"""Release formats (spec §2): hand-made codes; the bits at large are held by the golden units."""

import torch

from dspark_worker.model.dequant import fp4_packed, fp8_tiles
from examples.make_tiny_checkpoint import as_fp4, as_fp8


def e8m0(*exponents: int) -> torch.Tensor:
    return torch.tensor([127 + e for e in exponents], dtype=torch.uint8).view(torch.float8_e8m0fnu)


def test_the_low_nibble_is_the_even_input_and_bit_3_the_sign() -> None:
    packed = torch.zeros(1, 16, dtype=torch.uint8)
    packed[0, 0] = 0x1 | 0xF << 4
    packed[0, 15] = 0x6 | 0x8 << 4
    weight = fp4_packed(packed.view(torch.int8), e8m0(1).view(1, 1))
    assert weight[0, :2].tolist() == [1.0, -12.0]
    assert weight[0, 30:].tolist() == [8.0, 0.0]


def test_every_32_inputs_of_a_row_have_their_own_scale() -> None:
    packed = torch.full((2, 32), 0x22, dtype=torch.int8)
    weight = fp4_packed(packed, e8m0(0, 1, 2, 3).view(2, 2))
    assert weight[:, ::32].tolist() == [[1.0, 2.0], [4.0, 8.0]]
    assert weight[:, 31::32].tolist() == [[1.0, 2.0], [4.0, 8.0]]


def test_tiles_of_the_last_row_and_column_may_be_cut_short() -> None:
    codes = torch.ones(40, 33).to(torch.float8_e4m3fn)
    weight = fp8_tiles(codes, e8m0(0, 1, 2, 3).view(2, 2))
    assert weight.shape == (40, 33)
    assert [weight[0, 0], weight[31, 32], weight[32, 31], weight[39, 32]] == [1, 2, 4, 8]


def test_the_smallest_and_largest_scales_are_powers_of_two() -> None:
    """e8m0 byte b means 2^(b - 127), b = 0 included."""
    codes = torch.ones(32, 32).to(torch.float8_e4m3fn)
    for exponent in (-127, -126, 0, 127):
        weight = fp8_tiles(codes, e8m0(exponent).view(1, 1))
        assert weight[0, 0].item() == 2.0**exponent


def test_what_is_unpacked_packs_to_the_same_codes() -> None:
    """A fixed point: quantising an unpacked weight again changes nothing, in either format."""
    weight = torch.randn(48, 96, generator=torch.Generator().manual_seed(0))
    codes, scale = as_fp8(weight)
    again, same = as_fp8(fp8_tiles(codes, scale))
    assert torch.equal(again.view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(same.view(torch.uint8), scale.view(torch.uint8))
    unpacked = fp4_packed(*as_fp4(weight))
    assert torch.equal(fp4_packed(*as_fp4(unpacked)), unpacked)
