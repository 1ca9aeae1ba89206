"""Golden cases, played through desk and model (specification §11).

Decides how a scenario becomes HELLO and STEPs, and notes what the drafter did. Never says what a
window holds: the desk does, as in serving.
"""

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dspark_worker.desk import Desk
from dspark_worker.drafter import Append, Draft, Drafter, DraftRequest, Fault
from dspark_worker.golden import (
    MODES,
    Deviation,
    Round,
    compare,
    load_case,
    load_expected,
)
from dspark_worker.model.drafter import TorchDrafter
from dspark_worker.model.load import load_drafter
from dsparkctl.checkpoint.errors import CheckpointError, wrong
from dsparkctl.checkpoint.model_config import ModelConfig
from dsparkctl.config.hello import HelloParams
from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, WANT_MARGIN, EntryStatus, FrameStatus, Op
from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import frame, parse_header, parse_step_reply, step_head
from dsparkctl.contract.records import ReqEntry

SLOT = 0


@dataclass(frozen=True, slots=True)
class Replay:
    """One case in one mode."""

    outputs: dict[str, Tensor]
    """`<mode>.r<ii>.<what>` -> tensor, as `expected.safetensors` has them."""
    deviations: tuple[Deviation, ...]
    """Empty when the case expects nothing of this mode."""

    @property
    def broken(self) -> tuple[Deviation, ...]:
        return tuple(deviation for deviation in self.deviations if deviation.broken)


def replay(case: Path, mode: str, *, device: str = "cpu") -> Replay:
    """Play the case in `case` and compare; `CheckpointError` when it cannot be read or served."""
    if mode not in MODES:
        raise CheckpointError(f"mode {mode!r} is not known; use {', '.join(MODES)}")
    rounds, rows = load_case(case)
    how = MODES[mode]
    drafter = load_drafter(case, device=device, dtype=how.dtype, kv_quant=how.kv_quant, max_slots=1)
    _check_rows(case, rounds, rows, drafter)
    expected = load_expected(case, mode)
    kinds = {key.split(".")[2] for key in expected} or {*how.keys}
    played = play(drafter, rounds, rows, case / "scenario.json")
    outputs = {
        f"{mode}.r{index:02}.{what}": tensor
        for index, values in enumerate(played)
        for what, tensor in values.items()
        if what.partition(".")[0] in kinds
    }
    return Replay(outputs, compare(outputs, expected, how) if expected else ())


def play(
    drafter: TorchDrafter, rounds: Sequence[Round], rows: Tensor, scenario: Path
) -> Iterator[dict[str, Tensor]]:
    """Run a scenario in one slot through the desk; each round gives what was seen of it, by key.

    CheckpointError naming `scenario` and the round when the desk refuses one: there is nothing to
    compare then.
    """
    watched = Watched(drafter)
    player = _Player(watched, drafter.config, max(this.max_model_len for this in rounds))
    for index, this in enumerate(rounds):
        watched.seen.clear()
        try:
            player.step(index, this, rows[this.row_offset : this.row_offset + this.n_rows])
        except _Refused as error:
            raise wrong(scenario, f"the desk answered {error}", at=f"rounds[{index}]") from None
        except struct.error as error:
            what = f"a number does not fit its field ({error})"
            raise wrong(scenario, what, at=f"rounds[{index}]") from None
        lo_pos = player.lo_pos()
        if lo_pos is not None:
            watched.see_window(max(lo_pos, this.anchor_pos - player.window), this.anchor_pos)
        yield dict(watched.seen)


class _Refused(Exception):  # noqa: N818 -- what the desk did
    """By its name, the frame or entry status that says no."""


class _Player:
    """Says HELLO and STEP to a desk, as a client would, one entry at a time."""

    def __init__(self, drafter: Drafter, config: ModelConfig, max_model_len: int) -> None:
        self.window = config.window
        hello = HelloParams.from_checkpoint(
            config, drafter_identity=bytes(32), max_slots=1, max_model_len=max_model_len
        )
        self._hello = hello.record()
        self._desk = Desk(self._hello, drafter, worker_name="replay", clock=time.perf_counter)
        self._desk.connected()
        self._said_max_model_len = 0
        self._generation = 0
        self._seq = 0

    def step(self, index: int, this: Round, rows: Tensor) -> None:
        """_Refused unless it is served. The query clamp is HELLO's, so a new one takes one (R6)."""
        if this.max_model_len != self._said_max_model_len:
            self._ask(
                frame(
                    Op.HELLO,
                    self._next_seq(),
                    1,
                    pack(self._hello._replace(max_model_len=this.max_model_len)),
                )
            )
            self._said_max_model_len = this.max_model_len
        self._generation += this.new_gen
        entry = ReqEntry(
            slot=SLOT,
            req_flags=NEW_GEN * this.new_gen | NEED_DRAFT * this.need_draft,
            k_window=0,
            n_out=0,
            generation=self._generation,
            first_pos=this.first_pos,
            n_rows=this.n_rows,
            anchor_token=this.anchor_token,
            anchor_pos=this.anchor_pos,
        )
        head = step_head(
            seq=self._next_seq(),
            session=1,
            step_id=index,
            step_flags=WANT_MARGIN,
            row_bytes=self._hello.row_bytes,
            entries=[entry],
        )
        body = self._ask(head + rows.contiguous().view(torch.uint8).numpy().tobytes())
        status = parse_step_reply(body).statuses[0].status
        if status > EntryStatus.PARTIAL_WINDOW:
            raise _Refused(EntryStatus(status).name)

    def lo_pos(self) -> int | None:
        found: int | None = self._desk.snapshot()["slots"][SLOT]["lo_pos"]
        return found

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _ask(self, message: bytes) -> memoryview:
        view = memoryview(bytearray(message))
        reply = memoryview(
            self._desk.answer(parse_header(view), view[HEADER_BYTES:], time.perf_counter())
        )
        status = parse_header(reply).status
        if status:
            raise _Refused(FrameStatus(status).name)
        return reply[HEADER_BYTES:]


class Watched:
    """A drafter that notes what it does, one round of one request at a time, under §11's keys."""

    def __init__(self, drafter: TorchDrafter) -> None:
        self.seen: dict[str, Tensor] = {}
        self.backend = drafter.backend
        self._drafter = drafter
        self._traced: dict[str, list[Tensor]] = {}
        drafter.trace = self._note

    def append(self, parts: Sequence[Append]) -> Sequence[Fault | None]:
        faults = self._drafter.append(parts)
        self.seen.update(self._take())
        return faults

    def draft(
        self, requests: Sequence[DraftRequest], *, max_model_len: int, want_margin: bool
    ) -> Sequence[Draft | Fault]:
        answers = self._drafter.draft(
            requests, max_model_len=max_model_len, want_margin=want_margin
        )
        self.seen.update(self._take())
        if isinstance(answers[0], Draft):
            self.seen["draft_ids"] = torch.tensor(answers[0].ids, dtype=torch.int32)
            self.seen["confidence"] = torch.tensor(answers[0].confidence)
            self.seen["margin"] = torch.tensor(answers[0].margin)
        return answers

    def see_window(self, first_pos: int, end_pos: int) -> None:
        """Note the key/value vectors that the window holds; nothing for an empty one."""
        if first_pos < end_pos:
            for layer, kv in enumerate(self._drafter.window_kv(SLOT, first_pos, end_pos)):
                self.seen[f"window_kv.{layer}"] = kv.cpu().clone()

    def _note(self, name: str, value: Tensor) -> None:
        self._traced.setdefault(name, []).append(value.cpu().clone())

    def _take(self) -> dict[str, Tensor]:
        """One tensor per name: layers stacked, steps in a row, the one request unwrapped."""
        taken = {name: torch.cat(values) for name, values in self._traced.items()}
        if "routed_experts" in taken:
            taken["routed_experts"] = torch.stack(self._traced["routed_experts"]).to(torch.int32)
        for name in {"base_logits", "conf_logit"} & taken.keys():
            taken[name] = taken[name].squeeze(0)
        self._traced.clear()
        return taken


def _check_rows(case: Path, rounds: Sequence[Round], rows: Tensor, drafter: TorchDrafter) -> None:
    path, config = case / "inputs.safetensors", drafter.config
    if rows.dtype != torch.bfloat16 or rows.shape[1:] != (config.n_taps * config.hidden,):
        raise wrong(path, f"must be bf16 [n, {config.n_taps * config.hidden}]", at="rows")
    for index, this in enumerate(rounds):
        if not 0 <= this.row_offset <= this.row_offset + this.n_rows <= len(rows):
            raise wrong(path, f"round {index} points outside its {len(rows)} rows", at="rows")
