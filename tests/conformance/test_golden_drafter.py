"""The golden drafter case in all four modes, under the tolerances of the specification's §11."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dspark_worker.golden import MODES
from dspark_worker.replay import replay

CASE = Path(__file__).parents[1] / "golden" / "drafter" / "a"


@pytest.mark.parametrize("mode", MODES)
def test_the_golden_case_breaks_no_tolerance(mode: str) -> None:
    done = replay(CASE, mode)
    assert done.broken == ()
    judged = {deviation.what for deviation in done.deviations if deviation.tolerance is not None}
    assert "draft_ids" in judged
    assert {"head_hidden", "head_hidden (relative rms)"} & judged


def test_f32_is_much_nearer_than_it_must_be() -> None:
    """The tolerances leave room for another BLAS, not for another formula."""
    worst = {deviation.what: deviation.worst for deviation in replay(CASE, "f32").deviations}
    assert worst["main_x"] < 5e-6
    assert worst["window_kv"] < 5e-6
    assert worst["head_hidden"] < 1e-4


@pytest.mark.parametrize("mode", ["bf16", "bf16_kvq"])
def test_bf16_rounds_where_the_reference_rounds(mode: str) -> None:
    """Many positions are bit-equal; where one rounding point is missed, none is (§3).

    One accumulation that lands on the other side of a tie costs all five positions of a block, so
    the number depends on the BLAS: 54 and 69 of 75 where this was written.
    """
    expected = load_file(CASE / "expected.safetensors")
    outputs = replay(CASE, mode).outputs
    keys = [key for key in outputs if key.endswith("head_hidden")]
    equal = torch.cat([(outputs[key] == expected[key]).all(-1) for key in keys])
    assert len(equal) == 75
    assert int(equal.sum()) >= 30
