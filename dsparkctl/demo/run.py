"""The run itself: the engine with the real client until all is said, then the reference.

Decides the order, the pace and when it is enough. Everything that needs torch lies behind this
module, so that a worker can start while it is imported.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError

from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.demo.options import MAX_CONCURRENCY, MAX_MODEL_LEN, Options
from dsparkctl.demo.outage import Outage, Phase
from dsparkctl.demo.rank0 import ClientFacts, rank0
from dsparkctl.demo.terms import Terms
from dsparkctl.engine.engine import Engine
from dsparkctl.engine.reference import Question, reference
from dsparkctl.engine.report import Tally, spread, tally_facts
from dsparkctl.engine.request import Request
from dsparkctl.engine.scheduler import Rules, Scheduler, Tricks
from dsparkctl.engine.target import Target, TargetWeights, read_weights
from dsparkctl.engine.workload import workload
from dsparkctl.state.n_out import Caps, Range

SCHEDULE: Final = (Range(1, 2, 5), Range(3, 4, 4))
"""Drafts that are verified, by the number of requests: the live schedule (§2)."""

_REFERENCE_SLOTS: Final = 16
"""Requests that the reference runs together."""


class Played(NamedTuple):
    """What came of it."""

    tally: Tally
    phases: dict[Phase, Tally]
    tricks: Tricks
    n_requests_done: int
    n_tokens: int
    outputs_match_reference: bool
    client: ClientFacts


def prepare(checkpoint: Path) -> TargetWeights:
    """The target's weights; CheckpointError when the folder has none.

    One thread of torch: the worker needs the other core.
    """
    torch.set_num_threads(1)
    try:
        return read_weights(checkpoint)
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        if isinstance(error, FileNotFoundError):
            name = Path(error.filename or "").name
            raise CheckpointError(
                f"{checkpoint}: no target to draft for: {name} is missing; the demo's engine wants "
                "target.safetensors and target_config.json beside the drafter"
            ) from None
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{checkpoint}: no target to draft for: {reason}") from None


def play(
    options: Options, terms: Terms, weights: TargetWeights, endpoint: Endpoint, outage: Outage
) -> Played:
    """SettingsError when the environment's variables cannot be used."""
    requests = workload(options.seed, options.requests, options.n_tokens)
    rules = _rules(options, terms)
    scheduler = Scheduler(rules, requests)
    target = Target(weights, rules.n_target_slots, MAX_MODEL_LEN)
    tally = Tally(terms.engine.num_spec)
    phases: dict[Phase, Tally] = {}
    with rank0(options, terms, endpoint, rules.caps) as proposer:
        engine = Engine(target, scheduler, rules, proposer, MAX_CONCURRENCY)
        end_s = time.monotonic() + (options.max_seconds or float("inf"))
        while not scheduler.is_idle and time.monotonic() < end_s:
            began_s = time.monotonic()
            outage.before(tally.n_rounds)
            done = engine.step()
            phase = outage.after(done.outcome)
            tally.add(done)
            phases.setdefault(phase, Tally(terms.engine.num_spec)).add(done)
            _sleep_until(began_s + options.step_s)
        client = proposer.facts()
    return Played(
        tally,
        phases,
        scheduler.tricks,
        sum(request.is_done for request in requests),
        sum(request.n_output for request in requests),
        _outputs_match(weights, requests),
        client,
    )


def _sleep_until(end_s: float) -> None:
    if (left_s := end_s - time.monotonic()) > 0:
        time.sleep(left_s)


def facts(options: Options, played: Played) -> dict[str, Any]:
    """The report, in the order of its JSON."""
    tally, snapshot = played.tally, played.client.snapshot
    exchange = {name: snapshot[f"round_us_{name}"] for name in ("p50", "p99")}
    report = {
        "outputs_match_reference": played.outputs_match_reference,
        **tally_facts(tally),
        "breaker": played.client.breaker,
        "ms_per_round": {
            "round": spread(tally.round_ms),
            "engine": spread(tally.engine_ms),
            "propose": spread(tally.propose_ms),
            "exchange": {
                n: None if us is None else round(us / 1e3, 2) for n, us in exchange.items()
            },
        },
        "remote": played.client.remote,
        "seed": options.seed,
        "policy": options.policy.value,
        "requests": options.requests,
        "requests_done": played.n_requests_done,
        "tokens": played.n_tokens,
        **asdict(played.tricks),
        "connections": snapshot["connections"],
        **{name: snapshot[name] for name in ("steps_sent", "rows_sent", "resyncs")},
    }
    if options.shows_outage:
        report["phases"] = {str(phase): tally_facts(t) for phase, t in played.phases.items()}
    if "shadow" in snapshot:
        report["shadow"] = snapshot["shadow"]
    return report


def _rules(options: Options, terms: Terms) -> Rules:
    """With a budget of two windows every chunk of a long prompt is longer than one."""
    window, num_spec = terms.engine.window, terms.engine.num_spec
    return Rules(
        n_slots=options.concurrency,
        window=window,
        n_budget=max(2 * window, window + MAX_CONCURRENCY * (num_spec + 1)),
        max_model_len=MAX_MODEL_LEN,
        caps=Caps(tuple(r._replace(k=min(r.k, num_spec)) for r in SCHEDULE), ""),
    )


def _outputs_match(weights: TargetWeights, requests: Sequence[Request]) -> bool:
    """Also of a run that was cut off: what was said until then."""
    questions = [
        Question(r.prompt, r.n_wanted if r.is_done else r.n_output, r.eos_token) for r in requests
    ]
    longest = max(len(q.prompt) + q.n_wanted for q in questions)
    n_slots = min(_REFERENCE_SLOTS, len(questions))
    target = Target(weights, n_slots, longest)
    return reference(target, questions, n_slots) == [request.output for request in requests]
