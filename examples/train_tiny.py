"""Train the small engine's target and its DSpark drafter, and write the demo's checkpoint.

    python examples/train_tiny.py --out /tmp/trained

Writes a checkpoint of the real layout (both configs, one shard in the release format, Markov cache
list, receipt) and, beside it and outside the receipt, the target. Some ten minutes on two cores
(`target_steps` of the target, then `LESSON` of the drafter, then its confidence head).
"""

import argparse
import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dsparkctl.checkpoint.digest import digest_files
from dsparkctl.checkpoint.files import CheckpointFiles
from dsparkctl.checkpoint.model_config import ModelConfig, read_model_config
from dsparkctl.checkpoint.tensors import Kind, expected_tensors
from dsparkctl.contract.receipt import Receipt, render_receipt
from dsparkctl.engine.prompts import WRONG, documents
from dsparkctl.engine.target import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Span,
    Target,
    TargetWeights,
    read_weights,
)
from dsparkctl.engine.words import CLASS_SIZE, CLASSES, NOISE_TOKEN_ID
from examples.make_tiny_checkpoint import Shape, as_fp4, as_fp8, configs
from examples.tiny_drafter_training import Corpus, Lesson, calibrate, initial, train_drafter
from examples.tiny_target_training import CONFIG, train_target

SHAPE = Shape(
    vocab=CONFIG.vocab_size,
    hidden=CONFIG.hidden,
    heads=4,
    head_dim=128,
    rope_dim=64,
    q_rank=128,
    o_groups=2,
    o_rank=128,
    expert_hidden=128,
    layers=2,
    experts=8,
    active=3,
    window=32,
    block=5,
    taps=len(CONFIG.tap_layer_ids),
    markov_rank=128,
    noise_id=NOISE_TOKEN_ID,
)

N_PROMPT = 48
N_SPOKEN = 96
LESSON = Lesson(1000, batch=96, lr=3e-3, hinge=0.3, sureness=0.2, free=0.6)

HARD = 0.1
"""Share of wrong words in the prompts behind which confidence is fitted, N_HARD tokens of each."""
N_HARD = 24

MARKOV_FILE = "markov_top_tokens.json"
RECEIPT_FILE = "DSPARK_COPY_DONE"


def write_target(directory: Path, weights: dict[str, Tensor]) -> None:
    """bf16 on disk: `train_target` left only values that it holds."""
    directory.mkdir(parents=True, exist_ok=True)
    stored = {name: t.to(torch.bfloat16).contiguous() for name, t in weights.items()}
    _save(stored, directory / WEIGHTS_FILE)
    _write_json(directory / CONFIG_FILE, dataclasses.asdict(CONFIG))


def write_configs(directory: Path) -> ModelConfig:
    """Both spellings; the backbone is the tiny target."""
    hugging_face, reference = configs(SHAPE)
    taps = list(CONFIG.tap_layer_ids)
    n_layers = CONFIG.n_layers
    hugging_face["text_config"] |= {
        "dspark_target_layer_ids": taps,
        "num_hidden_layers": n_layers,
        "compress_ratios": [0] * (n_layers + SHAPE.layers),
    }
    reference["dspark_target_layer_ids"] = taps
    config, inference_config = (
        directory / name for name in ("config.json", "inference_config.json")
    )
    _write_json(config, hugging_face)
    _write_json(inference_config, reference)
    return read_model_config(CheckpointFiles(directory, config, inference_config, None, ()))


def write_drafter(directory: Path, config: ModelConfig, parameters: dict[str, Tensor]) -> None:
    """The shard, the list of tokens whose Markov rows are worth caching, and the receipt."""
    tensors: dict[str, Tensor] = {}
    for expected in expected_tensors(config):
        if expected.optional:
            continue
        weight = parameters[expected.name]
        if expected.kind is not Kind.FLOAT:
            pack = as_fp8 if expected.kind is Kind.DENSE else as_fp4
            tensors[expected.name], tensors[expected.scale_name] = pack(weight)
        elif expected.is_weight:
            tensors[expected.name] = weight.to(torch.bfloat16)
        else:
            tensors[expected.name] = weight.to(torch.bfloat16).float()
    _save(tensors, directory / "model.safetensors")
    tokens = list(range(CLASS_SIZE * len(CLASSES)))
    _write_json(
        directory / MARKOV_FILE,
        {"version": 1, "vocab_size": config.vocab_size, "tokens": tokens},
    )
    names = ("config.json", "inference_config.json", "model.safetensors")
    files = digest_files([directory / name for name in names])
    (directory / RECEIPT_FILE).write_bytes(render_receipt(Receipt(files, files)))


def spoken(
    directory: Path, n_texts: int, seed: int, *, wrong: float = WRONG, n_spoken: int = N_SPOKEN
) -> Corpus:
    """What the target says greedily behind prompts that nobody is examined on."""
    config, tensors = read_weights(directory)
    layers = (config.tap_layer_ids[0] - 1, *config.tap_layer_ids)
    wider = dataclasses.replace(config, tap_layer_ids=layers)
    target = Target(TargetWeights(wider, tensors), n_texts, N_PROMPT + n_spoken)
    texts = documents(random.Random(f"spoken-{seed}"), wrong)
    said = [[next(text) for _ in range(N_PROMPT)] for text, _ in zip(texts, range(n_texts))]  # noqa: B905
    rows: list[Tensor] = []
    pos = 0
    while pos < N_PROMPT + n_spoken:
        n_new = N_PROMPT if pos == 0 else 1
        out = target.forward([Span(n, pos, text[pos:]) for n, text in enumerate(said)])
        rows.append(torch.cat(out.taps, dim=-1).view(n_texts, n_new, -1))
        best = out.logits.view(n_texts, n_new, -1)[:, -1].argmax(-1).tolist()
        for text, token in zip(said, best, strict=True):
            text.append(token)
        pos += n_new
    all_rows = torch.cat(rows, dim=1)
    tokens = torch.tensor(said)[:, : all_rows.shape[1]]
    width = config.hidden
    return Corpus(tokens, all_rows[..., width:], all_rows[..., :-width], N_PROMPT)


def train(
    directory: Path,
    *,
    seed: int,
    target_steps: int,
    lesson: Lesson = LESSON,
    n_texts: int = 384,
) -> None:
    """Everything, into a folder. With `target_steps` 0 the target that lies there is kept."""
    if target_steps:
        weights = train_target(
            CONFIG, n_steps=target_steps, batch=24, length=97, lr=4e-3, seed=seed
        )
        write_target(directory, weights)
    config = write_configs(directory)
    tensors = {name: t.float() for name, t in read_weights(directory).tensors.items()}
    generator = torch.Generator().manual_seed(seed)
    parameters = initial(config, tensors["embed"], tensors["head"], generator)
    parameters = train_drafter(
        parameters, config, lambda n: spoken(directory, n_texts, 1000 * seed + n), lesson, seed
    )
    hard = spoken(directory, n_texts, 1000 * seed + 777, wrong=HARD, n_spoken=N_HARD)
    parameters = calibrate(parameters, config, hard, 8 * n_texts, seed)
    write_drafter(directory, config, parameters)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo's target and drafter.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target-steps", type=int, default=600, help="0: keep the one in DIR")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    train(given.out, seed=given.seed, target_steps=given.target_steps)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # the library leaves it to its owner alone


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
