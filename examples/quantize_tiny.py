"""Make the demo's checkpoint once more, in EXL3 and in the live one's files.

    python examples/quantize_tiny.py --out dsparkctl/demo/checkpoint-exl3

main_proj and attention at K5, experts at K4, head at K6; Markov and confidence in F16; the rest
bf16. The plan, the receipt, the target and the list of Markov tokens come with it. Some four
minutes on one core; the same input gives the same bytes.
"""

import argparse
import json
import re
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dspark_worker.model.dequant import fp4_packed, fp8_tiles
from dsparkctl.checkpoint.digest import digest_files
from dsparkctl.checkpoint.exl3 import Codebook
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.model_config import ModelConfig, read_model_config
from dsparkctl.checkpoint.tensors import Expected, Kind, expected_tensors
from dsparkctl.contract.receipt import Receipt, render_receipt
from dsparkctl.engine.target import CONFIG_FILE, WEIGHTS_FILE
from examples.exl3_encoder import encode
from examples.train_tiny import MARKOV_FILE, RECEIPT_FILE

SOURCE: Final = Path(__file__).parents[1] / "dsparkctl" / "demo" / "checkpoint"
CODEBOOK: Final = Codebook.MUL1
DENSE_K: Final = 5
EXPERT_K: Final = 4
HEAD_K: Final = 6

HEAD_FILE: Final = "model-exl3-head.safetensors"
DENSE_FILE: Final = "model-exl3-mtp.safetensors"
EXPERTS_FILE: Final = "model-exl3-mtp-experts.safetensors"
EMBED_FILE: Final = "model-00002-of-00046.safetensors"
LAYER_FILES: Final = tuple(f"model-000{n}-of-00046.safetensors" for n in (43, 44))
LAST_FILE: Final = "model-00045-of-00046.safetensors"
MARKOV_WEIGHTS_FILE: Final = "model-00046-of-00046.safetensors"


class Job(NamedTuple):
    """One layer to encode."""

    prefix: str
    weight: Tensor
    k: int
    file: str
    seed: int


def plain_weights(directory: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Every tensor of the checkpoint in fp32, by its own name."""
    stored: dict[str, Tensor] = {}
    for shard in find_files(directory).shards:
        stored |= load_file(shard)
    found = {}
    for expected in expected_tensors(config):
        if expected.name not in stored:
            continue
        tensor, scale = stored[expected.name], stored.get(expected.scale_name)
        if tensor.dtype == torch.float8_e4m3fn and scale is not None:
            tensor = fp8_tiles(tensor, scale)
        elif tensor.dtype == torch.int8 and scale is not None:
            tensor = fp4_packed(tensor, scale)
        found[expected.name] = tensor.float()
    return found


def place_of(expected: Expected) -> tuple[str, int | None]:
    """The live checkpoint's file for a tensor, and its K where it is EXL3."""
    if expected.name == "head.weight":
        return HEAD_FILE, HEAD_K
    if expected.kind is Kind.EXPERT:
        return EXPERTS_FILE, EXPERT_K
    if expected.kind is Kind.DENSE:
        return DENSE_FILE, DENSE_K
    if expected.name == "embed.weight":
        return EMBED_FILE, None
    name = re.fullmatch(r"mtp\.(\d+)\.(\w+).*", expected.name)
    assert name is not None
    if name[2] == "markov_head":
        return MARKOV_WEIGHTS_FILE, None
    if name[2] in ("confidence_head", "norm"):
        return LAST_FILE, None
    return LAYER_FILES[min(int(name[1]), len(LAYER_FILES) - 1)], None


def as_stored(expected: Expected, weight: Tensor) -> Tensor:
    """A tensor that is not EXL3, in the dtype that the live checkpoint has."""
    if re.search(r"\.(markov_head|confidence_head)\.", expected.name):
        return weight.to(torch.float16)
    return weight.to(torch.bfloat16) if expected.is_weight else weight


def quantize(source: Path, out: Path, n_processes: int) -> dict[str, list[float]]:
    """Write the folder; file -> the nmse of each layer in it."""
    config = read_model_config(find_files(source))
    weights = plain_weights(source, config)
    files: dict[str, dict[str, Tensor]] = {}
    jobs: list[Job] = []
    for expected in expected_tensors(config):
        if expected.name not in weights:
            continue
        file, k = place_of(expected)
        weight = weights[expected.name]
        if k is None:
            files.setdefault(file, {})[expected.name] = as_stored(expected, weight)
        else:
            jobs.append(Job(expected.prefix, weight, k, file, len(jobs)))
    errors: dict[str, list[float]] = {}
    with ProcessPoolExecutor(n_processes) as pool:
        for job, (tensors, nmse) in zip(jobs, pool.map(_encoded, jobs), strict=True):
            named = {f"{job.prefix}.{suffix}": tensor for suffix, tensor in tensors.items()}
            files.setdefault(job.file, {}).update(named)
            errors.setdefault(job.file, []).append(nmse)
    out.mkdir(parents=True, exist_ok=True)
    for name, tensors in files.items():
        save_file({n: t.contiguous() for n, t in tensors.items()}, out / name)
        (out / name).chmod(0o644)  # the library leaves it to its owner alone
    _write_settings(source, out, jobs)
    for name in (MARKOV_FILE, WEIGHTS_FILE, CONFIG_FILE):
        shutil.copyfile(source / name, out / name)
    sources = digest_files(find_files(out).sources)
    (out / RECEIPT_FILE).write_bytes(render_receipt(Receipt(sources, sources)))
    return errors


def _encoded(job: Job) -> tuple[dict[str, Tensor], float]:
    torch.set_num_threads(1)
    return encode(job.weight, job.k, CODEBOOK, job.seed)


def _write_settings(source: Path, out: Path, jobs: list[Job]) -> None:
    """config.json as exllamav3 completes it, and the plan that the live config states, too."""
    n_weights = sum(job.weight.numel() for job in jobs)
    bits = sum(job.k * job.weight.numel() for job in jobs) / n_weights
    plan = {"dense": {"drafter": {"main_proj": DENSE_K}}, "experts": EXPERT_K, "head": HEAD_K}
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "exl3",
        "bits": round(bits, 2),
        "head_bits": HEAD_K,
        "codebook": CODEBOOK.value,
        "exl3_moe": plan,
    }
    _write_json(out / "config.json", config)
    _write_json(out / "exl3_moe_plan.json", plan)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the demo's checkpoint in EXL3.")
    parser.add_argument("--checkpoint", type=Path, default=SOURCE, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    began_s = time.monotonic()
    for file, errors in quantize(given.checkpoint, given.out, given.processes).items():
        mean = sum(errors) / len(errors)
        print(f"{file}: {len(errors)} layers, mean nmse {mean:.2e}")  # noqa: T201
    print(f"{time.monotonic() - began_s:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main()
