"""The worker's counters for Prometheus (`--metrics ADDR:PORT`), by its own client library.

Decides names and labels, by Prometheus' conventions: base units, `_total` for counters, histograms
where a rate or a percentile is wanted over any span, identities as the labels of one info metric. A
label never holds what a peer can choose. docs/metrics.md explains every name.

Requests are answered one at a time in a thread beside the worker's own, each within a few seconds;
what it reads are copies, made without a lock.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dspark_worker.stats import BOUNDS_S, Histogram

log = logging.getLogger(__name__)

_PREFIX: Final = "dspark_worker_"
_REQUEST_S: Final = 5.0
"""A scraper that is slower than this is hung up on: others wait behind it."""
_SWITCH_S: Final = 0.0005
"""How long the round may wait for a scrape that computes (Python's default is 5 ms)."""

_COUNTERS: Final = {
    "steps": "STEPs that passed frame validation.",
    "rows": "Tap rows that were applied.",
    "drafted_requests": "Entries that got drafts.",
    "resyncs": "Entries that re-sent a whole window.",
    "hellos": "Accepted HELLOs.",
    "resets": "RESETs, on either listener.",
    "pings": "PINGs, on either listener.",
    "framing_lost": "Connections closed for bytes that are no message.",
}
_ENTRIES: Final = {
    "partial_windows": "PARTIAL_WINDOW",
    "stale_generation": "STALE_GENERATION",
    "bad_entries": "BAD_ENTRY",
    "internal_entries": "INTERNAL",
}
_CONNECTIONS: Final = {"connections": "data", "admin_connections": "admin"}
_POSITIONS: Final = {
    "verified": "Drafts that the target verified, by position.",
    "accepted": "Drafts that the target accepted, by position.",
}
_GAUGES: Final = {
    "last_step_age_s": ("last_step_age_seconds", "Time since the last STEP."),
    "self_test_ok": ("self_test_ok", "1 when the last self-test came out as the first one."),
    "self_test_age_s": ("self_test_age_seconds", "Time since the last self-test."),
    "rss_bytes": ("resident_memory_bytes", "Resident memory of the process."),
    "gpu_mem_bytes": ("gpu_memory_bytes", "What torch holds on the device."),
    "markov_cache_bytes": ("markov_cache_bytes", "Memory of the Markov rows that are kept."),
}
_INFO: Final = (
    *("build_version", "contract_version", "backend", "device", "dtype", "kv_quant"),
    *("drafter_identity", "markov_identity"),
)


class WorkerCollector(Collector):
    """Makes metrics of a STATS object and of the histograms behind it, anew at every scrape."""

    def __init__(
        self,
        snapshot: Callable[[], dict[str, Any]],
        histograms: Callable[[], dict[str, Histogram]],
        window: int,
    ) -> None:
        self._snapshot = snapshot
        self._histograms = histograms
        self._window = window
        self._started_at = time.time() - snapshot()["uptime_s"]

    def collect(self) -> Iterator[Metric]:
        stats, times = self._snapshot(), self._histograms()
        info = {key: str(stats[key]) for key in _INFO}
        yield InfoMetricFamily(_PREFIX.rstrip("_"), "What this worker is.", info)
        yield from _counted(stats)
        yield from _timed(times)
        for key, (name, text) in _GAUGES.items():
            if stats[key] is not None:
                yield GaugeMetricFamily(_PREFIX + name, text, float(stats[key]))
        yield GaugeMetricFamily(
            _PREFIX + "start_time_seconds", "Unix time of the worker's start.", self._started_at
        )
        rows = GaugeMetricFamily(
            _PREFIX + "window_rows",
            f"Rows that each slot holds, of {self._window}.",
            None,
            ["slot"],
        )
        for slot in stats["slots"]:
            lo, hi = slot["lo_pos"], slot["hi_pos"]
            rows.add_metric([str(slot["slot"])], 0 if lo is None else hi - lo + 1)
        yield rows


def _counted(stats: dict[str, Any]) -> Iterator[Metric]:
    for key, text in _COUNTERS.items():
        yield CounterMetricFamily(_PREFIX + key, text, stats[key])
    entries = CounterMetricFamily(
        _PREFIX + "entry_faults", "Entries answered otherwise than OK.", None, ["status"]
    )
    for key, status in _ENTRIES.items():
        entries.add_metric([status], stats[key])
    yield entries
    frames = CounterMetricFamily(
        _PREFIX + "frames_refused", "Replies with a status other than OK.", None, ["status"]
    )
    for status, n in sorted(stats["frames_refused"].items()):
        frames.add_metric([status], n)
    yield frames
    connections = CounterMetricFamily(
        _PREFIX + "connections", "Accepted connections, by listener.", None, ["listener"]
    )
    for key, listener in _CONNECTIONS.items():
        connections.add_metric([listener], stats[key])
    yield connections
    for key, text in _POSITIONS.items():
        family = CounterMetricFamily(f"{_PREFIX}drafts_{key}", text, None, ["position"])
        for position, n in enumerate(stats[f"{key}_per_position"]):
            family.add_metric([str(position)], n)
        yield family


def _timed(times: dict[str, Histogram]) -> Iterator[Metric]:
    """`step_seconds` is what an engine waits for; the parts say where it goes."""
    whole = HistogramMetricFamily(
        _PREFIX + "step_seconds", "From a message received to its reply handed over."
    )
    whole.add_metric([], *_buckets(times["recv_to_send"]))
    yield whole
    parts = HistogramMetricFamily(
        _PREFIX + "part_seconds", "Parts of a round: wire, apply, draft.", None, None, ["part"]
    )
    for part in ("wire", "apply", "draft"):
        parts.add_metric([part], *_buckets(times[part]))
    yield parts


def _buckets(times: Histogram) -> tuple[list[tuple[str, float]], float]:
    found, n = [], 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), times.counts, strict=True):
        n += count
        found.append((bound, float(n)))
    return found, times.sum_s


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class MetricsServer:
    """Serves on a socket that is bound already, until `close`."""

    def __init__(self, sock: socket.socket, collector: Collector) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        self._server = WSGIServer(sock.getsockname()[:2], _Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = sock
        self._server.server_name, self._server.server_port = sock.getsockname()[:2]
        self._server.setup_environ()
        self._server.set_app(make_wsgi_app(registry))
        sys.setswitchinterval(_SWITCH_S)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.5,), name="metrics", daemon=True
        )

    def start(self) -> None:
        """`sock` listens already."""
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(_REQUEST_S)
        self._server.server_close()
