"""Which stored tensors make a weight of the model: whole layers, slices, stacks (spec §8, §9)."""

import pytest

from dsparkctl.checkpoint.exl3 import Codebook
from dsparkctl.checkpoint.exl3_places import Exl3Places
from dsparkctl.checkpoint.header import TensorInfo
from dsparkctl.checkpoint.tensors import Expected, Kind
from tests.unit.checkpoint.test_exl3 import info, layer, stack

WIDE = Expected("mtp.0.attn.wo_a.weight", (256, 100), Kind.DENSE)
"""100 inputs, stored as 128."""
Stored = dict[str, TensorInfo]


def named(prefix: str, tensors: Stored) -> Stored:
    return {f"{prefix}.{suffix}": tensor for suffix, tensor in tensors.items()}


def places(stored: Stored, *model_names: str, codebook: Codebook | None = None) -> Exl3Places:
    return Exl3Places(stored, frozenset({WIDE.name, *model_names}), codebook)


def expert(number: int, name: str = "w1") -> Expected:
    return Expected(f"mtp.1.ffn.experts.{number}.{name}.weight", (256, 128), Kind.EXPERT)


def test_a_layer_of_the_weights_own_name_is_the_weight() -> None:
    stored = named("mtp.0.attn.wo_a", layer(48, 128, 256))
    found = places(stored)
    assert found.claimed(WIDE) == set(stored)
    weight = found.find(WIDE)
    assert weight is not None
    assert not found.faults
    (part,) = weight.parts
    assert (weight.n_in, part.n_out, part.number, part.layer.bits) == (100, 256, None, 3)


def test_slices_lie_side_by_side_along_the_outputs() -> None:
    stored = named("mtp.0.attn.wo_a.1", layer(64, 128, 128)) | named(
        "mtp.0.attn.wo_a.0", layer(48, 128, 128)
    )
    found = places(stored)
    weight = found.find(WIDE)
    assert weight is not None
    assert [(part.layer.bits, part.n_out, part.number) for part in weight.parts] == [
        (3, 128, None),
        (4, 128, None),
    ]
    assert found.claimed(WIDE) == set(stored)


@pytest.mark.parametrize(
    ("numbers", "name", "words"),
    [
        ((0, 2), "mtp.0.attn.wo_a.1.trellis", "is missing: slices count from 0"),
        ((1,), "mtp.0.attn.wo_a.0.trellis", "is missing: slices count from 0"),
        ((0, 1, 2), "mtp.0.attn.wo_a.0.trellis", "3 slices, which do not share 256"),
    ],
)
def test_slices_are_complete_and_equal(numbers: tuple[int, ...], name: str, words: str) -> None:
    stored: Stored = {}
    for number in numbers:
        stored |= named(f"mtp.0.attn.wo_a.{number}", layer(48, 128, 128))
    found = places(stored)
    assert found.find(WIDE) is None
    assert found.faults[0].name == name
    assert words in found.faults[0].what


def test_slices_narrower_than_a_block_are_padded_each() -> None:
    stored: Stored = {}
    for number in range(4):
        stored |= named(f"mtp.0.attn.wo_a.{number}", layer(48, 128, 128))
    weight = places(stored).find(WIDE)
    assert weight is not None
    assert [part.n_out for part in weight.parts] == [64] * 4


def test_experts_are_layers_of_their_own_each_with_its_k() -> None:
    stored = named("mtp.1.ffn.experts.0.w1", layer(64, 128, 256)) | named(
        "mtp.1.ffn.experts.1.w1", layer(48, 128, 256)
    )
    found = places(stored)
    bits = []
    for number in (0, 1):
        weight = found.find(expert(number))
        assert weight is not None
        bits.append(weight.parts[0].layer.bits)
    assert bits == [4, 3]


def test_a_stack_gives_each_expert_its_number() -> None:
    stored = named("mtp.1.ffn.experts.w1", stack(2))
    found = places(stored, codebook=Codebook.MUL1)
    for number in (0, 1):
        assert found.claimed(expert(number)) == set(stored)
        weight = found.find(expert(number))
        assert weight is not None
        assert weight.parts[0].number == number
        assert weight.parts[0].layer.codebook is Codebook.MUL1
    found.finish()
    assert not found.faults


@pytest.mark.parametrize(
    ("n_stacked", "words"),
    [(1, "stacks 1 layers; the model has more"), (3, "stacks 3 layers, the model has 2")],
)
def test_a_stack_holds_as_many_layers_as_there_are_experts(n_stacked: int, words: str) -> None:
    found = places(named("mtp.1.ffn.experts.w1", stack(n_stacked)))
    for number in (0, 1):
        found.find(expert(number))
    found.finish()
    (fault,) = found.faults
    assert fault.name == "mtp.1.ffn.experts.w1.trellis"
    assert words in fault.what


def test_a_stack_is_no_single_layer_and_the_other_way_round() -> None:
    single = places(named("mtp.0.attn.wo_a", stack(2)))
    assert single.find(WIDE) is None
    assert "stack" in single.faults[0].what
    one = places(named("mtp.1.ffn.experts.w1", layer(64, 128, 256)))
    assert one.find(expert(0)) is None
    assert "one layer" in one.faults[0].what


@pytest.mark.parametrize(("n_in", "n_out"), [(256, 256), (128, 384), (128, 128)])
def test_sizes_are_the_models_rounded_up_to_128(n_in: int, n_out: int) -> None:
    found = places(named("mtp.0.attn.wo_a", layer(48, n_in, n_out)))
    assert found.find(WIDE) is None
    (fault,) = found.faults
    assert fault.name == "mtp.0.attn.wo_a.trellis"
    assert f"{n_in} inputs and {n_out} outputs, the config asks for 100 and 256" in fault.what


def test_the_models_own_tensors_are_no_part_of_a_layer() -> None:
    """The router's bias hangs on the same name as its weight."""
    gate = Expected("mtp.0.ffn.gate.weight", (128, 128))
    stored = named("mtp.0.ffn.gate", layer(48, 128, 128) | {"bias": info("F32", 8)})
    found = places(stored, "mtp.0.ffn.gate.bias")
    assert "mtp.0.ffn.gate.bias" not in found.claimed(gate)
    assert found.find(gate) is not None


@pytest.mark.parametrize(
    "expected", [Expected("mtp.0.attn.attn_sink", (8,)), Expected("mtp.0.norm.weight", (128,))]
)
def test_only_matrices_are_ever_packed(expected: Expected) -> None:
    found = places(named(expected.prefix, layer(48, 128, 128)))
    assert not found.claimed(expected)


def test_a_damaged_layer_is_reported_once_however_often_it_is_asked_for() -> None:
    stored = named("mtp.1.ffn.experts.w1", stack(2) | {"scale": info("F16", 1)})
    found = places(stored)
    assert found.find(expert(0)) is found.find(expert(1)) is None
    assert [fault.name for fault in found.faults] == ["mtp.1.ffn.experts.w1.scale"]
