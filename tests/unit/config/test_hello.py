"""The HELLO parameters (§6.2)."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.model_config import ModelConfig, read_model_config
from dsparkctl.config.hello import HelloParams
from dsparkctl.contract.layout import pack
from dsparkctl.contract.records import Hello

GOLDEN = Path(__file__).parents[2] / "golden"

LIVE: dict[str, Any] = {
    "num_spec": 5,
    "window": 128,
    "hidden": 5120,
    "n_taps": 3,
    "tap_layer_ids": (37, 38, 39, 0),
    "row_bytes": 30720,
    "noise_token_id": 128799,
    "vocab_size": 129280,
    "drafter_identity": "be2c1436fa9f9e66b398e1b1da2e140e6fddc82a11939e2ac4240a0ca79543bd",
    "markov_identity": "0b6e71e638abd5abce2db433965bb5ff523cbbe92ed7ae54324a50ccaeffa19a",
}


@pytest.fixture(scope="module")
def shape() -> ModelConfig:
    return read_model_config(find_files(GOLDEN / "drafter" / "a"))


def test_every_field_of_the_table_is_one_of_the_models_in_its_order() -> None:
    """§6.2"""
    assert tuple(HelloParams.model_fields) == Hello._fields


def test_the_live_values_are_the_defaults_and_make_the_live_bytes() -> None:
    """§6.2, §6.7, against the golden capture of the live HELLO."""
    messages = json.loads((GOLDEN / "wire" / "messages.json").read_text())
    live = next(message for message in messages if message["name"] == "hello_live")
    params = HelloParams(**LIVE, client_name="spark-a rank0")
    assert params.model_dump(mode="json") == live["hello"]
    assert pack(params.record()).hex() == live["hex"][64:]


def test_a_checkpoint_gives_its_shape(shape: ModelConfig) -> None:
    """§6.2: rows per step are slots x window unless said otherwise."""
    params = HelloParams.from_checkpoint(shape, drafter_identity=b"\xaa" * 32)
    assert (params.num_spec, params.window, params.hidden) == (5, 8, 64)
    assert (params.n_taps, params.tap_layer_ids) == (3, (37, 38, 39, 0))
    assert params.row_bytes == 3 * 64 * 2
    assert (params.max_slots, params.max_rows_per_step, params.max_model_len) == (4, 32, 327680)
    assert params.tp_size == 2
    assert params.drafter_identity == "aa" * 32
    assert params.markov_identity == "00" * 32


def test_given_limits_win(shape: ModelConfig) -> None:
    identity = bytes(32)
    six = HelloParams.from_checkpoint(shape, drafter_identity=identity, max_slots=6)
    assert six.max_rows_per_step == 48
    both = HelloParams.from_checkpoint(
        shape, drafter_identity=identity, max_slots=6, max_rows_per_step=9
    )
    assert both.max_rows_per_step == 9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_spec", 0),
        ("num_spec", "5"),
        ("num_spec", 5.0),
        ("num_spec", True),
        ("window", -1),
        ("hidden", 2**32),
        ("n_taps", 5),
        ("tap_layer_ids", (37, 38, 39)),
        ("tap_layer_ids", (37, 38, 39, -1)),
        ("row_bytes", 30721),
        ("noise_token_id", 129280),
        ("max_slots", 33),
        ("proto_min", 2),
        ("payload_kind", 2),
        ("drafter_identity", "be2c"),
        ("markov_identity", "x" * 64),
        ("client_name", "n" * 49),
        ("client_name", "spärk"),
        ("client_name", "a\0b"),
        ("unknown", 1),
    ],
)
def test_what_cannot_go_into_a_hello_is_refused(field: str, value: object) -> None:
    """§6.2: strict types, u32 ranges, 48 bytes of ASCII, and values that agree."""
    with pytest.raises(ValidationError):
        HelloParams.model_validate({**LIVE, field: value})
