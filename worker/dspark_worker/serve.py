"""From settings to a serving worker: bind, prove, load, test, listen, serve (§6.7, §7).

Decides the order: an address in use is found out first, nothing listens before a self-test draft
has come out right, and the ready line is printed after the sockets listen.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from dspark_worker import listener
from dspark_worker.choice import Chosen, choose_drafter
from dspark_worker.desk import Desk
from dspark_worker.hash_store import default_path
from dspark_worker.memory import rss_bytes
from dspark_worker.provenance import prove
from dspark_worker.selftest import SelfTest
from dspark_worker.server import Server
from dspark_worker.service import Service
from dspark_worker.sockets import Bound, bound, bound_in_time, listening
from dsparkctl import CONTRACT_VERSION, __version__
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.config.hello import HelloParams
from dsparkctl.config.worker import WorkerSettings
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.framing import HEADER_BYTES, MAX_MESSAGE_BYTES
from dsparkctl.contract.messages import rows_offset
from dsparkctl.contract.records import Hello
from dsparkctl.net.flight.recorder import Recorder

log = logging.getLogger(__name__)

_now = time.perf_counter


class LoadError(Exception):
    """The checkpoint was read, but the worker cannot draft with it; one line."""


def serve(settings: WorkerSettings, *, ready_as_json: bool) -> int:
    """Serve until SIGTERM (exit status 0) or SIGINT (130); every reason not to start is raised."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop_loading)
    service = Service.of_this_process()
    with contextlib.ExitStack() as sockets, contextlib.ExitStack() as start:
        wait = _Waiting(service)

        def taken(endpoint: Endpoint, bind: Callable[[], Bound]) -> Bound:
            return bound_in_time(bind, settings.wait_for_address_s, waiting=wait.on(endpoint))

        where = settings.listen
        data = taken(where, partial(listener.bound, where, _now))
        sockets.callback(data.close)
        others = [
            sockets.enter_context(taken(endpoint, partial(bound, endpoint)))
            for endpoint in settings.listeners[1:]
        ]
        admin, http = others[: len(settings.admin)], others[len(settings.admin) :]
        service.status("proving and loading the checkpoint")
        start.enter_context(service.starting())
        own, chosen = _load(settings)
        desk = Desk(
            own,
            chosen.drafter,
            worker_name=f"dspark-worker {__version__} {socket.gethostname()}",
            clock=_now,
            about=lambda: _about(chosen),
        )
        self_test = SelfTest(own, chosen.drafter)
        if reason := self_test.run():
            raise LoadError(f"{settings.checkpoint}: self-test draft failed: {reason}")
        desk.stats.self_tested(True, _now())
        n_bytes = _max_message_bytes(own)
        try:
            data.prepare(n_bytes)
        except OSError as error:
            raise LoadError(
                f"no memory for messages of {n_bytes} bytes: lower --max-rows-per-step"
            ) from error
        server = Server(
            desk,
            self_test,
            data=data,
            admin=admin,
            spin_us=settings.spin_us,
            now=_now,
            service=service,
            recorder=_recorder(settings, sockets),
        )
        caught = _stop_on_signals(server)
        found = {
            "listen": str(data.listen()),
            "admin": [str(listening(sock)) for sock in admin],
        }
        metrics = [_served(sock, desk, own.window, sockets) for sock in http]
        _say_ready(own, chosen, found, metrics, as_json=ready_as_json)
        start.close()
        service.ready(f"{chosen.drafter.backend} on {chosen.device}, drafts for {settings.listen}")
        server.serve()
        return 128 + signal.SIGINT if signal.SIGINT in caught else 0


class _Waiting:
    """What a wait for an address says: a line at its beginning, and to the service manager."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._said: set[Endpoint] = set()

    def on(self, endpoint: Endpoint) -> Callable[[float], None]:
        def waiting(left_s: float) -> None:
            self._service.more_time()
            if endpoint not in self._said:
                self._said.add(endpoint)
                self._service.status(f"waiting for {endpoint.host} to be an address of this host")
                log.warning(
                    "%s is no address of this host yet; waiting for it, %.0f s at most",
                    endpoint.host,
                    left_s,
                )

        return waiting


def _load(settings: WorkerSettings) -> tuple[Hello, Chosen]:
    """Prove the files, then load them; what this worker would say in a HELLO of its own."""
    files = find_files(settings.checkpoint)
    if settings.identity_from_files:
        log.info("no receipt: the identity is computed from the checkpoint's own files")
    proof = prove(
        files,
        settings.receipt,
        settings.markov,
        cache_path=settings.hash_cache or default_path(),
        rehash=settings.rehash,
    )
    try:
        config = read_model_config(files)
        chosen = choose_drafter(settings, config, proof.markov_data)
    except CheckpointError:
        proof.check_unchanged()  # where a file changed, that is what is wrong
        raise
    proof.check_unchanged()
    given: dict[str, Any] = {}
    if settings.max_rows_per_step is not None:
        given["max_rows_per_step"] = settings.max_rows_per_step
    own = HelloParams.from_checkpoint(
        config,
        drafter_identity=proof.drafter,
        markov_identity=proof.markov,
        max_slots=settings.max_slots,
        max_model_len=settings.max_model_len,
        **given,
    )
    return own.record(), chosen


def _max_message_bytes(own: Hello) -> int:
    """The longest STEP these terms allow, never less than §5's 16 MiB (R33), within its u32.

    Whatever max_rows_per_step says, no STEP brings more than every slot's whole window.
    """
    n_rows = min(own.max_rows_per_step, own.max_slots * own.window)
    step = HEADER_BYTES + rows_offset(own.max_slots) + n_rows * own.row_bytes
    return min(max(MAX_MESSAGE_BYTES, step), 0xFFFFFFFF)


def _stop_loading(_number: int, _frame: object) -> None:
    """SIGTERM before the worker serves: there is no round to finish."""
    raise SystemExit(0)


def _stop_on_signals(server: Server) -> list[int]:
    """SIGTERM and SIGINT finish the round. The list fills as they come."""
    caught: list[int] = []

    def stop(number: int, _frame: object) -> None:
        caught.append(number)
        server.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return caught


def _recorder(settings: WorkerSettings, closing: contextlib.ExitStack) -> Recorder | None:
    if settings.record is None:
        return None
    try:
        found = Recorder(
            settings.record,
            max_bytes=settings.record_mb << 20,
            with_rows=settings.record_rows,
        )
    except OSError as error:
        raise LoadError(f"{settings.record}: cannot be recorded to: {error.strerror}") from None
    closing.callback(found.close)
    return found


def _served(sock: socket.socket, desk: Desk, window: int, closing: contextlib.ExitStack) -> str:
    """Metrics on this socket from now on; its URL."""
    from dspark_worker.metrics import MetricsServer, WorkerCollector  # who wants none has none

    url = f"http{str(listening(sock)).removeprefix('tcp')}/metrics"
    server = MetricsServer(sock, WorkerCollector(desk.snapshot, desk.stats.histograms, window))
    closing.callback(server.close)
    server.start()
    return url


def _say_ready(
    own: Hello, chosen: Chosen, where: dict[str, Any], metrics: list[str], *, as_json: bool
) -> None:
    """The one line on stdout."""
    facts: dict[str, Any] = {
        "event": "ready",
        **where,
        "drafter_identity": own.drafter_identity.hex(),
        "markov_identity": own.markov_identity.hex(),
        "pid": os.getpid(),
        "backend": chosen.drafter.backend,
        "device": chosen.device,
        "dtype": chosen.dtype,
        "kv_quant": chosen.kv_quant,
        "metrics": metrics,
    }
    if as_json:
        line = json.dumps(facts, separators=(",", ":"))
    else:
        line = (
            f"ready: {facts['listen']}, admin {' '.join(facts['admin']) or 'none'}, "
            f"{''.join(f'metrics {url}, ' for url in metrics)}"
            f"{chosen.drafter.backend} on {chosen.device} in {chosen.dtype}, "
            f"kv_quant {chosen.kv_quant}, drafter {own.drafter_identity.hex()}, "
            f"markov {own.markov_identity.hex()}, pid {os.getpid()}"
        )
    try:
        print(line, flush=True)  # noqa: T201 -- the one line that is data
    except OSError as error:
        log.warning("nobody reads the ready line: %s", error)


def _about(chosen: Chosen) -> dict[str, Any]:
    """The facts of this process that STATS adds to the desk's."""
    return {
        "backend": chosen.drafter.backend,
        "device": chosen.device,
        "dtype": chosen.dtype,
        "kv_quant": chosen.kv_quant,
        "gpu_mem_bytes": chosen.gpu_mem_bytes(),
        "weight_cache": chosen.weight_cache(),
        "markov_cache_rows": chosen.markov_cache_rows,
        "markov_cache_bytes": chosen.markov_cache_bytes,
        "rss_bytes": rss_bytes(),
        "pid": os.getpid(),
        "contract_version": CONTRACT_VERSION,
        "build_version": __version__,
    }
