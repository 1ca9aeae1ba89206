"""The drafter's shape, as config.json and inference_config.json state it (model specification §1).

Decides which values a drafter needs, under which names they may stand, and which are possible. A
value may stand under its Hugging Face name or the reference's, inside `text_config` or flat, in
either file; wherever two places state it they must agree. Nothing has a default but the draft's own
expert counts, which fall back to the backbone's. What drafting does not use is not asked for.
"""

import sys
from dataclasses import dataclass
from typing import Any

from dsparkctl.checkpoint.config_names import NAMES, Stated, stated_values
from dsparkctl.checkpoint.errors import wrong
from dsparkctl.checkpoint.files import CheckpointFiles
from dsparkctl.checkpoint.strict_json import read_json_object

_MAX_FLOAT = sys.float_info.max

MAX_DIM = 1 << 22
"""Bound on every size a config states: 32 times the live vocabulary."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One drafter's shape. Letters in brackets are those of the specification."""

    vocab_size: int
    """[V]"""
    hidden: int
    """[D]"""
    n_heads: int
    """[H]"""
    head_dim: int
    """[d]"""
    rope_dim: int
    """[r] the last components of a head that are rotated; even, at most `head_dim`"""
    q_rank: int
    """[Q]"""
    o_groups: int
    """[G] divides `n_heads`"""
    o_rank: int
    """[O]"""
    expert_hidden: int
    """[I] inner width of a draft expert and of the shared expert alike"""
    n_layers: int
    """[L] draft layers"""
    n_experts: int
    """[E] routed experts of a draft layer"""
    n_active_experts: int
    """[k]"""
    route_scale: float
    swiglu_limit: float
    norm_eps: float
    n_streams: int
    """[C] copies of the residual stream"""
    sinkhorn_iters: int
    hc_eps: float
    window: int
    """[W] context rows a block sees"""
    rope_theta: float
    num_spec: int
    """[N] tokens of a block"""
    noise_token_id: int
    tap_layer_ids: tuple[int, ...]
    """1..4 ids; their number is [T]"""
    markov_rank: int
    """[m]"""

    @property
    def n_taps(self) -> int:
        """[T]"""
        return len(self.tap_layer_ids)

    @property
    def row_bytes(self) -> int:
        """Bytes of one tap row: T·D values of bf16 (§3 of the contract)."""
        return self.n_taps * self.hidden * 2

    @property
    def mix_width(self) -> int:
        """(2+C)·C, the coefficients that one MIX computes."""
        return (2 + self.n_streams) * self.n_streams


def read_model_config(files: CheckpointFiles) -> ModelConfig:
    """The shape that the checkpoint's files agree on; `CheckpointError` names file and key."""
    stated: dict[str, Stated] = {}
    for path in (files.config, files.inference_config):
        if path is None:
            continue
        for meaning, found in stated_values(path, read_json_object(path)).items():
            first = stated.setdefault(meaning, found)
            if first.value != found.value:
                raise wrong(
                    found.file,
                    f"{_shown(found.value)}, but {first.file.name}: {first.key} is"
                    f" {_shown(first.value)}",
                    at=found.key,
                )
    return _Reader(files, stated).config()


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns what the files state into checked values."""

    files: CheckpointFiles
    stated: dict[str, Stated]

    def config(self) -> ModelConfig:
        self._refuse_other_models()
        dim = self._int
        config = ModelConfig(
            vocab_size=dim("vocab_size", low=2),
            hidden=dim("hidden"),
            n_heads=dim("n_heads"),
            head_dim=dim("head_dim"),
            rope_dim=dim("rope_dim", low=2),
            q_rank=dim("q_rank"),
            o_groups=dim("o_groups"),
            o_rank=dim("o_rank"),
            expert_hidden=dim("expert_hidden"),
            n_layers=dim("n_layers", high=64),
            n_experts=dim(self._drafts_own("n_experts"), high=65536),
            n_active_experts=dim(self._drafts_own("n_active_experts"), high=65536),
            route_scale=self._float("route_scale"),
            swiglu_limit=self._float("swiglu_limit", positive=True),
            norm_eps=self._float("norm_eps"),
            n_streams=dim("n_streams", high=64),
            sinkhorn_iters=dim("sinkhorn_iters", high=1000),
            hc_eps=self._float("hc_eps"),
            window=dim("window", high=65535),  # ReqStatus counts rows in a u16 (§6.3)
            rope_theta=self._float("rope_theta", positive=True),
            num_spec=dim("num_spec", high=255),  # n_out is a u8 (§6.3)
            noise_token_id=dim("noise_token_id", low=0),
            tap_layer_ids=self._taps(),
            markov_rank=dim("markov_rank"),
        )
        self._check_together(config)
        return config

    def _check_together(self, config: ModelConfig) -> None:
        if config.rope_dim % 2:
            raise self._wrong("rope_dim", "must be even: it is rotated in pairs")
        if config.rope_dim > config.head_dim:
            raise self._wrong("rope_dim", f"is larger than head_dim {config.head_dim}")
        if config.n_heads % config.o_groups:
            raise self._wrong("o_groups", f"does not divide the {config.n_heads} heads")
        if config.n_active_experts > config.n_experts:
            meaning = self._drafts_own("n_active_experts")
            raise self._wrong(meaning, f"is more than the {config.n_experts} experts there are")
        if config.noise_token_id >= config.vocab_size:
            raise self._wrong("noise_token_id", f"is outside the vocabulary {config.vocab_size}")
        ratios = self.stated.get("compress_ratios")
        if ratios is None:
            return
        if not isinstance(ratios.value, list):
            raise self._wrong("compress_ratios", "must be a list")
        # A list that ends with the backbone says nothing of the draft layers.
        backbone = self.stated.get("n_backbone_layers")
        ends_early = backbone is not None and len(ratios.value) == backbone.value
        if not ends_early and any(ratios.value[-config.n_layers :]):
            raise self._wrong("compress_ratios", "draft layers must be window-only (ratio 0)")

    def _refuse_other_models(self) -> None:
        """Values that need not be stated, but that this drafter can only serve one way (§1)."""
        for meaning, only in (
            ("scoring", "sqrtsoftplus"),
            ("normalised_routing", True),
            ("topk_method", "noaux_tc"),
            ("n_shared_experts", 1),
            ("n_kv_heads", 1),
            ("gate_temp", 1),
        ):
            stated = self.stated.get(meaning)
            if stated is not None and stated.value != only:
                raise self._wrong(meaning, f"only {_shown(only)} is supported")

    def _drafts_own(self, meaning: str) -> str:
        """The draft's own count, or the backbone's where the draft's is 0 or absent (§1)."""
        return f"draft_{meaning}" if f"draft_{meaning}" in self.stated else f"backbone_{meaning}"

    def _taps(self) -> tuple[int, ...]:
        ids = self._value("tap_layer_ids")
        n_backbone = (
            self._int("n_backbone_layers") if "n_backbone_layers" in self.stated else 1 << 31
        )
        if not isinstance(ids, list) or not 1 <= len(ids) <= 4:
            raise self._wrong("tap_layer_ids", "must list 1 to 4 layer ids")
        if not all(type(i) is int and 0 <= i < n_backbone for i in ids):
            raise self._wrong("tap_layer_ids", f"every id must be a layer, 0..{n_backbone - 1}")
        if len(set(ids)) != len(ids):
            raise self._wrong("tap_layer_ids", "names a layer twice")
        return tuple(ids)

    def _int(self, meaning: str, *, low: int = 1, high: int = MAX_DIM) -> int:
        value = self._value(meaning)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(meaning, f"must be a whole number in {low}..{high}")
        return value

    def _float(self, meaning: str, *, positive: bool = False) -> float:
        value = self._value(meaning)
        # Compared as it stands: an integer of hundreds of digits fits no float.
        if type(value) not in (int, float) or not 0 <= value <= _MAX_FLOAT:
            raise self._wrong(meaning, "must be a finite number, not negative")
        if positive and value == 0:
            raise self._wrong(meaning, "must be above 0")
        return float(value)

    def _value(self, meaning: str) -> Any:
        if meaning not in self.stated:
            names = " or ".join(dict.fromkeys(NAMES[meaning]))
            read = [p for p in (self.files.config, self.files.inference_config) if p is not None]
            raise wrong(read[0], "is stated nowhere", at=names)
        return self.stated[meaning].value

    def _wrong(self, meaning: str, what: str) -> Exception:
        stated = self.stated[meaning]
        return wrong(stated.file, f"{_shown(stated.value)}: {what}", at=stated.key)


def _shown(value: object) -> str:
    return ascii(value)[:80]
