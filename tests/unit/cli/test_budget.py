"""A round on paper (issue 6, part 4) against the contract's own figures (§8.1) and the model's."""

import pytest

from dsparkctl.cli.budget import Inputs, cost, experts_touched, table, weights_mb


@pytest.mark.parametrize(("n_requests", "n_rows", "wire_mb"), [
    (1, 6, 0.184), (2, 6, 0.369), (3, 5, 0.461), (4, 5, 0.614), (1, 128, 3.932),
])  # fmt: skip
def test_bytes_are_those_of_section_8_1(n_requests: int, n_rows: int, wire_mb: float) -> None:
    assert cost(Inputs(), "", n_requests, n_rows, 5).wire_mb == pytest.approx(wire_mb, abs=0.001)


def test_a_40_gbit_link_takes_what_section_8_1_says() -> None:
    assert cost(Inputs(), "", 1, 6, 5).wire_ms * 1e3 == pytest.approx(40, abs=1)
    assert cost(Inputs(), "", 4, 5, 5).wire_ms * 1e3 == pytest.approx(134, abs=2)
    assert cost(Inputs(), "", 1, 128, 0).wire_ms == pytest.approx(0.85, abs=0.01)


def test_weights_are_those_that_a_round_reads() -> None:
    """49 + 237 + 813 + 496 MB for one request, 2619 of the experts' for four."""
    assert weights_mb(Inputs(), 1, 5) == pytest.approx(49 + 237 + 813 + 496, rel=0.005)
    assert weights_mb(Inputs(), 4, 5) == pytest.approx(49 + 237 + 2619 + 496, rel=0.005)
    without = weights_mb(Inputs(has_markov_cache=False), 1, 5)
    assert without - weights_mb(Inputs(), 1, 5) == pytest.approx(331, abs=1)


def test_experts_that_are_met_grow_and_never_beyond_all() -> None:
    met = [experts_touched(Inputs(), n) for n in (0, 1, 5, 20, 10_000)]
    assert met[:2] == [0, 3]
    assert met == sorted(met)
    assert met[-1] == pytest.approx(128)


def test_a_faster_link_or_memory_is_never_slower() -> None:
    plain, fast = table(Inputs()), table(Inputs(link_gbit=100, memory_gb_s=2000))
    assert all(a.total_ms < b.total_ms for a, b in zip(fast, plain, strict=True))
