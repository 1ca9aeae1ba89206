"""What headers say of an EXL3 layer, and every rule that one may break (EXL3 spec §1, §10)."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.checkpoint.exl3 import Codebook, Exl3Layer, examine
from dsparkctl.checkpoint.header import ITEM_BYTES, TensorInfo

Stored = dict[str, TensorInfo]


def info(dtype: str, *shape: int) -> TensorInfo:
    n_bytes = ITEM_BYTES[dtype]
    for size in shape:
        n_bytes *= size
    return TensorInfo(dtype, shape, 100, 100 + n_bytes)


def layer(n_words: int = 80, n_in: int = 256, n_out: int = 384, marker: str = "mul1") -> Stored:
    stored = {
        "trellis": info("I16", n_in // 16, n_out // 16, n_words),
        "suh": info("F16", n_in),
        "svh": info("F16", n_out),
    }
    return stored | ({marker: info("I32")} if marker else {})


def stack(n_layers: int = 3, n_words: int = 64, dtype: str = "U16") -> Stored:
    return {
        "trellis": info(dtype, n_layers, 8, 16, n_words),
        "suh": info("F16", n_layers, 128),
        "svh": info("F16", n_layers, 256),
    }


def sound(stored: Stored, codebook: Codebook = Codebook.THREE_INST) -> Exl3Layer:
    found, faults = examine("P", stored, codebook)
    assert not faults
    assert found is not None
    return found


def test_k_comes_from_the_tiles_and_the_codebook_from_the_marker() -> None:
    """§1: 15360x5120 at K5 are 46.875 MiB of trellis."""
    found = sound(layer(80, 15360, 5120))
    assert (found.bits, found.codebook, found.n_in, found.n_out) == (5, Codebook.MUL1, 15360, 5120)
    assert layer(80, 15360, 5120)["trellis"].n_bytes == 46.875 * 2**20
    scales = 2 * (15360 + 5120) + 4
    assert found.n_bytes == 46.875 * 2**20 + scales
    assert found.bits_per_weight == pytest.approx(5 + 8 * scales / (15360 * 5120))
    assert found.n_stacked is None
    assert found.suffixes == ("mul1", "suh", "svh", "trellis")
    assert found.name("suh") == "P.suh"


@pytest.mark.parametrize(("marker", "codebook"), [("", "3inst"), ("mcg", "mcg"), ("mul1", "mul1")])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8])
def test_every_codebook_has_every_whole_k(marker: str, codebook: str, bits: int) -> None:
    found = sound(layer(16 * bits, marker=marker))
    assert (found.bits, found.codebook.value) == (bits, codebook)


@pytest.mark.parametrize("n_words", [24, 40, 56])
def test_halves_of_k_belong_to_mul1_alone(n_words: int) -> None:
    assert sound(layer(n_words)).bits == n_words / 16
    for marker in ("", "mcg"):
        assert "only the mul1 codebook" in said(layer(n_words, marker=marker), "P.trellis")


def test_packed_signs_take_the_place_of_scales() -> None:
    stored = layer(64, marker="")
    del stored["suh"], stored["svh"]
    found = sound(stored | {"su": info("I16", 16), "sv": info("I16", 24)})
    assert found.suffixes == ("su", "sv", "trellis")


@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_a_bias_is_as_long_as_the_outputs(dtype: str) -> None:
    assert "bias" in sound(layer() | {"bias": info(dtype, 384)}).suffixes
    assert "[384]" in said(layer() | {"bias": info(dtype, 256)}, "P.bias")


@pytest.mark.parametrize("dtype", ["U16", "I16"])
def test_a_stack_has_one_k_and_its_codebook_may_come_from_a_config(dtype: str) -> None:
    """§9."""
    found = sound(stack(dtype=dtype), Codebook.MCG)
    assert (found.n_stacked, found.n_in, found.n_out, found.bits) == (3, 128, 256, 4)
    assert found.codebook is Codebook.MCG
    assert sound(stack() | {"mul1": info("I32", 1)}, Codebook.MCG).codebook is Codebook.MUL1
    assert found.n_weights == 3 * 128 * 256
    # An ordinary layer without a marker is 3INST whatever a config says (§1).
    assert sound(layer(marker=""), Codebook.MCG).codebook is Codebook.THREE_INST


def said(stored: Stored, name: str) -> str:
    """What is said of the one tensor that is wrong."""
    found, faults = examine("P", stored)
    assert found is None
    assert [fault.name for fault in faults] == [name]
    return faults[0].what


def changed(**tensors: TensorInfo | None) -> Callable[[], Stored]:
    def make() -> Stored:
        stored = layer()
        for suffix, tensor in tensors.items():
            if tensor is None:
                del stored[suffix]
            else:
                stored[suffix] = tensor
        return stored

    return make


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (changed(trellis=None), "P.trellis", "is missing"),
        (changed(trellis=info("I32", 16, 24, 80)), "P.trellis", "is stored as I32"),
        (changed(trellis=info("I16", 16, 24)), "P.trellis", "[16, 24]"),
        (changed(trellis=info("I16", 1, 1, 16, 24, 80)), "P.trellis", "[1, 1, 16, 24, 80]"),
        (changed(trellis=info("I16", 0, 24, 80)), "P.trellis", "empty"),
        (changed(trellis=info("I16", 16, 24, 0)), "P.trellis", "empty"),
        (changed(trellis=info("I16", 16, 24, 17)), "P.trellis", "17 words"),
        (changed(trellis=info("I16", 16, 24, 144)), "P.trellis", "144 words"),
        (changed(trellis=info("I16", 16, 24, 72)), "P.trellis", "72 words"),
        (changed(trellis=info("I16", 15, 24, 80)), "P.trellis", "in = 240"),
        (changed(trellis=info("I16", 16, 25, 80)), "P.trellis", "out = 400"),
        (changed(suh=None), "P.suh", "is missing"),
        (changed(svh=None), "P.svh", "is missing"),
        (changed(suh=info("F16", 255)), "P.suh", "[255]"),
        (changed(suh=info("F16", 1, 256)), "P.suh", "[1, 256]"),
        (changed(suh=info("F32", 256)), "P.suh", "is stored as F32"),
        (changed(suh=info("BF16", 256)), "P.suh", "is stored as BF16"),
        (changed(svh=info("F16", 256)), "P.svh", "[384]"),
        (changed(su=info("I16", 16)), "P.su", "beside suh"),
        (changed(sv=info("I16", 24)), "P.sv", "beside svh"),
        (changed(suh=None, su=info("I16", 256)), "P.su", "[16]"),
        (changed(svh=None, sv=info("F16", 24)), "P.sv", "is stored as F16"),
        (changed(mcg=info("I32")), "P.mul1", "beside mcg"),
        (changed(mul1=info("F32")), "P.mul1", "is stored as F32"),
        (changed(mul1=info("I32", 2)), "P.mul1", "[2]"),
        (changed(bias=info("I16", 384)), "P.bias", "is stored as I16"),
        (changed(scale=info("F16", 384)), "P.scale", "obsolete"),
        (changed(weight=info("F16", 384, 256)), "P.weight", "beside a trellis"),
        (changed(qzeros=info("F16", 384)), "P.qzeros", "no tensor of an EXL3 layer"),
    ],
)
def test_each_rule_names_its_tensor(make: Callable[[], Stored], name: str, words: str) -> None:
    assert words in said(make(), name)


def test_a_stacks_scales_are_stacked_too() -> None:
    assert "[3, 128]" in said(stack() | {"suh": info("F16", 128)}, "P.suh")
    assert "[3, 256]" in said(stack() | {"svh": info("F16", 2, 256)}, "P.svh")


dims = st.lists(st.integers(0, 40), max_size=5)
tensor = st.builds(
    lambda dtype, shape: info(dtype, *shape), st.sampled_from(sorted(ITEM_BYTES)), dims
)
suffixes = st.sampled_from(
    ["trellis", "suh", "svh", "su", "sv", "mcg", "mul1", "bias", "weight", "scale", "x"]
)


@given(st.dictionaries(suffixes, tensor))
def test_whatever_is_stored_there_is_a_layer_or_a_fault_never_both(stored: Stored) -> None:
    found, faults = examine("P", stored)
    assert (found is None) == bool(faults)
    assert all("\n" not in fault.what and fault.name.startswith("P.") for fault in faults)
