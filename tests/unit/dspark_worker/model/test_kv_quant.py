"""Choice and edges of the cache formats (spec §7); their bits are held by the golden units."""

import pytest
import torch

from dspark_worker.model.kv_quant import KvQuant, choose, through_cache_
from dsparkctl.checkpoint.errors import CheckpointError


@pytest.mark.parametrize(
    ("name", "head_dim", "rope_dim", "chosen"),
    [
        ("auto", 512, 64, KvQuant.V4_RECORD_64),
        ("auto", 32, 16, KvQuant.NONE),
        ("auto", 64, 64, KvQuant.NONE),
        ("none", 512, 64, KvQuant.NONE),
        ("mxfp8_32", 32, 16, KvQuant.MXFP8_32),
        ("v4_record_64", 80, 16, KvQuant.V4_RECORD_64),
    ],
)
def test_auto_takes_the_live_sparks_record_where_its_groups_fit(
    name: str, head_dim: int, rope_dim: int, chosen: KvQuant
) -> None:
    assert choose(name, head_dim, rope_dim) is chosen


@pytest.mark.parametrize(
    ("name", "head_dim", "rope_dim"),
    [("mxfp8_32", 48, 16), ("v4_record_64", 32, 16), ("v4_record_64", 64, 64), ("fp8", 64, 16)],
)
def test_a_format_whose_groups_do_not_fit_is_refused_on_one_line(
    name: str, head_dim: int, rope_dim: int
) -> None:
    with pytest.raises(CheckpointError, match=name) as caught:
        choose(name, head_dim, rope_dim)
    assert "\n" not in str(caught.value)


def test_an_exact_power_of_two_needs_no_larger_scale() -> None:
    """ceil(log2) by frexp: amax 448 has scale 1, the next float above it scale 2."""
    kv = torch.zeros(2, 32)
    kv[:, 0] = torch.tensor([448.0, 449.0])
    kv[:, 1] = 2.0**-9  # e4m3's smallest step at scale 1
    cached = through_cache_(kv, KvQuant.MXFP8_32, 16)
    assert cached[:, 1].tolist() == [2.0**-9, 0.0]
    assert cached[:, 0].tolist() == [448.0, 448.0]


def test_f32_values_are_never_rounded_to_bf16_on_the_way_into_e4m3() -> None:
    """The group's quantisation sees fp32: 17.0001 lies above a tie that bf16 would round onto."""
    kv = torch.zeros(1, 32)
    kv[0, :2] = torch.tensor([448.0, 17.0001])
    assert through_cache_(kv.clone(), KvQuant.MXFP8_32, 16)[0, 1].item() == 18.0
    assert through_cache_(kv.to(torch.bfloat16), KvQuant.MXFP8_32, 16)[0, 1].item() == 16.0


def test_zeros_stay_zeros_and_nan_stays_nan() -> None:
    kv = torch.zeros(2, 80)
    kv[1, 3] = float("nan")
    cached = through_cache_(kv, KvQuant.V4_RECORD_64, 16)
    assert torch.equal(cached[0], kv[0])
    assert cached[1].isnan().any()
