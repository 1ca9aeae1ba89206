"""Rank 0 as the demo runs it: the real client, and what it has to say of itself afterwards.

Decides which environment variables reach it. All of `VLLM_DSPARK_REMOTE_*` do but those that say
where a worker is and what it serves: a demo must never find the engine's own worker by itself.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from dspark_worker.model.load import load_drafter
from dsparkctl.client.broadcast import Alone
from dsparkctl.client.environment import PREFIX, Policy
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.policies import is_served
from dsparkctl.client.proposer import Proposer, RemoteDraftingFailed
from dsparkctl.client.rows import Batch
from dsparkctl.client.settings import DEPTH_POLICY, MARKOV_CACHE, Settings
from dsparkctl.client.speaker import Speaker
from dsparkctl.client.start import start_rank0
from dsparkctl.client.terms import hello
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.demo.options import EngineEnded, Options
from dsparkctl.demo.terms import Terms
from dsparkctl.engine.local_drafter import WindowedDrafter
from dsparkctl.state.breaker import State
from dsparkctl.state.n_out import Caps, caps

CPU: Final = torch.device("cpu")


class ClientFacts(NamedTuple):
    """What the client has to say when the run is over."""

    snapshot: Mapping[str, Any]
    breaker: Mapping[str, Any]
    remote: str
    """`on`, or why the last round had no drafts of the worker's."""


class Drafted(NamedTuple):
    """The engine's view of a proposal (`dsparkctl.engine.engine.Proposal`)."""

    outcome: Outcome
    draft_ids: Tensor
    confidence: Tensor
    n_drafted: int


class Rank0:
    """A proposer that keeps an eye on its breaker."""

    def __init__(self, proposer: Proposer, speaker: Speaker, local: WindowedDrafter | None) -> None:
        self._proposer = proposer
        self._speaker = speaker
        self._local = local
        self._n_opened = 0
        self._is_on = False

    def propose(self, batch: Batch) -> Drafted:
        """EngineEnded under `ON_FAIL=raise` (§10)."""
        if self._local is not None:
            self._local.step = batch
        try:
            outcome, draft_ids, confidence = self._proposer.propose(batch)
        except RemoteDraftingFailed as error:
            raise EngineEnded(str(error)) from None
        breaker = self._speaker.rounds.breaker
        self._n_opened += breaker.state is State.OPEN and breaker.n_silent == breaker.cooldown
        assert outcome is not None, "known at once on a CPU"
        self._is_on = is_served(outcome)
        return Drafted(outcome, draft_ids, confidence, self._n_drafted())

    def _n_drafted(self) -> int:
        answer = self._speaker.answer
        assert answer is not None
        wanted = [n for n in answer.n_drafts if n is not None]
        return len(wanted) if self._local is not None else sum(n > 0 for n in wanted)

    def facts(self) -> ClientFacts:
        rounds = self._speaker.rounds
        breaker = {
            "state": rounds.breaker.state.value,
            "failed_in_a_row": rounds.breaker.n_failed,
            "opened": self._n_opened,
        }
        remote = "on" if self._is_on else self._reason()
        return ClientFacts(self._speaker.interval.snapshot(), breaker, remote)

    def _reason(self) -> str:
        answer = self._speaker.answer
        if answer is None:
            return "no round was played"
        what = answer.outcome.name.lower().replace("_", " ")
        return self._speaker.rounds.link.disabled or f"{what}: {answer.reason}".removesuffix(": ")


@contextmanager
def rank0(options: Options, terms: Terms, endpoint: Endpoint, schedule: Caps) -> Iterator[Rank0]:
    """SettingsError or TermsError, one line each, when it cannot start."""
    settings = Settings.from_environment(_environment(options, terms, endpoint))
    assert settings is not None, "an endpoint is set"
    local = None
    if settings.policy is not Policy.CAPACITY:
        local = WindowedDrafter(
            load_drafter(
                options.checkpoint,
                device="cpu",
                dtype="float32",
                kv_quant="auto",
                max_slots=terms.engine.max_slots,
            ),
            hello(terms.engine, settings.identity, settings.markov_identity),
        )
    proposer = start_rank0(
        settings,
        terms.engine,
        device=CPU,
        broadcast=Alone(),
        caps=caps(
            schedule.ranges,
            settings.depth_policy,
            settings.has_depth_file,
            settings.policy,
            settings.n_out_enabled,
            terms.engine.num_spec,
        ),
        local=local,
    )
    assert proposer.speaker is not None, "rank 0 speaks"
    try:
        yield Rank0(proposer, proposer.speaker, local)
    finally:
        proposer.close()


def _environment(options: Options, terms: Terms, endpoint: Endpoint) -> dict[str, str]:
    """The client's variables; the demo's engine has the depth policy `conf` and no other."""
    found = {name: text for name, text in os.environ.items() if name.startswith(PREFIX)}
    if MARKOV_CACHE in os.environ:
        found[MARKOV_CACHE] = os.environ[MARKOV_CACHE]
    return found | {
        f"{PREFIX}ENDPOINT": str(endpoint),
        f"{PREFIX}IDENTITY": terms.identity.hex(),
        f"{PREFIX}POLICY": options.policy,
        f"{PREFIX}TIMEOUT_MS": f"{options.timeout_ms:g}",
        DEPTH_POLICY: "conf",
    }
