"""What is wrong by a worker's own counters, in words: the alert rules of `examples/prometheus`, for
whoever watches a terminal. And how a worker differs from a good state that was saved.

Decides what is worth a line. Looks at two readings of one worker; refuses to trust them (keys are
only suggestions, §6.5): what is missing raises nothing. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from dsparkctl.cli.trend import Reading, started_again

SPAN_S: Final = 60.0
"""The alarms speak of the last minute."""
_FEW: Final = 50
"""Below so many drafts or entries nothing is said of shares."""
_COLLAPSED, _GOOD, _DEAD, _SHORT = 0.3, 0.5, 0.05, 0.05
_SLOW_US: Final = 20_000.0

_SAME: Final = (
    *("drafter_identity", "markov_identity", "contract_version", "build_version"),
    *("backend", "device", "dtype", "kv_quant", "markov_cache_rows"),
)
_TIMES: Final = ("worker_us_p50", "draft_us_p50", "apply_us_p50", "wire_us_p50")
_SLOWER: Final = 1.5
_WORSE: Final = 0.1


def alarms(readings: Sequence[Reading]) -> list[str]:
    """Of the newest reading against the oldest of the last minute that is of the same process."""
    now = readings[-1]
    since = [
        one for one in readings if now.at_s - one.at_s <= SPAN_S and not started_again(one, now)
    ]
    found = list(_of_now(now.stats))
    if since and since[0] is not now:
        found += _of_change(since[0].stats, now.stats)
    n_starts = sum(started_again(a, b) for a, b in pairwise(readings))
    if n_starts > 1:  # one is told as it happens, and was perhaps a deploy
        found.append(f"the worker started {n_starts} times in a minute: dsparkctl logs says why")
    return found


def _of_now(stats: Mapping[str, Any]) -> Iterator[str]:
    if stats.get("self_test_ok") is False:
        yield "its self-test does not come out as at its start: restart it"
    slow = _number(stats.get("recv_to_send_us_p99"))
    if slow is not None and slow > _SLOW_US:
        yield f"one STEP in a hundred takes {slow / 1e3:.0f} ms: another job on the GPU?"


def _of_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    verified = _grown_list(before, now, "verified_per_position")
    accepted = _grown_list(before, now, "accepted_per_position")
    shares = [a / v for a, v in zip(accepted, verified, strict=False) if v >= _FEW]
    if shares and shares[0] < _COLLAPSED:
        yield f"of first drafts only {shares[0]:.0%} are accepted: other tensors, or wrong taps?"
    if len(shares) > 2 and shares[0] >= _GOOD and shares[2] < _DEAD:
        yield "first drafts are good, third ones are never accepted: the Markov chain or the mask"
    drafted, short = _grown(before, now, "drafted_requests"), _grown(before, now, "partial_windows")
    if drafted >= _FEW and short > _SHORT * drafted:
        yield f"{short / drafted:.0%} of drafts see a short window (PARTIAL_WINDOW)"
    if _grown(before, now, "hellos") and not _grown(before, now, "steps"):
        yield "an engine says HELLO and sends no STEP: the client's log line names the reason"
    for key, words in (("bad_entries", "BAD_ENTRY"), ("internal_entries", "INTERNAL")):
        if n := _grown(before, now, key):
            yield f"{n:.0f} entries were answered {words}: dsparkctl logs"
    if before.get("drafter_identity") != now.get("drafter_identity"):
        yield "drafter_identity is another than before"


def differences(good: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Key, value then, value now, and what that means (empty: it is as it was), of a saved STATS
    object and one of now."""
    rows = []
    for key in _SAME:
        if key in good or key in now:
            is_same = good.get(key) == now.get(key)
            rows.append(
                (key, _text(good.get(key)), _text(now.get(key)), "" if is_same else "other")
            )
    for key in _TIMES:
        then_us, now_us = _number(good.get(key)), _number(now.get(key))
        if then_us and now_us:
            verdict = f"{now_us / then_us:.1f} times slower" if now_us > _SLOWER * then_us else ""
            rows.append((key, f"{then_us:.0f}", f"{now_us:.0f}", verdict))
    then_shares, now_shares = _shares(good), _shares(now)
    for position, (before, after) in enumerate(zip(then_shares, now_shares, strict=False)):
        if before is not None and after is not None:
            verdict = "fewer accepted" if after < before - _WORSE else ""
            name = f"acceptance, position {position}"
            rows.append((name, f"{before:.1%}", f"{after:.1%}", verdict))
    return rows


def _shares(stats: Mapping[str, Any]) -> list[float | None]:
    """Of positions that were verified often enough to speak of a share."""
    found, verified = stats.get("acceptance_per_position"), stats.get("verified_per_position")
    if not isinstance(found, list) or not isinstance(verified, list):
        return []
    return [
        _number(share) if (_number(n) or 0) >= _FEW else None
        for share, n in zip(found, verified, strict=False)
    ]


def _number(value: Any) -> float | None:
    return value if type(value) in (int, float) else None


def _grown(before: Mapping[str, Any], now: Mapping[str, Any], key: str) -> float:
    first, last = _number(before.get(key)), _number(now.get(key))
    return 0.0 if first is None or last is None else max(0.0, last - first)


def _grown_list(before: Mapping[str, Any], now: Mapping[str, Any], key: str) -> list[float]:
    first, last = before.get(key), now.get(key)
    if not isinstance(first, list) or not isinstance(last, list):
        return []
    pairs = zip(map(_number, first), map(_number, last), strict=False)
    return [0.0 if a is None or b is None else max(0.0, b - a) for a, b in pairs]


def _text(value: Any) -> str:
    return "-" if value is None else str(value)[:64]
