"""Order of a wrapping u32 (§7.1, R25)."""

from dsparkctl.contract.serial import following, is_older

TOP = 0xFFFFFFFF
HALF = 1 << 31


def test_smaller_is_older_nearby() -> None:
    """§7.1."""
    assert is_older(1, 2)
    assert not is_older(2, 1)


def test_a_generation_is_not_older_than_itself() -> None:
    """§7.1."""
    assert not any(is_older(a, a) for a in (0, 1, HALF, TOP))


def test_the_greatest_is_older_than_zero() -> None:
    """§7.1: u32, wraps."""
    assert is_older(TOP, 0)
    assert not is_older(0, TOP)


def test_half_the_circle_is_older_both_ways_and_one_step_less_is_not() -> None:
    """R25: (int32)(a - b) < 0."""
    for a in (0, 5, HALF, TOP):
        assert is_older(a, (a + HALF) & TOP)
        assert is_older((a + HALF) & TOP, a)
        assert not is_older((a + HALF - 1) & TOP, a)
        assert is_older(a, (a + HALF - 1) & TOP)


def test_following_wraps_and_is_newer() -> None:
    """§7.1."""
    assert following(TOP) == 0
    assert all(is_older(a, following(a)) for a in (0, HALF - 1, HALF, TOP))
