"""The real vLLM engine with our speculator and a real worker over TCP (§4, §7, §10).

Scheduler, model runner, attention, rejection sampler and tensor-parallel group are vLLM's own, on
CPU. The worker is `answering_worker`: it drafts only when every row of its window is the right one.
Not part of the ordinary tests (pytest does not look for this name): `make test-vllm`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.vllm import rig, tiny

CROWD, OUTAGE = 0, 1
"""The two crowds of every life."""

TOKENS = (40, 90)
N_CANDIDATES = (12, 5)
N_CHOSEN = (9, 3)

CLEAR_NATS = 0.5
"""Two bf16 runs of other batch shapes may disagree where the best two tokens are closer than this
(logits of 64 have steps of 0.25 to 0.5); such prompts say nothing about speculation."""

KV_BLOCKS = {"capacity": 17, "async": 17, "resilience": 72, "shadow": 72}
"""Of 32 tokens: four requests do not fit for long, so that some are preempted. With the drafter's
sliding-window layer beside them, the target's four layers count their blocks one by one."""

KEPT = ("resilience", "shadow")
"""The policies that keep the local drafter; the others find no weights for one (§10)."""


class Reference(NamedTuple):
    """Prompts, and how the engine goes on after them when it does not speculate."""

    prompts: list[list[list[int]]]
    texts: list[list[list[int]]]


class World:
    """The lives that have been lived, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = tiny.write(folder / "model")
        self._references: dict[int, Reference] = {}
        self._lives: dict[tuple[int, str], dict[str, Any]] = {}

    def reference(self, tp: int) -> Reference:
        if tp not in self._references:
            crowds = [
                (rig.candidates(n), tokens, False)
                for n, tokens in zip(N_CANDIDATES, TOKENS, strict=True)
            ]
            found = rig.live(
                self._plan(tp, False, 200, 8, "capacity", crowds), self.folder, f"tp{tp}-reference"
            )
            prompts, texts = [], []
            for crowd, (given, _, _), n in zip(found["crowds"], crowds, N_CHOSEN, strict=True):
                clear = [i for i, gap in enumerate(crowd["margins"]) if gap >= CLEAR_NATS][:n]
                assert len(clear) == n, f"too few clear prompts: {crowd['margins']}"
                prompts.append([given[i] for i in clear])
                texts.append([crowd["texts"][i] for i in clear])
            self._references[tp] = Reference(prompts, texts)
        return self._references[tp]

    def life(self, tp: int, policy: str) -> dict[str, Any]:
        if (tp, policy) not in self._lives:
            reference = self.reference(tp)
            self._texts_file(tp).write_text(json.dumps([t for c in reference.texts for t in c]))
            crowds = [
                (reference.prompts[CROWD], TOKENS[CROWD], False),
                (reference.prompts[OUTAGE], TOKENS[OUTAGE], True),
            ]
            plan = self._plan(tp, True, KV_BLOCKS[policy], tiny.SLOTS, policy, crowds)
            env = {}
            if policy == "async":
                plan["policy"] = "capacity"
                env["VLLM_DSPARK_REMOTE_ASYNC"] = "1"
            self._lives[tp, policy] = rig.live(plan, self.folder, f"tp{tp}-{policy}", **env)
        return self._lives[tp, policy]

    def _plan(self, tp: int, speculate: bool, *rest: Any) -> dict[str, Any]:
        kv_blocks, max_slots, policy, crowds = rest
        return {
            "target": str(self.model.target),
            "draft": str(self.model.draft if policy in KEPT else self.model.bare),
            "texts": str(self._texts_file(tp)),
            "tp": tp,
            "speculate": speculate,
            "kv_blocks": kv_blocks,
            "max_slots": max_slots,
            "policy": policy,
            "crowds": crowds,
            "schedules_ahead": speculate and policy not in KEPT,
        }

    def _texts_file(self, tp: int) -> Path:
        return self.folder / f"tp{tp}-texts.json"


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("vllm"))


pytestmark = pytest.mark.timeout(0)  # `rig.live` has a limit of its own

CAPACITY = [(1, "capacity"), (1, "async"), (2, "capacity")]
EVERY = [*CAPACITY, *[(1, policy) for policy in KEPT]]


@pytest.mark.parametrize(("tp", "policy"), EVERY)
def test_speculation_changes_no_token(world: World, tp: int, policy: str) -> None:
    texts = world.reference(tp).texts
    crowds = world.life(tp, policy)["crowds"]
    assert [crowd["texts"] for crowd in crowds] == texts


@pytest.mark.parametrize(("tp", "policy"), EVERY)
def test_the_engine_did_all_that_a_window_must_survive(world: World, tp: int, policy: str) -> None:
    life = world.life(tp, policy)
    entries = list(_entries(life, CROWD))
    assert max(len(call["req_ids"]) for call in _calls(life, CROWD)) >= 3
    assert any(e["is_prefilling"] and not e["num_sampled"] for e in entries), "no chunked prefill"
    assert any(e["num_rejected"] for e in entries), "no draft was rejected"
    assert len({(e["slot"], e["req_id"]) for e in entries}) > tiny.SLOTS, "no slot was reused"
    assert life["metrics"]["vllm:num_preemptions"] >= 1
    assert life["metrics"]["vllm:prefix_cache_hits"] >= 1


@pytest.mark.parametrize(("tp", "policy"), CAPACITY)
def test_the_target_accepts_drafts(world: World, tp: int, policy: str) -> None:
    assert _mean_accepted(world.life(tp, policy), CROWD) >= 1


@pytest.mark.parametrize(("tp", "policy"), EVERY)
def test_every_window_held_the_rows_of_its_own_text(world: World, tp: int, policy: str) -> None:
    """§7.4: only a prefix hit without bounded replay, as here, may leave a window partial."""
    life = world.life(tp, policy)
    (stats,) = life["crowds"][CROWD]["worker"]
    assert stats["drafted_requests"] > 0
    assert stats["internal_entries"] == stats["bad_entries"] == stats["stale_generation"] == 0
    assert stats["frames_refused"] == {}
    assert stats["partial_windows"] == _partial_windows(_calls(life, CROWD))
    assert stats["steps"] == len(_calls(life, CROWD))


@pytest.mark.parametrize(("tp", "policy"), EVERY)
def test_positions_are_the_devices_where_the_host_only_knows_a_bound(
    world: World, tp: int, policy: str
) -> None:
    life = world.life(tp, policy)
    entries = [*_entries(life, CROWD), *_entries(life, OUTAGE)]
    assert all(e["host_first_pos"] == e["first_pos"] for e in entries if e["is_prefilling"])
    assert all(e["host_first_pos"] >= e["first_pos"] for e in entries)
    differ = any(e["host_first_pos"] > e["first_pos"] for e in entries)
    assert differ is (policy not in KEPT), "only what schedules ahead guesses"


@pytest.mark.parametrize(("tp", "policy"), EVERY)
def test_a_killed_worker_comes_back_in_mid_generation(world: World, tp: int, policy: str) -> None:
    life = world.life(tp, policy)
    before, after = life["crowds"][OUTAGE]["worker"]
    assert before["drafted_requests"] > 0
    assert after["drafted_requests"] > 0, "the client did not come back"
    assert after["resyncs"] > 0
    assert after["internal_entries"] == after["bad_entries"] == after["stale_generation"] == 0
    remote = life["remote"][0]
    assert remote["connections"] == 2
    assert remote["fallback_no_connection"] + remote["fallback_transport"] >= 3


@pytest.mark.parametrize(("tp", "policy"), CAPACITY)
def test_a_round_without_the_worker_has_no_drafts_and_no_confidence(
    world: World, tp: int, policy: str
) -> None:
    """§10: zeros, never the confidences of the round before."""
    silent = _silent(world.life(tp, policy))
    assert len(silent) >= 3
    assert not any(any(e["drafts"]) or any(e["confidence"]) for e in silent)


def test_both_ranks_propose_the_same(world: World) -> None:
    """§4.1."""
    life = world.life(2, "capacity")
    assert life["class"] == ["CapacitySpeculator"] * 2
    for crowd in life["crowds"]:
        zero, one = crowd["calls"]
        assert zero == one
    assert life["remote"][1] is None


def test_resilience_goes_on_with_the_local_drafter(world: World) -> None:
    life = world.life(1, "resilience")
    assert life["class"] == ["KeptDSparkSpeculator"]
    silent = _silent(life)
    assert len(silent) >= 3
    assert all(any(e["drafts"]) for e in silent)
    assert not any(any(e["confidence"]) for e in silent), "vLLM's drafter says none in this engine"
    assert sum(e["num_sampled"] - 1 for e in silent) >= 1, "no local draft was accepted"


def test_shadow_compares_and_uses_the_local_drafts(world: World) -> None:
    life = world.life(1, "shadow")
    report = life["remote"][0]["shadow"]
    assert report["entries_compared"] > 0, report


def test_an_engine_that_cannot_draft_remotely_does_not_start(world: World) -> None:
    reference = world.reference(1)
    plan = world._plan(1, True, 17, 4, "bogus", [(reference.prompts[OUTAGE], 2, False)])
    with pytest.raises(rig.EngineDied, match="VLLM_DSPARK_REMOTE_POLICY"):
        rig.live(plan, world.folder, "refused")


# --- what is read off the calls -------------------------------------------------------------------


def _calls(life: dict[str, Any], crowd: int) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = life["crowds"][crowd]["calls"][0]
    return calls


def _silent(life: dict[str, Any]) -> list[dict[str, Any]]:
    """Decoding entries of the outage's rounds without a worker, told apart by the confidence: what
    `answering_worker` says at the first position, no local drafter says."""
    answered = 0.5
    entries = [e for e in _entries(life, OUTAGE) if not e["is_prefilling"]]
    drafted = [i for i, e in enumerate(entries) if e["confidence"][0] == answered]
    gap = max(range(len(drafted) - 1), key=lambda j: drafted[j + 1] - drafted[j])
    return entries[drafted[gap] + 1 : drafted[gap + 1]]


def _entries(life: dict[str, Any], crowd: int) -> Iterator[dict[str, Any]]:
    for call in _calls(life, crowd):
        for i, req_id in enumerate(call["req_ids"]):
            yield {
                "req_id": req_id,
                "slot": call["slots"][i],
                "n_drafts": 0 if call["n_drafts"] is None else call["n_drafts"][i],
                **{
                    name: call[name][i]
                    for name in (
                        "first_pos",
                        "host_first_pos",
                        "is_prefilling",
                        "n_rows",
                        "num_sampled",
                        "num_rejected",
                        "drafts",
                        "confidence",
                    )
                },
            }


def _mean_accepted(life: dict[str, Any], crowd: int) -> float:
    verified = [e for e in _entries(life, crowd) if e["n_drafts"]]
    return float(sum(e["num_sampled"] - 1 for e in verified) / len(verified))


def _partial_windows(calls: list[dict[str, Any]]) -> int:
    """A naive recount: entries that need drafts while rows before them were never computed."""
    owners: dict[int, str] = {}
    lowest: dict[int, int] = {}
    n = 0
    for call in calls:
        for i, req_id in enumerate(call["req_ids"]):
            slot, first = call["slots"][i], call["first_pos"][i]
            if owners.get(slot) != req_id:
                owners[slot], lowest[slot] = req_id, first
            lowest[slot] = min(lowest[slot], first)
            anchor = first + call["n_rows"][i] - call["num_rejected"][i]
            held = anchor - max(lowest[slot], anchor - tiny.WINDOW)
            n += bool(call["num_sampled"][i] and held < min(tiny.WINDOW, anchor))
    return n
