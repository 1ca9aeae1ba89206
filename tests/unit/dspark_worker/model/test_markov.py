"""The Markov cache is a pure speed-up: a hit gives the bits of a miss (model specification §10)."""

import logging
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark_worker.drafter import DraftRequest
from dspark_worker.model import markov
from dspark_worker.model.drafter import TorchDrafter
from dspark_worker.model.load import load_drafter
from dspark_worker.model.markov import bias, make_cache, product
from dspark_worker.model.scratch import Scratch
from tests.unit.dspark_worker.model import tiny

V, M = 1000, 64
ROW = 4 * V


def heads(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(V, M, generator=generator), torch.randn(V, M, generator=generator)


EMBED, HEAD = heads()


@given(
    st.lists(st.integers(0, V - 1), min_size=1, max_size=9),
    st.lists(st.integers(0, V - 1), unique=True, max_size=30),
)
def test_hit_and_miss_are_bit_equal_however_many_ask_at_once(
    asked: list[int], kept: list[int]
) -> None:
    scratch = Scratch()
    tokens = list(dict.fromkeys(kept + asked[::2]))  # every second one hits
    cache = make_cache(EMBED, HEAD, tokens, max_bytes=1 << 20)
    ids = torch.tensor(asked)
    without = bias(ids, EMBED[ids], HEAD, None, scratch).clone()
    with_it = bias(ids, EMBED[ids], HEAD, cache, scratch).clone()
    assert torch.equal(without, with_it)
    for n in range(len(asked)):
        alone = bias(ids[n : n + 1], EMBED[ids[n : n + 1]], HEAD, None, scratch)
        assert torch.equal(alone[0], without[n])


def test_a_bias_is_the_product_of_head_and_embedding() -> None:
    ids = torch.tensor([5, 7, 900])
    cache = make_cache(EMBED, HEAD, [7], max_bytes=1 << 20)
    expected = EMBED[ids].double() @ HEAD.double().t()
    found = bias(ids, EMBED[ids], HEAD, cache, Scratch())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


def test_a_row_that_is_kept_is_read_and_not_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache(EMBED, HEAD, [3, 4], max_bytes=1 << 20)
    counted: list[int] = []

    def counting(embedded: torch.Tensor, head: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        counted.append(len(embedded))
        return product(embedded, head, scratch)

    monkeypatch.setattr(markov, "product", counting)
    for asked in ([3, 4], [3, 5, 4], [5, 6]):
        ids = torch.tensor(asked)
        bias(ids, EMBED[ids], HEAD, cache, Scratch())
    assert counted == [1, 2]


def test_the_rows_are_bounded_and_the_first_tokens_stay(caplog: pytest.LogCaptureFixture) -> None:
    cache = make_cache(EMBED, HEAD, [9, 8, 7, 6], max_bytes=3 * ROW + 5)
    assert cache is not None
    assert (cache.places >= 0).nonzero().flatten().tolist() == [8, 9]
    assert cache.n_bytes == 3 * ROW
    assert "2 of 4 rows fit" in caplog.text
    assert make_cache(EMBED, HEAD, [1], max_bytes=ROW) is None
    assert make_cache(EMBED, HEAD, [], max_bytes=1 << 20) is None


def test_where_products_differ_by_place_there_is_no_cache(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The promise is checked when the cache is made, on the machine that has to keep it."""

    def by_place(embedded: torch.Tensor, head: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        out = product(embedded, head, scratch)
        out[1::2] *= 1 + 2**-20
        return out

    monkeypatch.setattr(markov, "product", by_place)
    assert make_cache(EMBED, HEAD, range(10), max_bytes=1 << 20) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[TorchDrafter, TorchDrafter]:
    """The same checkpoint without a cache, and with one of every second token."""
    directory = tmp_path_factory.mktemp("tiny")
    tiny.write(directory)
    without = tiny.load(directory)
    with_it = load(directory, range(0, without.config.vocab_size, 2))
    assert with_it.markov_cache_size() == (32, 4 * 64 * 33)
    assert without.markov_cache_size() == (0, 0)
    for drafter in (without, with_it):
        for slot in range(4):
            rows = tiny.make_rows(drafter, 6, seed=slot)
            drafter.append([tiny.part(slot, 0, rows)])
    return without, with_it


def load(directory: Path, tokens: range) -> TorchDrafter:
    return load_drafter(
        directory,
        device="cpu",
        dtype="float32",
        kv_quant="none",
        max_slots=4,
        markov_tokens=tokens,
        markov_bytes=1 << 20,
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 63), st.integers(1, 5)), min_size=1, max_size=4
    )
)
def test_drafts_are_the_same_with_and_without_the_cache(
    pair: tuple[TorchDrafter, TorchDrafter], asked: list[tuple[int, int, int]]
) -> None:
    requests = [
        DraftRequest(slot, 0, anchor_pos, token, n_out)
        for slot, (anchor_pos, token, n_out) in enumerate(asked)
    ]
    without, with_it = (tiny.draft(drafter, requests) for drafter in pair)
    assert without == with_it
