"""Two STATS answers compared: rates, acceptance, and whether the worker started again (§6.5, R35).

Decides what an operator sees of the counters. Refuses to trust them: keys are only suggestions
(§6.5), so what is missing or of another kind reads as unknown. Pure.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

UNKNOWN: Final = "-"

_MAX_POSITIONS: Final = 8

_RATES: Final = {"steps": "steps_per_s", "rows": "rows_per_s", "drafted_requests": "drafts_per_s"}

_SPLIT: Final = ("wire", "apply", "draft", "worker", "recv_to_send")

_FAULTS: Final = (
    *("partial_windows", "stale_generation", "bad_entries", "internal_entries"),
    *("resyncs", "framing_lost"),
)

_MAX_DIGITS: Final = 40


class StatsError(ValueError):
    """A STATS body that is no JSON object; one line."""


class Reading(NamedTuple):
    """A STATS object and when it came, in seconds from anywhere."""

    stats: Mapping[str, Any]
    at_s: float


def parse_stats(body: bytes) -> dict[str, Any]:
    """The STATS object of a reply's body; StatsError when it is not one."""
    try:
        found = json.loads(body, parse_constant=_refuse, parse_float=_finite, parse_int=_bounded)
    except (ValueError, RecursionError):
        raise StatsError("the STATS answer is not JSON of finite numbers") from None
    if not isinstance(found, dict):
        raise StatsError("the STATS answer is JSON, but no object")
    return found


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _bounded(text: str) -> int:
    """A worker's numbers are divided here; an integer that no double holds would be an error."""
    return int(text) if len(text) <= _MAX_DIGITS else _refuse(text)


def started_again(before: Reading, now: Reading) -> bool:
    """Whether another worker answers than before: another pid, or a clock that went back."""
    if before.stats.get("pid") != now.stats.get("pid"):
        return True
    first_s, last_s = _number(before.stats, "uptime_s"), _number(now.stats, "uptime_s")
    return first_s is not None and last_s is not None and last_s < first_s


def rates(before: Reading | None, now: Reading) -> dict[str, float | None]:
    """Events per second since `before`; None where two counts of one worker are not at hand."""
    if before is None or started_again(before, now) or now.at_s <= before.at_s:
        return dict.fromkeys(_RATES.values())
    found: dict[str, float | None] = {}
    for key, name in _RATES.items():
        first, last = _number(before.stats, key), _number(now.stats, key)
        if first is None or last is None or last < first:
            found[name] = None
        else:
            found[name] = round((last - first) / (now.at_s - before.at_s), 1)
    return found


def table_rows(before: Reading | None, now: Reading) -> list[tuple[str, str, str]]:
    """What the live table shows: name, value and unit, no more lines than a small terminal has."""
    stats, rate = now.stats, rates(before, now)
    return [
        ("steps", _shown(stats.get("steps")), ""),
        *((_rate_name(name), _shown(value), "1/s") for name, value in rate.items()),
        ("acceptance by position", _accepted(stats), "of those verified"),
        *((f"{part} p50 / p99", _p50_p99(stats, part), "us") for part in _SPLIT),
        ("last step", _shown(stats.get("last_step_age_s")), "s ago"),
        ("self-test", _self_test(stats), ""),
        *((name.replace("_", " "), _shown(stats.get(name)), "") for name in _FAULTS),
        ("session", _session(stats), ""),
        ("uptime", _shown(stats.get("uptime_s")), "s"),
    ]


def one_line(before: Reading | None, now: Reading) -> str:
    """The same in one line, for a log."""
    stats, rate = now.stats, rates(before, now)
    parts = [
        f"steps {_shown(stats.get('steps'))}",
        *(f"{_rate_name(name)} {_shown(value)}/s" for name, value in rate.items()),
        f"acceptance {_accepted(stats)}",
        *(f"{part} {_p50_p99(stats, part)} us" for part in ("wire", "apply", "draft")),
        f"last step {_shown(stats.get('last_step_age_s'))} s ago",
        f"self-test {_self_test(stats)}",
    ]
    return ", ".join(parts)


def value_text(value: Any) -> str:
    """One value of the object, in full."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, (dict, list)) else _shown(value)


def _rate_name(key: str) -> str:
    return key.removesuffix("s_per_s") + " rate"


def _number(stats: Mapping[str, Any], key: str) -> float | None:
    value = stats.get(key)
    return value if type(value) in (int, float) else None


def _accepted(stats: Mapping[str, Any]) -> str:
    """The first positions' shares; §6.2 allows more positions than a line has room for."""
    shares = stats.get("acceptance_per_position")
    if not isinstance(shares, list) or not shares:
        return UNKNOWN
    return " ".join(_percent(share) for share in shares[:_MAX_POSITIONS])


def _p50_p99(stats: Mapping[str, Any], part: str) -> str:
    return " / ".join(_shown(stats.get(f"{part}_us_{p}")) for p in ("p50", "p99"))


def _self_test(stats: Mapping[str, Any]) -> str:
    if not isinstance(stats.get("self_test_ok"), bool):
        return UNKNOWN
    word = "ok" if stats["self_test_ok"] else "FAILED"
    return f"{word} {_shown(stats.get('self_test_age_s'))} s ago"


def _session(stats: Mapping[str, Any]) -> str:
    session = stats.get("session")
    if type(session) is not int or not 0 <= session < 1 << 32:
        return UNKNOWN
    return f"{session:08x}" if session else "none"


def _percent(value: Any) -> str:
    return f"{value:.1%}" if type(value) in (int, float) and 0 <= value <= 1 else UNKNOWN


def _shown(value: Any) -> str:
    """A scalar; what has no business to be here, cut short."""
    match value:
        case None:
            return UNKNOWN
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}" if abs(value) < 1e15 else f"{value:g}"
        case str():
            return value[:80]
        case _:
            return json.dumps(value)[:80]
