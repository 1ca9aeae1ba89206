"""Golden cases: what lies on disk, what each mode writes, and which deviation breaks it (§11).

Decides tolerances and keys. Refuses to know how a case is played. f32 modes prove the mathematics,
bf16 modes the rounding points.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from dsparkctl.checkpoint.errors import wrong
from dsparkctl.checkpoint.strict_json import read_json_object

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


def load_case(case: Path) -> tuple[list[Round], Tensor]:
    """The rounds of `scenario.json` and the bf16 tap rows [n, T·D] they point into."""
    path = case / "scenario.json"
    stated = read_json_object(path).get("rounds")
    if not isinstance(stated, list) or not stated:
        raise wrong(path, "must be a list of at least one round", at="rounds")
    rounds = [_round(values, path, f"rounds[{index}]") for index, values in enumerate(stated)]
    inputs = load_tensors(case / "inputs.safetensors", required=True)
    if "rows" not in inputs:
        raise wrong(case / "inputs.safetensors", "is missing", at="rows")
    return rounds, inputs["rows"]


def _round(values: Any, path: Path, at: str) -> Round:
    if not isinstance(values, dict):
        raise wrong(path, "must be an object", at=at)
    for field, kind in Round.__annotations__.items():
        if field not in values:
            raise wrong(path, f"{field} is missing", at=at)
        if type(values[field]) is not kind:
            raise wrong(path, f"{field} must be of type {kind.__name__}", at=at)
    return Round(*(values[field] for field in Round._fields))


def load_expected(case: Path, mode: str) -> dict[str, Tensor]:
    """What the case expects of one mode, by key `<mode>.r<ii>.<what>`; nothing without a file."""
    path = case / "expected.safetensors"
    stored = load_tensors(path, required=False)
    expected = {key: value for key, value in stored.items() if key.startswith(f"{mode}.")}
    for key in expected:
        if key.count(".") < 2:
            raise wrong(path, f"is no key: they read {mode}.r<round>.<what>", at=key)
    return expected


def load_tensors(path: Path, *, required: bool) -> dict[str, Tensor]:
    if not required and not path.exists():
        return {}
    try:
        return load_file(path)
    except Exception as error:  # the library's own error class and OSError alike
        raise wrong(path, f"cannot be read ({error})") from None


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
