"""A checkpoint in EXL3 through the strict loader, and every kind of damage (EXL3 spec §8 to §10).

The weights are random bits, which is a legal trellis: what is drafted is compared with the dense
copy of the same checkpoint.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dspark_worker.model.dense_copy import write_dense_copy
from dspark_worker.model.drafter import TorchDrafter
from dspark_worker.model.exl3.linear import Exl3Grouped, Exl3Linear, Exl3Sliced
from dspark_worker.model.linear import GroupedLinear, PlainLinear
from dspark_worker.model.load import load_drafter
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.inspection import Format, inspect
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.checkpoint.tensors import Kind, expected_tensors
from dsparkctl.config.errors import WriteError
from examples.make_tiny_checkpoint import Shape
from tests.unit.dspark_worker.model import tiny
from tests.unit.dspark_worker.model.exl3 import layers

Tensors = dict[str, Tensor]

SHAPE = Shape(
    vocab=160, hidden=96, head_dim=80, o_rank=128, experts=4, layers=2, window=8, noise_id=3
)
"""Padded in most places; wo_a splits into groups of whole blocks."""
HEAD, DENSE, EXPERTS = (f"model-exl3-{name}.safetensors" for name in ("head", "mtp", "mtp-experts"))


def write(folder: Path, shape: Shape = SHAPE) -> None:
    """Head, dense layers and experts as EXL3 in files of their own, each expert with its own K."""
    tiny.write(folder, shape)
    config = read_model_config(find_files(folder))
    kept = load_file(folder / "model.safetensors")
    files: dict[str, Tensors] = {HEAD: {}, DENSE: {}, EXPERTS: {}}
    for seed, expected in enumerate(expected_tensors(config)):
        if expected.kind is Kind.FLOAT and expected.name != "head.weight":
            continue
        file = HEAD if expected.name == "head.weight" else DENSE
        file = EXPERTS if expected.kind is Kind.EXPERT else file
        k = {HEAD: 6, DENSE: 5, EXPERTS: 3 + seed % 2}[file]
        files[file] |= exl3(expected.prefix, expected.shape, k, seed)
        del kept[expected.name]
    save_file(kept, folder / "model.safetensors")
    for name, tensors in files.items():
        save_file(tensors, folder / name)


def exl3(prefix: str, shape: tuple[int, ...], k: int, seed: int) -> Tensors:
    n_out, n_in = shape
    padded_in, padded_out = (-(-size // 128) * 128 for size in (n_in, n_out))
    found = layers.tensors(padded_in, padded_out, k, seed=seed, scale=n_in**-0.5)
    return {f"{prefix}.{suffix}": tensor for suffix, tensor in found.items()}


def edit(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def load(folder: Path, *, dtype: str = "float32", weight_cache_mb: int = 64) -> TorchDrafter:
    return load_drafter(
        folder,
        device="cpu",
        dtype=dtype,
        kv_quant="none",
        max_slots=2,
        weight_cache_mb=weight_cache_mb,
    )


def outputs(drafter: TorchDrafter) -> tuple[list[list[int]], Tensor]:
    """Two drafts behind eight rows: ids, and confidences with margins."""
    drafter.append([tiny.part(slot, 0, tiny.make_rows(drafter, 8, slot)) for slot in (0, 1)])
    drafts = tiny.draft(drafter, [tiny.request(s, 0, 8, 5 + s, of=drafter) for s in (0, 1)])
    numbers = [[*draft.confidence, *draft.margin] for draft in drafts]
    return [list(draft.ids) for draft in drafts], torch.tensor(numbers)


def same(one: TorchDrafter, other: TorchDrafter) -> bool:
    ids, numbers = outputs(one)
    other_ids, other_numbers = outputs(other)
    return ids == other_ids and torch.allclose(numbers, other_numbers, rtol=1e-4, atol=1e-5)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_an_exl3_checkpoint_drafts_as_its_dense_copy(tmp_path: Path) -> None:
    write(tmp_path / "packed")
    write_dense_copy(tmp_path / "packed", tmp_path / "dense", "F32")
    packed, dense = load(tmp_path / "packed"), load(tmp_path / "dense")
    assert isinstance(packed._model.main_proj, Exl3Linear)
    assert isinstance(packed._model.heads.head, Exl3Linear)
    assert isinstance(packed._model.blocks[0].attention.wo_a, Exl3Grouped)
    assert isinstance(dense._model.main_proj, PlainLinear)
    assert same(packed, dense)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_budget_changes_memory_and_no_draft(tmp_path: Path, dtype: str) -> None:
    """`--weight-cache-mb` 0: everything is decoded at every use."""
    write(tmp_path)
    none, all_ = (load(tmp_path, dtype=dtype, weight_cache_mb=mb) for mb in (0, 64))
    first, second = outputs(none), outputs(all_)
    assert first[0] == second[0]
    assert torch.equal(first[1], second[1])


def test_a_head_cut_across_groups_becomes_dense(tmp_path: Path) -> None:
    """o_rank 32: four groups share a block of 128 outputs."""
    write(tmp_path / "packed", SHAPE._replace(o_rank=32))
    write_dense_copy(tmp_path / "packed", tmp_path / "dense", "F32")
    packed = load(tmp_path / "packed")
    assert isinstance(packed._model.blocks[0].attention.wo_a, GroupedLinear)
    assert same(packed, load(tmp_path / "dense"))


def test_stacked_experts_are_each_their_own_layer(tmp_path: Path) -> None:
    """§9: [E, in/16, out/16, T] without markers; the codebook stands in the config."""
    write(tmp_path / "single")
    edit(tmp_path / "single" / EXPERTS, one_k)
    write(tmp_path / "stacked")
    edit(tmp_path / "stacked" / EXPERTS, one_k)
    edit(tmp_path / "stacked" / EXPERTS, stacked)
    path = tmp_path / "stacked" / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"quantization_config": {"codebook": "mul1"}})
    )
    assert same(load(tmp_path / "single"), load(tmp_path / "stacked"))


def one_k(tensors: Tensors) -> None:
    """A stack has one K: words beyond K 3 go."""
    for name in tensors:
        if name.endswith(".trellis"):
            tensors[name] = tensors[name][..., :48].contiguous()


def stacked(tensors: Tensors) -> None:
    groups: dict[str, list[Tensor]] = {}
    for name in sorted(tensors):
        groups.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", name), []).append(
            tensors.pop(name)
        )
    for name, group in groups.items():
        if not name.endswith(".mul1"):
            tensors[name] = torch.stack(group)


def test_a_layer_may_come_in_slices(tmp_path: Path) -> None:
    write(tmp_path / "whole")
    write(tmp_path / "sliced")
    edit(tmp_path / "sliced" / DENSE, lambda t: sliced(t, "mtp.1.attn.wo_a"))
    edit(tmp_path / "sliced" / DENSE, lambda t: sliced(t, "mtp.1.attn.wo_b", 1))
    packed = load(tmp_path / "sliced")
    assert isinstance(packed._model.blocks[1].attention.wo_a, Exl3Grouped)
    assert same(load(tmp_path / "whole"), packed)


def sliced(tensors: Tensors, prefix: str, n: int = 2) -> None:
    for suffix in ("trellis", "svh", "suh", "mul1"):
        tensor = tensors.pop(f"{prefix}.{suffix}")
        for number in range(n):
            axis = {"trellis": 1, "svh": 0}.get(suffix)
            part = tensor if axis is None else tensor.chunk(n, axis)[number]
            tensors[f"{prefix}.{number}.{suffix}"] = part.clone()


def test_slices_that_a_product_uses_are_joined(tmp_path: Path) -> None:
    shape = SHAPE._replace(q_rank=256)
    write(tmp_path / "whole", shape)
    write(tmp_path / "sliced", shape)
    edit(tmp_path / "sliced" / DENSE, lambda t: sliced(t, "mtp.0.attn.wq_a"))
    packed = load(tmp_path / "sliced")
    assert isinstance(packed._model.blocks[0].attention.wq_a, Exl3Sliced)
    assert same(load(tmp_path / "whole"), packed)


def test_a_matrix_that_is_no_product_is_unpacked_at_load(tmp_path: Path) -> None:
    """The router is used in fp32; nobody knows that a live one is never packed."""
    write(tmp_path / "packed")
    name = "mtp.0.ffn.gate"
    edit(tmp_path / "packed" / "model.safetensors", lambda t: t.pop(f"{name}.weight"))
    edit(tmp_path / "packed" / DENSE, lambda t: t.update(exl3(name, (4, 96), 8, 77)))
    write_dense_copy(tmp_path / "packed", tmp_path / "dense", "F32")
    assert same(load(tmp_path / "packed"), load(tmp_path / "dense"))


MAIN = "mtp.0.main_proj"


@pytest.mark.parametrize(
    ("file", "change", "name", "words"),
    [
        (DENSE, lambda t: t[f"{MAIN}.suh"].__setitem__(0, torch.nan), f"{MAIN}.suh", "not finite"),
        (DENSE, lambda t: t[f"{MAIN}.mul1"].fill_(5), f"{MAIN}.mul1", "is 0x00000005"),
        (DENSE, lambda t: t.pop(f"{MAIN}.svh"), f"{MAIN}.svh", "is missing"),
        (DENSE, lambda t: t.pop(f"{MAIN}.trellis"), f"{MAIN}.trellis", "is missing"),
        (DENSE, lambda t: t.update({f"{MAIN}.weight": torch.zeros(96, 288)}), f"{MAIN}.weight",
         "beside a trellis"),
        (DENSE, lambda t: t.update(exl3(MAIN, (96, 600), 5, 1)), f"{MAIN}.trellis",
         "is of 640 inputs and 128 outputs, the config asks for 288 and 96"),
        (DENSE, lambda t: t.update(exl3("mtp.9.x", (96, 96), 5, 1)), "mtp.9.x.mul1",
         "is no tensor of this model"),
        (HEAD, lambda t: t.update({"head.trellis": t["head.trellis"][..., :95].contiguous()}),
         "head.trellis", "95 words"),
        (EXPERTS, lambda t: t["mtp.1.ffn.experts.3.w2.svh"].__setitem__(95, torch.inf),
         "mtp.1.ffn.experts.3.w2.svh", "not finite"),
        (EXPERTS, lambda t: t.update({"mtp.0.ffn.experts.0.w1.scale": torch.zeros(1)}),
         "mtp.0.ffn.experts.0.w1.scale", "obsolete"),
    ],
)  # fmt: skip
def test_damage_names_file_and_tensor(
    tmp_path: Path, file: str, change: Callable[[Tensors], object], name: str, words: str
) -> None:
    write(tmp_path)
    edit(tmp_path / file, change)
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path / file}: {name}: ")
    assert words in message


def test_a_missing_layer_is_missed_by_its_weights_name(tmp_path: Path) -> None:
    write(tmp_path)
    edit(tmp_path / EXPERTS, lambda t: [t.pop(n) for n in list(t) if ".1.ffn.experts.2.w3." in n])
    assert f"{tmp_path}: mtp.1.ffn.experts.2.w3.weight: is missing" in refusal(tmp_path)


def test_a_config_that_claims_another_k_is_refused(tmp_path: Path) -> None:
    """§10: never trusted over the shapes, and never passed over."""
    write(tmp_path)
    plan = {"dense": {"drafter": {"main_proj": 4}}}
    (tmp_path / "exl3_moe_plan.json").write_text(json.dumps(plan))
    assert refusal(tmp_path) == (
        f"{tmp_path / 'exl3_moe_plan.json'}: dense.drafter.main_proj: says K 4, its trellis has K 5"
    )
    plan["dense"]["drafter"]["main_proj"] = 5
    (tmp_path / "exl3_moe_plan.json").write_text(json.dumps(plan))
    assert load(tmp_path)


def test_a_shard_cut_short_is_refused_before_its_data_is_read(tmp_path: Path) -> None:
    write(tmp_path)
    data = (tmp_path / EXPERTS).read_bytes()
    (tmp_path / EXPERTS).write_bytes(data[:-1])
    assert "truncated" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("to", "experts", "norms"),
    [("BF16", torch.bfloat16, torch.bfloat16), ("F32", torch.float32, torch.float32)],
)
def test_a_dense_copy_unpacks_what_is_packed_and_never_narrows_the_rest(
    tmp_path: Path, to: str, experts: torch.dtype, norms: torch.dtype
) -> None:
    write(tmp_path / "packed")
    name = "mtp.1.confidence_head.proj.weight"
    edit(
        tmp_path / "packed" / "model.safetensors",
        lambda t: t.update({name: t[name].to(torch.float16)}),
    )
    write_dense_copy(tmp_path / "packed", tmp_path / "dense", to)
    found = load_file(tmp_path / "dense" / "model.safetensors")
    assert found["mtp.0.ffn.experts.1.w2.weight"].dtype == experts
    assert found["mtp.0.main_norm.weight"].dtype == norms
    assert found[name].dtype == (torch.float16 if to == "BF16" else torch.float32)
    files = find_files(tmp_path / "dense")
    rows = inspect(files, read_model_config(files)).rows
    assert {row.format for row in rows} == {Format.PLAIN}
    assert load(tmp_path / "dense")


def test_a_dense_copy_goes_into_an_empty_folder_only(tmp_path: Path) -> None:
    write(tmp_path / "packed")
    (tmp_path / "dense").mkdir()
    (tmp_path / "dense" / "mine").write_text("")
    with pytest.raises(WriteError, match="is not empty"):
        write_dense_copy(tmp_path / "packed", tmp_path / "dense", "F32")
    assert [path.name for path in (tmp_path / "dense").iterdir()] == ["mine"]
