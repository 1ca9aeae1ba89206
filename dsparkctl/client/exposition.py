"""The client's counters for people and for Prometheus: one log line, one text file.

Decides names and labels; the values are a plain snapshot's (`counters`). A whole number is a
counter, a list of them one counter by draft position, `fallback_<reason>` one counter by reason; a
bool or a fraction is a gauge. Texts, None and nested values are for the log and left out: a label
that a peer can fill with anything has no bound.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from dsparkctl.config.errors import WriteError

_PREFIX: Final = "dspark_client_"
_KEY: Final = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_FALLBACK: Final = "fallback_"
_QUANTILE: Final = re.compile(r"(?P<name>\w+)_p(?P<percent>[0-9]{2})", re.ASCII)

HELP: Final = {
    "rounds": "Engine rounds, whether anything was sent or not.",
    "steps_sent": "STEP messages sent.",
    "rows_sent": "Tap rows sent.",
    "resyncs": "Entries that re-sent a slot's whole window.",
    "drafted_requests": "Entries that got drafts.",
    "partial_windows": "Entries drafted over fewer rows than expected.",
    "stale_generation": "Entries the worker refused as older than its own.",
    "bad_entries": "Entries the worker refused.",
    "internal_entries": "Entries the worker failed on.",
    "drafted": "Rounds that drafted.",
    "appended": "Rounds that only appended rows.",
    "fallbacks": "Rounds without drafts, by reason.",
    "verified": "Drafts that the target verified, by position.",
    "accepted": "Drafts that the target accepted, by position.",
    "round_us": "Time from sending a STEP to its end, in microseconds.",
}


class _Sample(NamedTuple):
    """One value: the family it belongs to, the family's type, its own label."""

    family: str
    type: str
    label: tuple[str, str] | None
    value: float


def exposition(snapshot: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> str:
    """The snapshot in Prometheus' text format; `labels` stand on every sample.

    ValueError for a key that can be no metric's name.
    """
    families: dict[str, list[_Sample]] = {}
    for key, value in snapshot.items():
        for sample in _samples(key, value):
            families.setdefault(sample.family, []).append(sample)
    lines = []
    for family, samples in families.items():
        name = _PREFIX + family + ("_total" if samples[0].type == "counter" else "")
        lines.append(f"# HELP {name} {_escaped(HELP.get(family, f'{family}.'))}")
        lines.append(f"# TYPE {name} {samples[0].type}")
        for sample in samples:
            own = {} if sample.label is None else dict([sample.label])
            lines.append(f"{name}{_braced({**(labels or {}), **own})} {sample.value}")
    return "".join(f"{line}\n" for line in lines)


def log_line(snapshot: Mapping[str, Any]) -> str:
    """What an operator looks for first, on one line; reasons that never occurred are left out."""
    fallbacks = [
        f"{key.removeprefix(_FALLBACK)} {value}"
        for key, value in snapshot.items()
        if key.startswith(_FALLBACK) and value
    ]
    verified, accepted = snapshot.get("verified", ()), snapshot.get("accepted", ())
    shares = [f"{a / v:.0%}" if v else "-" for a, v in zip(accepted, verified, strict=True)]
    parts = [
        f"{snapshot.get('rounds', 0)} rounds",
        f"{snapshot.get('steps_sent', 0)} sent",
        f"{snapshot.get('drafted_requests', 0)} requests drafted",
        f"accepted by position {' '.join(shares) or '-'}",
        f"fallbacks: {', '.join(fallbacks) or 'none'}",
    ]
    if snapshot.get("round_us_p50") is not None:
        p50, p99 = snapshot["round_us_p50"], snapshot["round_us_p99"]
        parts.append(f"round p50 {p50:.0f} us, p99 {p99:.0f} us")
    if snapshot.get("last_bad_reply"):
        parts.append(f"last bad reply: {snapshot['last_bad_reply']}")
    return "remote drafting: " + "; ".join(parts)


def write_metrics(path: Path, text: str) -> None:
    """Put `text` at `path` in one move, so that a collector never reads half; WriteError.

    Unlike `config.files.write_whole` it does not sync: the next interval writes anew, and a slow
    disk must not hold up an engine round. The name beside it ends in no suffix a collector reads.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise WriteError(f"{path}: cannot be written: {error.strerror}") from None


def _samples(key: str, value: Any) -> list[_Sample]:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} cannot name a metric")
    if isinstance(value, bool):
        return [_Sample(key, "gauge", None, int(value))]
    if isinstance(value, int):
        if key.startswith(_FALLBACK):
            return [_Sample("fallbacks", "counter", ("reason", key.removeprefix(_FALLBACK)), value)]
        return [_Sample(key, "counter", None, value)]
    if isinstance(value, float):
        quantile = _QUANTILE.fullmatch(key)
        if quantile is None:
            return [_Sample(key, "gauge", None, value)]
        share = int(quantile["percent"]) / 100
        return [_Sample(quantile["name"], "gauge", ("quantile", f"{share:g}"), value)]
    if isinstance(value, list | tuple):
        return [_Sample(key, "counter", ("position", str(j)), n) for j, n in enumerate(value)]
    return []


def _braced(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    inner = ",".join(
        f'{name}="{_escaped(text).replace(chr(34), chr(92) + chr(34))}"'
        for name, text in labels.items()
    )
    return f"{{{inner}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
