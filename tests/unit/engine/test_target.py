"""The tiny target gives the same logits and taps however its batches are cut."""

import dataclasses
import json
import random
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dsparkctl.engine.target import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Forward,
    Span,
    Target,
    TargetWeights,
)
from dsparkctl.engine.target_model import TargetConfig, model_of, turns_until

CONFIG = TargetConfig(
    vocab_size=32,
    hidden=16,
    n_layers=3,
    n_heads=2,
    head_dim=8,
    ffn_hidden=16,
    n_streams=4,
    rope_theta=100.0,
    span=7,
    tap_layer_ids=(1, 2),
)
LIMIT = 40
N_SLOTS = 4


def weights(seed: int = 0) -> TargetWeights:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.4
        for name, shape in CONFIG.shapes().items()
    }
    return TargetWeights(CONFIG, tensors)


def fresh() -> Target:
    return Target(weights(), N_SLOTS, LIMIT)


def text(seed: int, length: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(CONFIG.vocab_size) for _ in range(length)]


def whole(tokens: Sequence[int]) -> Forward:
    """The text alone, at once."""
    return fresh().forward([Span(0, 0, tokens)])


def close(mine: Tensor, theirs: Tensor) -> bool:
    return bool((mine - theirs).abs().max() < 1e-11)


def same(mine: Forward, theirs: Forward) -> bool:
    """Logits but for rounding; taps by their bits, which so small a difference does not reach."""
    taps = zip(mine.taps, theirs.taps, strict=True)
    return close(mine.logits, theirs.logits) and all(torch.equal(a, b) for a, b in taps)


def rows(out: Forward, start: int, end: int) -> Forward:
    return Forward(out.logits[start:end], tuple(tap[start:end] for tap in out.taps))


def joined(parts: Sequence[Forward]) -> Forward:
    logits = torch.cat([part.logits for part in parts])
    taps = zip(*(part.taps for part in parts), strict=True)
    return Forward(logits, tuple(torch.cat(tap) for tap in taps))


def test_results_have_the_promised_shapes_and_dtypes() -> None:
    target = fresh()
    out = target.forward([Span(1, 0, [3, 4, 5]), Span(0, 0, [6])])
    assert out.logits.shape == (4, target.vocab_size)
    assert out.logits.dtype == torch.float64
    assert [tap.shape for tap in out.taps] == [(4, target.hidden)] * 2
    assert {tap.dtype for tap in out.taps} == {torch.bfloat16}
    assert target.tap_layer_ids == (1, 2)


@pytest.mark.parametrize("cuts", [(1, 2, 3), (13,), (5, 6, 20), tuple(range(1, 30))])
def test_chunks_of_a_prompt_give_what_the_whole_gives(cuts: tuple[int, ...]) -> None:
    tokens, target = text(1, 30), fresh()
    edges = [0, *cuts, 30]
    parts = [target.forward([Span(2, start, tokens[start:end])]) for start, end in pairwise(edges)]
    assert same(joined(parts), whole(tokens))


def test_a_batch_of_unequal_spans_gives_what_each_gives_alone() -> None:
    texts = [text(seed, LIMIT) for seed in range(4)]
    chance = random.Random(0)
    target = fresh()
    held = [0, 0, 0, 0]
    seen: list[list[Forward]] = [[], [], [], []]
    while min(held) < LIMIT:
        slots = [s for s in chance.sample(range(4), chance.randint(1, 4)) if held[s] < LIMIT]
        sizes = [min(chance.choice((1, 1, 2, 6, 17)), LIMIT - held[s]) for s in slots]
        spans = [
            Span(s, held[s], texts[s][held[s] : held[s] + n])
            for s, n in zip(slots, sizes, strict=True)
        ]
        if not spans:
            continue
        out, start = target.forward(spans), 0
        for slot, size in zip(slots, sizes, strict=True):
            seen[slot].append(rows(out, start, start + size))
            start += size
            held[slot] += size
    for slot in range(4):
        assert same(joined(seen[slot]), whole(texts[slot]))


def test_refused_drafts_leave_no_trace_once_their_positions_are_written_again() -> None:
    tokens, target = text(1, 20), fresh()
    target.forward([Span(0, 0, tokens[:12])])
    target.forward([Span(0, 12, text(9, 6))])
    again = target.forward([Span(0, 12, tokens[12:])])
    assert same(again, rows(whole(tokens), 12, 20))


def test_a_slot_that_changes_hands_starts_from_nothing() -> None:
    target = fresh()
    target.forward([Span(0, 0, text(5, LIMIT))])
    assert same(target.forward([Span(0, 0, text(1, 9))]), whole(text(1, 9)))


def test_a_prefix_hit_takes_over_the_positions_of_another_slot_and_no_more() -> None:
    target, prefix = fresh(), text(1, 14)
    mine, other = prefix + text(2, 6), prefix + text(3, 6)
    target.forward([Span(0, 0, mine)])
    target.forward([Span(3, 0, text(4, 20))])
    target.copy_kv(0, 3, 14)
    assert same(target.forward([Span(3, 14, other[14:])]), rows(whole(other), 14, 20))
    beyond = target.forward([Span(3, 20, [1])])
    assert same(beyond, rows(whole([*other, 1]), 20, 21))
    # What the source slot holds is still its own.
    assert same(target.forward([Span(0, 20, [1])]), rows(whole([*mine, 1]), 20, 21))


def test_earlier_positions_are_read_and_later_ones_are_not() -> None:
    target, tokens = fresh(), text(1, 20)
    target.forward([Span(0, 0, tokens)])
    changed = [*tokens[:9], (tokens[9] + 1) % CONFIG.vocab_size, *tokens[10:]]
    one, other = whole(tokens), whole(changed)
    assert same(rows(one, 0, 9), rows(other, 0, 9))
    assert all(not close(one.logits[i], other.logits[i]) for i in range(9, 20))
    # Behind the cut the cache still holds the old text; a query before it must not see that.
    assert same(target.forward([Span(0, 4, tokens[4:6])]), rows(one, 4, 6))


def test_positions_enter_by_their_distance_alone() -> None:
    """A query sees `span` positions a layer, so a text may grow to any length."""
    reach = CONFIG.n_layers * (CONFIG.span - 1)
    tail = text(1, reach + 4)
    late = whole([*text(2, LIMIT - len(tail)), *tail])
    assert close(late.logits[-4:], whole(tail).logits[-4:])


def test_positions_beyond_the_limit_are_refused() -> None:
    with pytest.raises(AssertionError, match="max_model_len"):
        fresh().forward([Span(0, LIMIT - 1, [1, 2])])


def test_a_tap_is_the_mean_of_the_copies_that_enter_its_layer_and_they_differ() -> None:
    """Made again, layer by layer, from the definition."""
    tokens = torch.tensor(text(1, 12))
    model = model_of(CONFIG, {n: t.double() for n, t in weights().tensors.items()})
    turns = turns_until(CONFIG, 12, torch.float64)
    streams = model.embed[tokens].unsqueeze(0).repeat(CONFIG.n_streams, 1, 1)
    entering = []
    for attention, feed_forward in model.layers:
        entering.append(streams)
        qkv = _read(attention.pre, streams) @ attention.into
        y = _attention_by_loops(qkv.view(12, -1, CONFIG.head_dim), turns) @ attention.out
        streams = _written(attention.post, attention.comb, streams, y)
        gate, up = (_read(feed_forward.pre, streams) @ feed_forward.into).chunk(2, -1)
        y = (torch.nn.functional.silu(gate) * up) @ feed_forward.out
        streams = _written(feed_forward.post, feed_forward.comb, streams, y)
    out = whole(tokens.tolist())
    for layer, tap in zip(CONFIG.tap_layer_ids, out.taps, strict=True):
        copies = entering[layer]
        assert torch.equal(tap, copies.mean(0).to(torch.bfloat16))
        for a in range(CONFIG.n_streams):
            for b in range(a):
                assert (copies[a] - copies[b]).abs().mean() > 0.1 * copies.abs().mean()
    assert close(out.logits, _read(model.pre, streams) @ model.head.t())


def _read(pre: Tensor, streams: Tensor) -> Tensor:
    x = torch.einsum("c,ctd->td", pre, streams)
    return x / x.square().mean(-1, keepdim=True).sqrt()


def _written(post: Tensor, comb: Tensor, streams: Tensor, y: Tensor) -> Tensor:
    return torch.einsum("ba,atd->btd", comb, streams) + torch.einsum("b,td->btd", post, y)


def _attention_by_loops(qkv: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(qkv.reshape(*turns.shape, 2)) * turns
    turned = torch.view_as_real(pairs).flatten(-2)
    q, k, v = turned[:, :-2], turned[:, -2], turned[:, -1]
    result = torch.zeros(len(q), CONFIG.n_heads, CONFIG.head_dim, dtype=torch.float64)
    for i in range(len(q)):
        first = max(0, i - CONFIG.span + 1)
        for head in range(CONFIG.n_heads):
            scores = k[first : i + 1] @ q[i, head] * CONFIG.head_dim**-0.5
            result[i, head] = torch.softmax(scores, 0) @ v[first : i + 1]
    return result.flatten(1)


def written(directory: Path) -> TargetWeights:
    """A tiny target on disk, bf16 as the trained one."""
    made = weights()
    tensors = {name: t.to(torch.bfloat16) for name, t in made.tensors.items()}
    save_file(tensors, directory / WEIGHTS_FILE)
    (directory / CONFIG_FILE).write_text(json.dumps(dataclasses.asdict(CONFIG)), encoding="utf-8")
    return TargetWeights(CONFIG, tensors)


def test_a_target_is_read_from_its_two_files(tmp_path: Path) -> None:
    stored = written(tmp_path)
    spans = [Span(1, 0, text(1, 9))]
    one = Target.load(tmp_path, 2, LIMIT).forward(spans)
    assert same(one, Target(stored, 2, LIMIT).forward(spans))


@pytest.mark.parametrize("fault", ["missing", "more", "shape"])
def test_weights_that_are_not_the_configs_are_refused_by_name(tmp_path: Path, fault: str) -> None:
    tensors = dict(written(tmp_path).tensors)
    name = "layers.1.ffn.down"
    if fault == "missing":
        del tensors[name]
    elif fault == "more":
        name = "layers.9.ffn.down"
        tensors[name] = torch.zeros(2, 2)
    else:
        tensors[name] = torch.zeros(2, 2)
    save_file(tensors, tmp_path / WEIGHTS_FILE)
    with pytest.raises(ValueError, match=re.escape(name)):
        Target.load(tmp_path, 1, LIMIT)
