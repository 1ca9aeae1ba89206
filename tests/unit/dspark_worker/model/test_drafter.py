"""`TorchDrafter` as the desk sees it: windows, batches, n_out, faults (spec §4 to §8, §13)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark_worker.drafter import Draft, Drafter, Fault
from dspark_worker.model.drafter import TorchDrafter
from dsparkctl.checkpoint.errors import CheckpointError
from examples.make_tiny_checkpoint import Shape
from tests.unit.dspark_worker.model import tiny
from tests.unit.dspark_worker.model.reference import Reference


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TorchDrafter:
    directory = tmp_path_factory.mktemp("small")
    tiny.write(directory)
    return tiny.load(directory)


def test_it_is_a_drafter(small: TorchDrafter) -> None:
    drafter: Drafter = small
    assert (drafter.backend, small.device, small.dtype) == ("torch", "cpu", "float32")


@pytest.mark.parametrize("shape", [tiny.SMALL, tiny.OTHER], ids=["small", "other"])
@pytest.mark.parametrize(
    ("n_rows", "first_pos", "max_model_len"),
    [(0, 0, 100), (1, 0, 100), (3, 0, 100), (5, 90, 97), (5, 3000, 1 << 20)],
)
def test_it_agrees_with_a_reference_written_from_the_specification_alone(
    tmp_path: Path, shape: Shape, n_rows: int, first_pos: int, max_model_len: int
) -> None:
    """§4 to §6 in two shapes: nothing is hard-coded that config.json states (§11)."""
    tensors = tiny.write(tmp_path, shape)
    drafter = tiny.load(tmp_path)
    rows = tiny.make_rows(drafter, n_rows)
    anchor_pos = first_pos + n_rows
    drafter.append([tiny.part(0, first_pos, rows)])
    one = tiny.request(0, first_pos, anchor_pos, 7, of=drafter)
    (mine,) = tiny.draft(drafter, [one], max_model_len)

    window = [(first_pos + i, row.double().numpy()) for i, row in enumerate(rows)]
    reference = Reference(tiny.float64(tensors), drafter.config)
    theirs = reference.draft(window, anchor_pos, 7, max_model_len)
    assert list(mine.ids) == theirs.ids
    assert tiny.close(mine.confidence, theirs.confidence, 5e-4)
    assert tiny.close(mine.margin, theirs.margin, 1e-3)
    hidden = tiny.hidden_of(drafter, one, max_model_len).numpy()
    assert np.abs(hidden - theirs.hidden).max() < 2e-3


def test_a_batch_of_four_equals_four_singles(small: TorchDrafter) -> None:
    """Windows of 8, 3, 0 and 1 rows in one forward: padding changes nothing (pitfalls 4, 8, 17)."""
    lengths = (8, 3, 0, 1)
    rows = tiny.make_rows(small, sum(lengths))
    starts = (0, 20, 0, 500)
    parts, at = [], 0
    for slot, (n_rows, first_pos) in enumerate(zip(lengths, starts, strict=True)):
        parts.append(tiny.part(slot, first_pos, rows[at : at + n_rows]))
        at += n_rows
    assert small.append(parts) == [None] * 4
    requests = [
        tiny.request(slot, first, first + n, 11 + slot, of=small)
        for slot, (n, first) in enumerate(zip(lengths, starts, strict=True))
    ]
    together = tiny.draft(small, requests)
    for one, batched in zip(requests, together, strict=True):
        (alone,) = tiny.draft(small, [one])
        assert list(alone.ids) == list(batched.ids)
        assert tiny.close(alone.confidence, batched.confidence, 1e-5)
        assert tiny.close(alone.margin, batched.margin, 1e-4)


@pytest.mark.parametrize("n_out", [1, 2, 3, 4])
def test_positions_below_n_out_are_bit_identical_and_the_rest_is_zero(
    small: TorchDrafter, n_out: int
) -> None:
    """§6.3 of the contract (v1.3)."""
    small.append([tiny.part(s, 0, tiny.make_rows(small, 8, s)) for s in range(2)])
    full = tiny.draft(small, [tiny.request(s, 0, 8, 3, of=small) for s in range(2)])
    cut = tiny.draft(
        small,
        [tiny.request(0, 0, 8, 3, n_out, of=small), tiny.request(1, 0, 8, 3, 1, of=small)],
    )
    for whole, part, n in zip(full, cut, (n_out, 1), strict=True):
        for mine, theirs in zip(part, whole, strict=True):
            assert list(mine) == list(theirs[:n]) + [0] * (5 - n)


def test_margins_are_zeros_when_nobody_wants_them(small: TorchDrafter) -> None:
    small.append([tiny.part(0, 0, tiny.make_rows(small, 8))])
    one = [tiny.request(0, 0, 8, 3, of=small)]
    (plain,) = small.draft(one, max_model_len=tiny.FAR, want_margin=False)
    (with_margin,) = tiny.draft(small, one)
    assert isinstance(plain, Draft)
    assert list(plain.margin) == [0] * 5
    assert plain.ids == with_margin.ids
    assert all(margin > 0 for margin in with_margin.margin)


def test_rows_sent_in_pieces_with_rollback_and_wrap_leave_what_one_sending_leaves(
    small: TorchDrafter,
) -> None:
    """§7.2.3: keyed by pos mod W, re-sent rows overwrite, rolled back rows are never read."""
    rows = tiny.make_rows(small, 20)
    wrong = tiny.make_rows(small, 4, 99)
    small.append([tiny.part(0, 0, rows[:8])])
    small.append([tiny.part(0, 8, rows[8:11])])
    small.append([tiny.part(0, 11, wrong)])  # rejected by the target, rolled back to 11
    small.append([tiny.part(0, 11, rows[11:13])])
    small.append([tiny.part(1, 5, rows[5:13])])
    # Positions 3..6 went when 11..14 came, and do not come back with the rollback: [7, 12] is held.
    pieces, whole = small.window_kv(0, 7, 13), small.window_kv(1, 7, 13)
    assert torch.allclose(pieces, whole, atol=1e-5)
    assert not torch.allclose(pieces[:, 0], whole[:, 1], atol=1e-2)
    requests = [tiny.request(slot, 7, 13, 9, of=small) for slot in (0, 1)]
    first, second = tiny.draft(small, requests)
    assert first.ids == second.ids


def test_the_same_window_drafted_twice_gives_identical_drafts(small: TorchDrafter) -> None:
    """§7.2.6, pitfall 9: no draft row stays in the window."""
    small.append([tiny.part(0, 0, tiny.make_rows(small, 6))])
    one = [tiny.request(0, 0, 6, 3, of=small)]
    before = small.window_kv(0, 0, 6).clone()
    assert tiny.draft(small, one) == tiny.draft(small, one)
    assert torch.equal(small.window_kv(0, 0, 6), before)


def test_an_empty_window_reads_no_row_of_anyone(small: TorchDrafter) -> None:
    """Pitfall 8: not position -1, not a previous request's rows."""
    one = [tiny.request(0, 0, 0, 3, of=small)]
    small.append([tiny.part(0, 0, tiny.make_rows(small, 8, 1))])
    before = tiny.draft(small, one)
    small.append([tiny.part(s, 0, tiny.make_rows(small, 8, 2 + s)) for s in range(4)])
    assert tiny.draft(small, one) == before


def test_an_append_only_round_leaves_the_next_drafts_unchanged(small: TorchDrafter) -> None:
    """Pitfall 14: chunked prefill equals prefill at once."""
    rows = tiny.make_rows(small, 6)
    small.append([tiny.part(0, 0, rows[:4])])
    small.append([tiny.part(0, 4, rows[4:])])
    (chunked,) = tiny.draft(small, [tiny.request(0, 0, 6, 3, of=small)])
    small.append([tiny.part(1, 0, rows)])
    (whole,) = tiny.draft(small, [tiny.request(1, 0, 6, 3, of=small)])
    assert chunked.ids == whole.ids


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_a_fault_of_its_entry_alone(
    small: TorchDrafter, bad: float
) -> None:
    """R29: it reaches no other entry, and not its own slot once it has left the window."""
    rows = tiny.make_rows(small, 17)
    small.append([tiny.part(slot, 0, rows[:8]) for slot in range(3)])
    requests = [tiny.request(slot, 0, 8, 3, of=small) for slot in range(3)]
    clean = tiny.draft(small, requests)

    broken = rows[:8].clone()
    broken[2, 5] = bad
    answers = small.append(
        [tiny.part(0, 0, rows[:8]), tiny.part(1, 0, broken), tiny.part(2, 0, rows[:8])]
    )
    assert [isinstance(answer, Fault) for answer in answers] == [False, True, False]
    drafted = small.draft(requests, max_model_len=tiny.FAR, want_margin=True)
    assert isinstance(drafted[1], Fault)
    assert (drafted[0], drafted[2]) == (clean[0], clean[2])

    # Partial windows of the broken slot that do not hold position 2, in a padded batch.
    assert isinstance(
        small.draft(
            [requests[0], tiny.request(1, 3, 8, 3, of=small)],
            max_model_len=tiny.FAR,
            want_margin=True,
        )[1],
        Draft,
    )
    assert small.append([tiny.part(1, 8, rows[8:11])]) == [None]
    small.append([tiny.part(0, 3, rows[3:11])])
    again = tiny.draft(small, [tiny.request(slot, 3, 11, 3, of=small) for slot in (0, 1)])
    assert again[0].ids == again[1].ids


def test_a_draft_that_is_not_finite_is_a_fault_of_its_request_alone(tmp_path: Path) -> None:
    """R29, where the fault lies in the model itself: one token's embedding."""
    tiny.write(tmp_path)
    drafter = tiny.load(tmp_path)
    requests = [tiny.request(slot, 0, 0, token, of=drafter) for slot, token in enumerate((3, 17))]
    clean = tiny.draft(drafter, requests)
    drafter._model.embed[17] = float("nan")
    answers = drafter.draft(requests, max_model_len=tiny.FAR, want_margin=True)
    assert answers[0] == clean[0]
    assert isinstance(answers[1], Fault)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["embed.weight", "mtp.1.ffn.experts.2.w1.weight"])
def test_a_weight_that_is_not_finite_is_refused_at_load_with_file_and_tensor(
    tmp_path: Path, name: str, value: float
) -> None:
    """A spoilt expert would pass the self-test and fail the first token that is routed to it."""
    spoilt = tiny.write(tmp_path)[name].clone()
    spoilt[0, 0] = value
    tiny.edit(tmp_path, {name: spoilt})
    with pytest.raises(CheckpointError, match=f"safetensors: {name}: .*not finite"):
        tiny.load(tmp_path)


@pytest.mark.parametrize("token", [-1, 64, 1 << 31])
def test_an_anchor_outside_the_vocabulary_is_a_fault_of_its_request_alone(
    small: TorchDrafter, token: int
) -> None:
    """R28, should the desk ever miss it."""
    requests = [tiny.request(0, 0, 0, token, of=small), tiny.request(1, 0, 0, 3, of=small)]
    bad, good = small.draft(requests, max_model_len=tiny.FAR, want_margin=False)
    assert isinstance(bad, Fault)
    assert isinstance(good, Draft)


def test_a_later_position_reaches_an_earlier_one(tmp_path: Path) -> None:
    """Pitfall 6: nothing is causal inside the block, so noise at j = 1.. changes position 0."""
    tensors = tiny.write(tmp_path)
    one = tiny.request(0, 0, 0, 3, of=tiny.load(tmp_path))
    before = tiny.hidden_of(tiny.load(tmp_path), one)
    embed = tensors["embed.weight"].clone()
    embed[tiny.SMALL.noise_id] += 1
    tiny.edit(tmp_path, {"embed.weight": embed})
    after = tiny.hidden_of(tiny.load(tmp_path), one)
    assert (before[0] - after[0]).abs().max() > 1e-3


def test_the_block_is_seeded_at_the_anchor_not_at_the_last_row(tmp_path: Path) -> None:
    """Pitfall 3: with one row at p, the query of the anchor stands at p + 1."""
    tensors = tiny.write(tmp_path)
    drafter = tiny.load(tmp_path)
    row = tiny.make_rows(drafter, 1)
    drafter.append([tiny.part(0, 4, row)])
    hidden = tiny.hidden_of(drafter, tiny.request(0, 4, 5, 3, of=drafter)).numpy()
    reference = Reference(tiny.float64(tensors), drafter.config)
    window = [(4, row[0].double().numpy())]
    right = reference.draft(window, 5, 3, tiny.FAR).hidden
    early = reference.draft(window, 4, 3, tiny.FAR).hidden
    assert np.abs(hidden - right).max() < 2e-3 < np.abs(hidden - early).max()


def test_every_tensor_but_bias_vl_has_its_say(tmp_path: Path) -> None:
    """Pitfalls 1, 2, 15: a tensor that is read, dropped and replaced by its default shows here."""
    shape = tiny.SMALL._replace(experts=3, active=2, layers=2)
    tensors = tiny.write(tmp_path, shape)

    def outputs() -> torch.Tensor:
        drafter = tiny.load(tmp_path)
        drafter.append([tiny.part(0, 0, tiny.make_rows(drafter, 8))])
        seen = [tiny.hidden_of(drafter, tiny.request(0, 0, 8, 3, of=drafter)).flatten()]
        (drafted,) = tiny.draft(drafter, [tiny.request(0, 0, 8, 3, of=drafter)])
        return torch.cat([*seen, torch.tensor([*drafted.confidence, *drafted.margin])])

    before = outputs()
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        # A router's bias shows only where it turns the order of two experts.
        push = 5.0 if ".gate.bias" in name else 1.0
        noise = push * torch.randn(tensor.shape, generator=generator)
        tiny.edit(tmp_path, {name: (tensor.float() + noise).to(tensor.dtype)})
        changed = (outputs() - before).abs().max().item() > 1e-5
        assert changed is not name.endswith("bias_vl"), name
        tiny.edit(tmp_path, {name: tensor})


def test_shards_in_any_order_give_identical_outputs(tmp_path: Path) -> None:
    """Pitfall 10: nothing is overwritten by load order, or matched by the end of its name."""
    tiny.write(tmp_path)
    whole = tiny.load(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    names = sorted(tensors, key=lambda name: hash(name[::-1]) % 97)
    (tmp_path / "model.safetensors").unlink()
    for shard in range(3):
        chosen = {name: tensors[name] for name in names[shard::3]}
        save_file(chosen, tmp_path / f"model-{3 - shard}-of-3.safetensors")
    one = [tiny.request(0, 0, 0, 3, of=whole)]
    assert tiny.draft(whole, one) == tiny.draft(tiny.load(tmp_path), one)


def test_the_self_tests_slot_lies_behind_all_others(small: TorchDrafter) -> None:
    """The protocol's slot `max_slots`."""
    small.append([tiny.part(s, 0, tiny.make_rows(small, 8, s)) for s in range(4)])
    one = [tiny.request(slot, 0, 8, 3, of=small) for slot in range(4)]
    before = tiny.draft(small, one)
    assert small.append([tiny.part(4, 0, tiny.make_rows(small, 8, 50))]) == [None]
    tiny.draft(small, [tiny.request(4, 0, 8, 3, of=small)])
    assert tiny.draft(small, one) == before


def test_an_append_of_nothing_is_no_fault(small: TorchDrafter) -> None:
    empty = tiny.make_rows(small, 0)
    assert small.append([tiny.part(0, 0, empty)]) == [None]
    assert small.append([]) == []


def test_bf16_and_f32_draft_alike_where_margins_are_wide(tmp_path: Path) -> None:
    """Pitfall 17: rounding is no bug; ids are compared above a margin only."""
    tiny.write(tmp_path)
    drafts = []
    for dtype in ("float32", "bfloat16"):
        drafter = tiny.load(tmp_path, dtype=dtype)
        drafter.append([tiny.part(0, 0, tiny.make_rows(drafter, 8))])
        drafts.append(tiny.draft(drafter, [tiny.request(0, 0, 8, 3, of=drafter)])[0])
    wide, narrow = drafts
    n_sure = next((j for j, margin in enumerate(wide.margin) if margin < 0.2), 5)
    assert n_sure > 0
    assert list(wide.ids[:n_sure]) == list(narrow.ids[:n_sure])
