"""Golden cases, played through the model and held against what was expected (specification §11).

Decides how a case on disk becomes rounds, which intermediate values each mode writes under which
key, and which deviation breaks a tolerance. Never says what a window holds: the desk does, as in
serving. f32 modes prove the mathematics, bf16 modes the rounding points.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark_worker.desk import Desk
from dspark_worker.drafter import Append, Draft, Drafter, DraftRequest, Fault
from dspark_worker.model.drafter import TorchDrafter
from dspark_worker.model.load import load_drafter
from dsparkctl.checkpoint.errors import CheckpointError, wrong
from dsparkctl.checkpoint.model_config import ModelConfig
from dsparkctl.checkpoint.strict_json import read_json_object
from dsparkctl.config.hello import HelloParams
from dsparkctl.contract.codes import NEED_DRAFT, NEW_GEN, WANT_MARGIN, EntryStatus, FrameStatus, Op
from dsparkctl.contract.framing import HEADER_BYTES
from dsparkctl.contract.layout import pack
from dsparkctl.contract.messages import frame, parse_header, parse_step_reply, step_head
from dsparkctl.contract.records import ReqEntry

SLOT = 0

_SHORT = ("head_hidden", "draft_ids", "conf_logit", "confidence", "margin")


class Mode(NamedTuple):
    """How one mode of a case is computed and judged."""

    dtype: str
    kv_quant: str
    keys: tuple[str, ...]
    """What it writes where the case does not say what it expects."""
    tolerances: Mapping[str, float]
    """Absolute, by key; a key without one is reported, never judged. Ids must always be equal."""
    relative_rms: float | None = None
    """Bound on the relative RMS error of each position's `head_hidden`."""


MODES: Mapping[str, Mode] = {
    "f32": Mode(
        "float32",
        "none",
        (*_SHORT, "main_x", "window_kv", "base_logits", "markov_bias", "routed_experts"),
        {
            "main_x": 2e-5,
            "window_kv": 2e-5,
            "base_logits": 1e-4,
            "markov_bias": 1e-4,
            "margin": 1e-4,
            "head_hidden": 5e-4,
            "conf_logit": 5e-4,
            "confidence": 5e-4,
            "routed_experts": 0,
        },
    ),
    "f32_kvq": Mode("float32", "mxfp8_32", _SHORT, {"head_hidden": 2e-3, "confidence": 5e-4}),
    "bf16": Mode("bfloat16", "none", _SHORT, {}, 0.02),
    "bf16_kvq": Mode(
        "bfloat16", "mxfp8_32", (*_SHORT, "main_x", "window_kv", "routed_experts"), {}, 0.02
    ),
}


class Round(NamedTuple):
    """One step of a scenario, for one request."""

    new_gen: bool
    first_pos: int
    n_rows: int
    row_offset: int
    anchor_pos: int
    anchor_token: int
    need_draft: bool
    max_model_len: int


class Deviation(NamedTuple):
    """The worst that was seen under one kind of key, over all rounds."""

    what: str
    """`head_hidden`, or `head_hidden (relative rms)`."""
    worst: float
    """inf where a key is missing, unexpected, of another shape, or not finite."""
    key: str
    """Where the worst stands, e.g. `f32.r03.head_hidden`."""
    tolerance: float | None

    @property
    def broken(self) -> bool:
        return self.tolerance is not None and not self.worst <= self.tolerance


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
    stored = _load_tensors(case / "expected.safetensors", required=False)
    expected = {key: value for key, value in stored.items() if key.startswith(f"{mode}.")}
    kinds = {key.split(".")[2] for key in expected} or {*how.keys}
    outputs = {
        f"{mode}.r{index:02}.{what}": tensor
        for index, values in enumerate(play(drafter, rounds, rows))
        for what, tensor in values.items()
        if what.partition(".")[0] in kinds
    }
    return Replay(outputs, compare(outputs, expected, how) if expected else ())


def play(
    drafter: TorchDrafter, rounds: Sequence[Round], rows: Tensor
) -> Iterator[dict[str, Tensor]]:
    """Run a scenario in one slot through the desk; each round gives what was seen of it, by key.

    CheckpointError when the desk refuses a round: such a scenario has nothing to compare.
    """
    watched = Watched(drafter)
    player = _Player(watched, drafter.config, max(this.max_model_len for this in rounds))
    for index, this in enumerate(rounds):
        watched.seen.clear()
        status = player.step(index, this, rows[this.row_offset : this.row_offset + this.n_rows])
        if status > EntryStatus.PARTIAL_WINDOW:
            raise CheckpointError(f"round {index}: the desk answered {EntryStatus(status).name}")
        lo_pos = player.lo_pos()
        if lo_pos is not None:
            watched.see_window(max(lo_pos, this.anchor_pos - player.window), this.anchor_pos)
        yield dict(watched.seen)


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

    def step(self, index: int, this: Round, rows: Tensor) -> int:
        """The entry's status. The query clamp is HELLO's, so a new one takes a HELLO (R6)."""
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
        return parse_step_reply(body).statuses[0].status

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
            raise CheckpointError(f"the desk answered {FrameStatus(status).name}")
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

    def forget(self, slot: int) -> None:
        self._drafter.forget(slot)

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


def compare(
    outputs: Mapping[str, Tensor], expected: Mapping[str, Tensor], mode: Mode
) -> tuple[Deviation, ...]:
    """The worst deviation of every kind of key, ids and shapes exactly (§11)."""
    found: dict[str, Deviation] = {}
    for key in sorted(outputs.keys() | expected.keys()):
        kind = key.split(".")[2]
        if key not in outputs or key not in expected or outputs[key].shape != expected[key].shape:
            found["keys and shapes"] = Deviation("keys and shapes", torch.inf, key, 0.0)
            continue
        mine, theirs = outputs[key].double(), expected[key].double()
        distance = (mine - theirs).abs().nan_to_num(torch.inf, torch.inf).max().item()
        tolerance = 0.0 if kind == "draft_ids" else mode.tolerances.get(kind)
        _keep_worst(found, Deviation(kind, distance, key, tolerance))
        if kind == "head_hidden" and mode.relative_rms is not None:
            error = (mine - theirs).square().mean(-1) / theirs.square().mean(-1)
            relative = error.sqrt().nan_to_num(torch.inf, torch.inf).max().item()
            what = "head_hidden (relative rms)"
            _keep_worst(found, Deviation(what, relative, key, mode.relative_rms))
    return tuple(found.values())


def _keep_worst(found: dict[str, Deviation], seen: Deviation) -> None:
    worst = found.get(seen.what)
    if worst is None or seen.worst > worst.worst:
        found[seen.what] = seen


def load_case(case: Path) -> tuple[list[Round], Tensor]:
    """The rounds of `scenario.json` and the bf16 tap rows [n, T·D] they point into."""
    path = case / "scenario.json"
    stated = read_json_object(path).get("rounds")
    if not isinstance(stated, list):
        raise wrong(path, "must be a list", at="rounds")
    rounds = []
    for index, values in enumerate(stated):
        try:
            this = Round(*(values[field] for field in Round._fields))
        except (KeyError, TypeError) as error:
            raise wrong(path, f"is no round: {error!r}", at=f"rounds[{index}]") from None
        kinds = [Round.__annotations__[field] for field in Round._fields]
        if any(type(value) is not kind for value, kind in zip(this, kinds, strict=True)):
            raise wrong(path, "a field has the wrong type", at=f"rounds[{index}]")
        rounds.append(this)
    inputs = _load_tensors(case / "inputs.safetensors", required=True)
    if "rows" not in inputs:
        raise wrong(case / "inputs.safetensors", "is missing", at="rows")
    return rounds, inputs["rows"]


def _check_rows(case: Path, rounds: Sequence[Round], rows: Tensor, drafter: TorchDrafter) -> None:
    path, config = case / "inputs.safetensors", drafter.config
    if rows.dtype != torch.bfloat16 or rows.shape[1:] != (config.n_taps * config.hidden,):
        raise wrong(path, f"must be bf16 [n, {config.n_taps * config.hidden}]", at="rows")
    for index, this in enumerate(rounds):
        if not 0 <= this.row_offset <= this.row_offset + this.n_rows <= len(rows):
            raise wrong(path, f"round {index} points outside its {len(rows)} rows", at="rows")


def _load_tensors(path: Path, *, required: bool) -> dict[str, Tensor]:
    if not required and not path.exists():
        return {}
    try:
        return load_file(path)
    except Exception as error:  # the library's own error class and OSError alike
        raise wrong(path, f"cannot be read ({error})") from None
