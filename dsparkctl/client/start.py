"""How a rank's proposer is put together from settings and terms (§4, §8.2, §10).

Decides what goes where, and what is said at start. Refuses to know where settings, terms and the
group came from: `speculator` and the small engine hand them in.
"""

import logging
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

import torch

from dsparkctl.client.broadcast import Broadcast, Word
from dsparkctl.client.budget import budget
from dsparkctl.client.environment import PREFIX, Policy
from dsparkctl.client.interval import Interval
from dsparkctl.client.link import WorkerLink
from dsparkctl.client.proposer import Choice, LocalDrafter, Proposer
from dsparkctl.client.proxy import ProxySpeaker, gate_for
from dsparkctl.client.recording import Keeper, recorded
from dsparkctl.client.rounds import Rounds
from dsparkctl.client.settings import Settings
from dsparkctl.client.shadow import ShadowReport
from dsparkctl.client.speaker import Speaker
from dsparkctl.client.staging import StagedRows
from dsparkctl.client.switch import Switch
from dsparkctl.client.terms import EngineTerms, hello
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.net import dial
from dsparkctl.net.dial import resolved
from dsparkctl.net.flight.recorder import Recorder
from dsparkctl.net.transport import Broken, Deadline, Link, TransportError
from dsparkctl.state.breaker import Breaker
from dsparkctl.state.n_out import Caps

log = logging.getLogger(__name__)

SWITCH_INTERVAL_S: Final = 1e-5
"""How long another Python thread may keep rank 0 from going on (Python's own: 5 ms). A round gives
the GIL away with every wait and every tensor operation, so a busy thread costs it that much over
and over; `benchmarks/gil.py` measures it. It holds for the whole process."""


def start_rank0(
    settings: Settings,
    terms: EngineTerms,
    *,
    device: torch.device,
    broadcast: Broadcast,
    caps: Caps,
    local: LocalDrafter | None = None,
) -> Proposer:
    """Rank 0's proposer; TermsError where remote drafting cannot start (§12).

    Nothing is dialled before the first round.
    """
    own = hello(terms, settings.identity, settings.markov_identity)
    recorder = _recorder(settings)
    rows = StagedRows(own, device)
    link = WorkerLink(
        own,
        recorded(dialler(settings.endpoint, settings.spin_s, rows.memory), recorder),
        timeout_s=settings.timeout_s,
        clock=time.monotonic,
        new_session=new_session,
    )
    rounds = Rounds(
        link,
        rows,
        Breaker(settings.trip, settings.cooldown),
        switch=Switch(settings.switch_file),
        caps=caps,
        clock=time.monotonic,
        want_margin=settings.policy is Policy.SHADOW,
    )
    shadow = ShadowReport(terms.num_spec) if settings.policy is Policy.SHADOW else None
    interval = Interval(
        rounds,
        shadow,
        every_s=settings.log_interval_s,
        metrics_file=settings.metrics_file,
        clock=time.monotonic,
        keeper=None if recorder is None else Keeper(recorder),
    )
    word = Word(terms.max_slots, terms.num_spec, device)
    parts = (rounds, word, settings.on_fail, interval)
    speaker = (
        ProxySpeaker(*parts, rows=rows, gate=gate_for(device))
        if settings.is_async
        else Speaker(*parts)
    )
    if sys.getswitchinterval() > SWITCH_INTERVAL_S:
        log.info("switch interval of this process's threads: %g s", SWITCH_INTERVAL_S)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
    log.info("remote drafting by %s, policy %s", settings.endpoint, settings.policy)
    log.info("%s", budget(own).text())
    log.info("n_out: %s", caps.reason or f"by schedule {[[*r] for r in caps.ranges]}")
    for warning in _device_warnings(settings, device, os.environ):
        log.warning("%s", warning)
    return Proposer(word, broadcast, _choice(settings), speaker=speaker, local=local, shadow=shadow)


def join_rank(
    settings: Settings,
    terms: EngineTerms,
    *,
    device: torch.device,
    broadcast: Broadcast,
    local: LocalDrafter | None = None,
) -> Proposer:
    """The proposer of a rank other than 0, with the same settings; it only takes the broadcast."""
    hello(terms, settings.identity, settings.markov_identity)  # refuses what rank 0 refuses
    word = Word(terms.max_slots, terms.num_spec, device)
    return Proposer(word, broadcast, _choice(settings), local=local)


def _recorder(settings: Settings) -> Recorder | None:
    """A folder that cannot be made is no reason to draft without drafts, and is said."""
    if settings.record is None:
        return None
    try:
        found = Recorder(
            settings.record, max_bytes=settings.record_bytes, with_rows=settings.record_rows
        )
    except OSError as error:
        log.warning("nothing is recorded: %s: %s", settings.record, error.strerror)
        return None
    log.info("the flight recorder writes to %s", settings.record)
    return found


def dialler(
    endpoint: Endpoint, spin_s: float = 0.0, staging: memoryview | None = None
) -> Callable[[Deadline], Link]:
    """What connects to the endpoint. A name is looked up here, once: a resolver that does not
    answer would hold a round, and every rank, for longer than any deadline (C6)."""
    try:
        places = [dial.dialler(place, spin_s, staging) for place in resolved(endpoint)]
    except TransportError as error:
        reason = f"{error}, when the engine started"
        log.error("%s", reason)

        def nobody(_: Deadline) -> Link:
            raise Broken(reason)

        return nobody

    def dial_each(deadline: Deadline) -> Link:
        for place in places[:-1]:
            try:
                return place(deadline)
            except TransportError:
                continue
        return places[-1](deadline)

    return dial_each


def new_session() -> int:
    """A random nonzero u32 (§7.5)."""
    return random.SystemRandom().randrange(1, 1 << 32)


def _device_warnings(settings: Settings, device: torch.device, env: Mapping[str, str]) -> list[str]:
    """What CUDA could trip over (`proxy`): a line each."""
    name = "CUDA_MODULE_LOADING"
    if not settings.is_async or device.type != "cuda" or env.get(name) == "EAGER":
        return []
    return [
        f"{PREFIX}ASYNC=1: set {name}=EAGER; a kernel that is loaded while the stream waits for "
        "drafts can stop both"
    ]


def _choice(settings: Settings) -> Choice:
    return Choice(settings.policy, settings.on_fail, settings.shadow_use)
