"""`examples/train_tiny.py`: what is trained is what the worker loads, bit by bit of the format."""

import dataclasses
from pathlib import Path

import pytest
import torch

from dspark_worker.model.dequant import fp4_packed
from dspark_worker.model.kv_quant import KvQuant
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.inspection import inspect
from dsparkctl.engine.target import Target, read_weights
from examples import train_tiny
from examples.make_tiny_checkpoint import as_fp4
from examples.tiny_drafter_training import (
    Blocks,
    Lesson,
    Mistake,
    assemble,
    draft,
    initial,
    nearest_fp4,
    through_release,
)
from examples.tiny_target_training import CONFIG, train_target
from tests.unit.dspark_worker.model import tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole script, for very few steps."""
    directory = tmp_path_factory.mktemp("trained")
    short = Lesson(n_steps=2, batch=8, lr=1e-3, hinge=0.3, sureness=0.2, free=0.5)
    train_tiny.train(directory, seed=3, target_steps=2, lesson=short, n_texts=4)
    return directory


def test_the_script_writes_a_checkpoint_in_order_and_a_target_beside_it(trained: Path) -> None:
    files = find_files(trained)
    config = train_tiny.write_configs(trained)
    assert inspect(files, config).ok
    assert {path.name for path in files.sources} == {
        "config.json",
        "inference_config.json",
        "model.safetensors",
    }
    assert Target.load(trained, 1, 64).tap_layer_ids == config.tap_layer_ids


@pytest.mark.parametrize("kv_quant", [KvQuant.NONE, KvQuant.V4_RECORD_64])
def test_the_forward_that_is_trained_is_the_workers(
    trained: Path, tmp_path: Path, kv_quant: KvQuant
) -> None:
    """Same hidden states, hence same confidences and first drafts, from the written file."""
    config = train_tiny.write_configs(tmp_path)
    tensors = {name: t.float() for name, t in read_weights(trained).tensors.items()}
    generator = torch.Generator().manual_seed(5)
    parameters = initial(config, tensors["embed"], tensors["head"], generator)
    confidence = parameters[f"mtp.{config.n_layers - 1}.confidence_head.proj.weight"]
    parameters |= {
        f"mtp.{config.n_layers - 1}.confidence_head.proj.weight": confidence
        + torch.randn(confidence.shape, generator=generator)
    }
    train_tiny.write_drafter(tmp_path, config, parameters)
    corpus = train_tiny.spoken(trained, 3, seed=1, wrong=0.1, n_spoken=40)
    blocks = Blocks(torch.tensor([2, 0]), torch.tensor([50, 77]), torch.tensor([config.window, 9]))
    model = assemble(through_release(parameters, config), config, kv_quant, Mistake.NONE)
    mine = draft(model, config, corpus, blocks, shift=4)

    drafter = tiny.load(tmp_path, kv_quant=kv_quant.value)
    parts, requests = [], []
    for slot, (text, anchor, held) in enumerate(zip(*(b.tolist() for b in blocks), strict=True)):
        rows = corpus.rows[text, anchor - held : anchor]
        parts.append(tiny.part(slot, anchor - held + 4, rows))
        token = int(corpus.tokens[text, anchor])
        requests.append(tiny.request(slot, anchor - held + 4, anchor + 4, token, of=drafter))
    assert drafter.append(parts) == [None, None]
    for n, theirs in enumerate(tiny.draft(drafter, requests)):
        assert theirs.ids[0] == mine.logits[n, 0].argmax()
        # Behind the first step each goes its own way: the worker's is conditioned on its drafts.
        first = torch.sigmoid(mine.conf_logit[n, 0]).item()
        assert theirs.confidence[0] == pytest.approx(first, abs=1e-4)
        best = mine.logits[n, 0].topk(2).values
        assert theirs.margin[0] == pytest.approx((best[0] - best[1]).item(), abs=1e-3)


def test_the_quick_fp4_is_the_packed_one() -> None:
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    weight[0] = torch.arange(64) * 0.25  # every tie
    packed = fp4_packed(*as_fp4(weight))
    assert torch.equal(nearest_fp4(weight.view(-1, 32)).view(64, 64), packed)


def test_the_same_seed_trains_the_same_target() -> None:
    small = dataclasses.replace(CONFIG, n_layers=2, tap_layer_ids=(1,))
    one, two, other = (
        train_target(small, n_steps=2, batch=2, length=12, lr=1e-3, seed=seed) for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["embed"], other["embed"])
