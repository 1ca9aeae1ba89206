"""A rank put together from settings and terms, against a worker that is not there (§4, §10)."""

import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dsparkctl.client import start
from dsparkctl.client.broadcast import Alone
from dsparkctl.client.fallback import Outcome
from dsparkctl.client.proposer import Proposer
from dsparkctl.client.proxy import ProxySpeaker
from dsparkctl.client.rows import Batch
from dsparkctl.client.settings import Settings
from dsparkctl.client.start import SWITCH_INTERVAL_S, join_rank, new_session, start_rank0
from dsparkctl.client.terms import EngineTerms, TermsError
from dsparkctl.state.ledger import Scheduled
from dsparkctl.state.n_out import Caps, Range
from tests.unit.client import tiny
from tests.unit.client.fakes import HELLO, SLOTS, N

CPU = torch.device("cpu")

TERMS = EngineTerms(
    num_spec=N,
    window=HELLO.window,
    hidden=HELLO.hidden,
    tap_layer_ids=(2,),
    noise_token_id=HELLO.noise_token_id,
    vocab_size=HELLO.vocab_size,
    max_model_len=HELLO.max_model_len,
    max_slots=SLOTS,
    tp_size=2,
    dtype="torch.bfloat16",
    draft_sample_method="greedy",
    draft_topk=None,
    watermarking=False,
    block_size=N,
)

CAPS = Caps((), "turned off")


def settings(**given: str) -> Settings:
    """Nobody listens on port 1."""
    env = {"ENDPOINT": "tcp://127.0.0.1:1", "IDENTITY": "ab" * 32, **given}
    made = Settings.from_environment(
        {f"VLLM_DSPARK_REMOTE_{name}": text for name, text in env.items()}
    )
    assert made is not None
    return made


def started(**given: str) -> Proposer:
    return start_rank0(settings(**given), TERMS, device=CPU, broadcast=Alone(), caps=CAPS)


def step() -> Batch:
    made = tiny.step(random.Random(1), [Scheduled("r", 0, 0, 0, 5, 0)], [0], [1], n_taps=1)
    return Batch(made.requests, made.tensors)


@pytest.fixture(autouse=True)
def switch_interval() -> Iterator[float]:
    """What every start sets for the whole process is put back."""
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)


def test_other_threads_may_keep_rank_0_waiting_for_ten_microseconds_at_most() -> None:
    """A busy Python thread would cost a round 5 ms and more."""
    started()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    sys.setswitchinterval(SWITCH_INTERVAL_S / 5)
    started()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S / 5), "a shorter one stays"


def test_lazy_kernels_are_warned_of_where_the_stream_waits() -> None:
    cuda = torch.device("cuda")
    lazy = start._device_warnings(settings(ASYNC="1"), cuda, {})
    assert "CUDA_MODULE_LOADING=EAGER" in lazy[0]
    eager = {"CUDA_MODULE_LOADING": "EAGER"}
    assert not start._device_warnings(settings(ASYNC="1"), cuda, eager)
    assert not start._device_warnings(settings(), cuda, {})
    assert not start._device_warnings(settings(ASYNC="1"), CPU, {})


@pytest.mark.parametrize("is_async", ["0", "1"])
def test_an_endpoint_that_nobody_answers_is_no_error(is_async: str) -> None:
    proposer = started(ASYNC=is_async)
    assert proposer.propose(step()).outcome is Outcome.NO_CONNECTION
    proposer.close()


def test_async_puts_the_exchange_into_a_thread_of_its_own() -> None:
    proposer = started(ASYNC="1")
    assert isinstance(proposer.speaker, ProxySpeaker)
    proposer.close()
    assert not isinstance(started().speaker, ProxySpeaker)


def test_the_start_tells_memory_worker_policy_and_n_out(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """§8.2: the memory is printed at start; a folder that cannot be recorded to, too."""
    (tmp_path / "file").touch()
    with caplog.at_level(logging.INFO):
        start_rank0(
            settings(RECORD=str(tmp_path / "file" / "record")),
            TERMS,
            device=CPU,
            broadcast=Alone(),
            caps=Caps((Range(1, 2, 3),), ""),
        )
    assert "rank 0 keeps a ring of" in caplog.text
    assert "tcp://127.0.0.1:1, policy capacity" in caplog.text
    assert "n_out: by schedule [[1, 2, 3]]" in caplog.text
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "nothing is recorded: " in warning.getMessage()


def test_the_kill_switch_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "off"
    file.touch()
    assert started(SWITCH_FILE=str(file)).propose(step()).outcome is Outcome.SWITCHED_OFF


def test_every_rank_refuses_terms_that_cannot_be_drafted_for() -> None:
    """§12, and no rank alone."""
    bad = EngineTerms(**{**{k: getattr(TERMS, k) for k in TERMS.__slots__}, "draft_topk": 4})
    with pytest.raises(TermsError, match="topk"):
        start_rank0(settings(), bad, device=CPU, broadcast=Alone(), caps=CAPS)
    with pytest.raises(TermsError, match="topk"):
        join_rank(settings(), bad, device=CPU, broadcast=Alone())


def test_another_rank_has_neither_link_nor_ring() -> None:
    assert join_rank(settings(), TERMS, device=CPU, broadcast=Alone()).speaker is None


def test_counters_reach_the_log_and_the_metrics_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "dspark.prom"
    proposer = started(LOG_INTERVAL_S="0.000001", METRICS_FILE=str(file))
    with caplog.at_level(logging.INFO):
        proposer.propose(step())
    assert "remote drafting: 1 rounds" in caplog.text
    text = file.read_text()
    assert 'dspark_client_fallbacks_total{reason="no_connection"} 1' in text
    assert "dspark_client_connected 0" in text


def test_sessions_are_random_and_never_zero() -> None:
    """§7.5."""
    found = {new_session() for _ in range(100)}
    assert len(found) > 90
    assert all(0 < session < 1 << 32 for session in found)


def test_a_name_is_looked_up_when_the_engine_starts_and_never_in_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C6: a resolver that does not answer must not hold a round."""
    looked_up: list[str] = []

    def look_up(host: str, port: int, **_: object) -> list[object]:
        looked_up.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    proposer = started(ENDPOINT="tcp://worker.lan:1")
    assert looked_up == ["worker.lan"]
    proposer.propose(step())
    assert looked_up[1:] in ([], ["127.0.0.1"])


def test_a_name_that_is_not_known_is_no_error_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look_up(*_: object, **__: object) -> list[object]:
        raise OSError("no such name")

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    proposer = started(ENDPOINT="tcp://worker.lan:1")
    monkeypatch.setattr("socket.getaddrinfo", None)  # a round that asks again breaks off
    assert proposer.propose(step()).outcome is Outcome.NO_CONNECTION
    assert "the name worker.lan is not known here, when the engine started" in caplog.text
