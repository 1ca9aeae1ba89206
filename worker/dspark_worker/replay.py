"""Golden cases, played through the model and held against what was expected (specification §11).

Decides how a case on disk becomes rounds, which intermediate values each mode writes under which
key, and which deviation breaks a tolerance. Never says what a window holds: `play` does, in one
place. f32 modes prove the mathematics, bf16 modes the rounding points.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark_worker.drafter import Append, Draft, DraftRequest, Fault
from dspark_worker.model.drafter import TorchDrafter
from dspark_worker.model.load import load_drafter
from dsparkctl.checkpoint.errors import CheckpointError, wrong
from dsparkctl.checkpoint.strict_json import read_json_object

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
    """Run a scenario in one slot; each round gives what was seen of it, by key.

    SEAM: the window [lo, hi] is kept here by hand, as §7.2.3 has it, for lack of a desk. To play
    through the desk, replace this function alone: hand each round to the desk as a STEP whose
    drafter is `Watched(drafter)`, and yield `watched.seen` after it.
    """
    watched = Watched(drafter)
    window_size = drafter.config.window
    lo, hi = 0, -1
    for this in rounds:
        watched.seen.clear()
        if this.new_gen:
            lo, hi = 0, -1
        if this.n_rows:
            empty_or_gap = hi < lo or this.first_pos > hi + 1
            lo = this.first_pos if empty_or_gap else min(lo, this.first_pos)
            hi = this.first_pos + this.n_rows - 1
            lo = max(lo, hi - window_size + 1)
            part = rows[this.row_offset : this.row_offset + this.n_rows]
            data = memoryview(part.contiguous().view(torch.uint8).numpy().tobytes())
            watched.append([Append(SLOT, this.first_pos, this.n_rows, data)])
        else:
            hi = this.anchor_pos - 1
        first = min(max(lo, this.anchor_pos - window_size), this.anchor_pos)
        watched.see_window(first, this.anchor_pos)
        if this.need_draft:
            watched.draft(
                [
                    DraftRequest(
                        SLOT, first, this.anchor_pos, this.anchor_token, drafter.config.num_spec
                    )
                ],
                max_model_len=this.max_model_len,
                want_margin=True,
            )
        yield dict(watched.seen)


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
