"""The local drafter: its windows are what the worker's would be (§4.3, §7.2, §10)."""

from collections import defaultdict
from collections.abc import Sequence

import torch

from dspark_worker.drafter import Append, Draft, DraftRequest, Fault
from dsparkctl.client.rows import Batch
from dsparkctl.config.hello import HelloParams
from dsparkctl.contract.records import Hello
from dsparkctl.engine.engine import Engine
from dsparkctl.engine.local_drafter import WindowedDrafter
from dsparkctl.engine.request import Request
from dsparkctl.engine.scheduler import Scheduler
from tests.unit.engine.toy import (
    HIDDEN,
    N_TAPS,
    RULES,
    VOCAB,
    WINDOW,
    N,
    Proposed,
    ToyProposer,
    ToyTarget,
    continued,
    no_drafts,
)

TERMS: Hello = HelloParams(
    num_spec=N,
    window=WINDOW,
    hidden=HIDDEN,
    n_taps=N_TAPS,
    tap_layer_ids=(1, 2, 3, 0),
    row_bytes=N_TAPS * HIDDEN * 2,
    noise_token_id=0,
    vocab_size=VOCAB,
    max_model_len=RULES.max_model_len,
    max_slots=4,
    max_rows_per_step=4 * WINDOW,
    drafter_identity="0" * 64,
).record()


class Reader:
    """A `Drafter` that reads the tokens out of the toy's taps, and so knows what follows."""

    backend = "reader"

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, list[float]]] = defaultdict(dict)
        self.asked: list[DraftRequest] = []
        self.faulty = -1
        """The slot that cannot draft."""

    def append(self, parts: Sequence[Append]) -> Sequence[Fault | None]:
        for part in parts:
            rows = torch.frombuffer(bytearray(part.rows), dtype=torch.bfloat16)
            for i, row in enumerate(rows.view(part.n_rows, -1).tolist()):
                self.rows[part.slot][part.first_pos + i] = row
        return [None] * len(parts)

    def draft(
        self, requests: Sequence[DraftRequest], *, max_model_len: int, want_margin: bool
    ) -> Sequence[Draft | Fault]:
        self.asked += requests
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft | Fault:
        if request.slot == self.faulty:
            return Fault("told so")
        ids = [int(row[1]) for row in self.window(request)][-N:]
        return Draft([0] * (N - len(ids)) + ids, [0.5] * N, [0.0] * N)

    def window(self, request: DraftRequest) -> list[list[float]]:
        rows = self.rows[request.slot]
        return [rows[pos] for pos in range(request.lo_pos, request.anchor_pos)]


class Local:
    """A proposer that has nothing but a local drafter."""

    def __init__(self, drafter: Reader, plain: ToyProposer, *, drafts: bool = True) -> None:
        self.local = WindowedDrafter(drafter, TERMS)
        self.drafts: list[torch.Tensor] = []
        self._plain = plain
        self._does_draft = drafts

    def propose(self, batch: Batch) -> Proposed:
        self.local.step = batch
        if self._does_draft:
            self.drafts.append(self.local.propose().ids)
        else:
            self.local.keep_context()
        return self._plain.propose(batch)


def known(request: Request) -> list[int]:
    return [*request.prompt, *continued(request.prompt, request.n_wanted + N)]


def run(drafter: Reader, *, drafts: bool = True) -> tuple[Local, list[Request], ToyProposer]:
    prompts = [[i, *continued([i], 30 + 9 * i)] for i in range(6)]
    requests = [Request(str(i), p, 14, 6 if i == 1 else None) for i, p in enumerate(prompts)]
    by_id = {request.request_id: request for request in requests}
    plain = ToyProposer(lambda name: known(by_id[name]), half_right if drafts else no_drafts)
    proposer = Local(drafter, plain, drafts=drafts)
    scheduler = Scheduler(RULES, requests)
    engine = Engine(ToyTarget(RULES.n_target_slots), scheduler, RULES, proposer, 4)
    while not scheduler.is_idle:
        engine.step()
    return proposer, requests, plain


def half_right(tokens: list[int]) -> tuple[list[int], list[float]]:
    drafts = continued(tokens, N)
    drafts[2] = (drafts[2] + 1) % VOCAB
    return drafts, [1.0] * N


def test_every_window_is_whole_and_holds_no_row_of_a_rejected_draft() -> None:
    drafter = Reader()
    proposer, requests, plain = run(drafter)
    texts = {request.request_id: known(request) for request in requests}
    asked = iter(drafter.asked)
    for batch, ids in zip(plain.batches, proposer.drafts, strict=True):
        for i, scheduled in enumerate(batch.requests):
            if not batch.tensors.num_sampled[i]:  # type: ignore[attr-defined]
                assert not ids[i].any()
                continue
            request, text = next(asked), texts[scheduled.request_id]
            assert request.slot == scheduled.slot
            assert request.anchor_token == text[request.anchor_pos]
            assert request.anchor_pos - request.lo_pos == min(WINDOW, request.anchor_pos)
            assert ids[i].tolist() == text[request.anchor_pos - N : request.anchor_pos]
    assert next(asked, None) is None


def test_keeping_the_context_drafts_nothing() -> None:
    """§10: resilience, while the worker serves."""
    drafter = Reader()
    run(drafter, drafts=False)
    assert drafter.asked == []
    assert len(drafter.rows) == 4


def test_a_fault_is_zeros_for_its_own_request() -> None:
    drafter = Reader()
    drafter.faulty = 2
    proposer, _, plain = run(drafter)
    for batch, ids in zip(plain.batches, proposer.drafts, strict=True):
        for i, scheduled in enumerate(batch.requests):
            if scheduled.slot == 2:
                assert not ids[i].any()
    assert any(ids.any() for ids in proposer.drafts)
