"""What `bench round` measures is a real round, and all of it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from dspark_worker.bench import course as course_module
from dspark_worker.bench.course import PARTS, Course, Load
from dspark_worker.bench.products import Products
from dspark_worker.bench.shapes import TINY
from dspark_worker.bench.stopwatch import clock_of
from dspark_worker.bench.synthetic import make_up
from dspark_worker.memory import growth, rss_bytes

DECODE = Load(2, 6, 0)


@pytest.fixture(scope="module")
def course() -> Iterator[Course]:
    drafter = make_up(TINY, device="cpu", dtype="float32", kv_quant_name="auto", max_slots=4)
    course = Course(drafter, clock_of("cpu", 1), max_slots=4)
    yield course
    course.close()


def test_the_parts_of_a_round_sum_up_to_it(course: Course) -> None:
    for sample in course.run(DECODE, 5):
        assert set(sample.parts) == set(PARTS)
        assert sum(sample.parts.values()) == pytest.approx(sample.whole)
        assert all(value > 0 for value in sample.parts.values()), sample


def test_a_prefill_drafts_nothing(course: Course) -> None:
    (sample,) = course.run(Load(1, 16, 0, drafting=False), 1)
    drafting = ("attention", "MoE", "head", "Markov", "confidence")
    assert all(sample.parts[part] == 0 for part in drafting)
    assert sample.parts["main_proj"] > 0
    assert sample.parts["context KV"] > 0


def test_the_floor_is_every_product_of_the_round_in_its_shapes(course: Course) -> None:
    products = course.note(DECODE)
    shapes = [[tuple(a.shape) for a in args if hasattr(a, "shape")] for _, args, _ in products.all]
    n_blocks, n_spec, rank = 2, TINY.num_spec, TINY.markov_rank
    assert shapes[0] == [(12, 3 * TINY.hidden), (TINY.hidden, 3 * TINY.hidden)]
    assert shapes[1:4] == [[(12, TINY.hidden), (TINY.head_dim, TINY.hidden)]] * 3
    assert shapes[-n_spec:] == [[(2, rank), (rank, TINY.vocab_size)]] * n_spec
    assert [(n_blocks, n_spec, TINY.hidden), (TINY.vocab_size, TINY.hidden)] in shapes
    (sample,) = course.run(DECODE, 1, products)
    assert 0 < sample.floor < sample.whole


def test_only_new_rows_are_projected_whatever_the_window_holds(course: Course) -> None:
    """Context KV is derived once per row: a round's products do not know the window's length."""
    course.fill()
    full = course.note(Load(1, 1, 0))
    assert [tuple(args[0].shape) for _, args, _ in full.all[:4]] == [
        (1, 3 * TINY.hidden),
        *[(1, TINY.hidden)] * 3,
    ]


def test_flops_and_bytes_are_those_of_the_products() -> None:
    a, b, c = torch.ones(3, 4), torch.ones(4, 5), torch.ones(2, 3, 4)
    with torch.inference_mode(), Products() as noted:
        torch.mm(a, b)
        torch.nn.functional.linear(a, b.t())
        torch.bmm(c, torch.ones(2, 4, 5))
    assert noted.n_flops == 2 * (60 + 60 + 120)
    assert noted.n_bytes == 4 * (12 + 20 + 24 + 40)


def test_near_the_last_position_the_windows_start_over(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course_module, "_LAST_POS", 200)
    assert len(course.run(DECODE, 60)) == 60


def test_rounds_do_not_grow_the_process(course: Course) -> None:
    """A short look; `bench round --rss-rounds 100000` is the long one."""
    course.run(DECODE, 300)
    seen = []
    for done in range(0, 1000, 100):
        course.run(DECODE, 100)
        seen.append((done, rss_bytes()))
    assert growth(seen).bytes_per_round < 500, seen


def test_growth_is_the_slope_of_a_line() -> None:
    assert growth([(0, 5), (10, 25), (20, 45)]) == (2.0, 5, 45)


def test_what_is_too_large_for_this_machine_is_one_line() -> None:
    huge = replace(TINY, hidden=1 << 20, vocab_size=1 << 20)
    with pytest.raises(Exception, match=r"takes \d+\.\d GB, \d+\.\d GB are free"):
        make_up(huge, device="cpu", dtype="float32", kv_quant_name="none", max_slots=1)
