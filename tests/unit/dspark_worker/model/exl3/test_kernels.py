"""Whose products are used, and what is done with kernels that lie (EXL3 spec §7, §13).

The package itself has not run here: a stand-in of its class does, with fp16 activations.
"""

import logging
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dspark_worker.model.exl3 import kernels
from dspark_worker.model.exl3.cache import DecodedCache
from dspark_worker.model.exl3.kernels import choose_kernels
from dspark_worker.model.exl3.linear import Exl3Linear
from dspark_worker.model.exl3.packed import Packed
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.exl3 import MARKERS, Codebook
from tests.unit.dspark_worker.model.exl3.layers import CPU, packed

CUDA = torch.device("cuda", 0)


class StandIn:
    """`LinearEXL3` as the specification's §13 calls it."""

    made: list["StandIn"] = []  # noqa: RUF012 -- emptied by the fixture
    factor = 1.0

    def __init__(
        self, config: None, n_in: int, n_out: int, *, key: str, out_dtype: torch.dtype, **t: Any
    ) -> None:
        assert (config, t["bias"], out_dtype) == (None, None, torch.float16)
        assert t["suh"].dtype == t["svh"].dtype == torch.float16
        assert (t["trellis"].dtype, t["trellis"].is_contiguous()) == (torch.int16, True)
        self.key = key
        self.shape = (n_in, n_out)
        self.markers = {name: t[name] for name in MARKERS}
        present = [name for name, marker in self.markers.items() if marker is not None]
        codebook = Codebook(present[0]) if present else Codebook.THREE_INST
        layer = Packed(t["trellis"], codebook, t["suh"].float(), t["svh"].float(), None)
        cache = DecodedCache(0, torch.float16, CPU)
        self.linear = Exl3Linear(layer, n_in, n_out, cache, is_expert=False)
        StandIn.made.append(self)

    def forward(self, x: Tensor, params: dict[str, Any], out_dtype: torch.dtype) -> Tensor:
        assert (x.dtype, out_dtype) == (torch.float16, torch.float32)
        assert x.is_contiguous()
        assert x.dim() == 2
        return (self.linear(x.float()) * self.factor).to(out_dtype)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[StandIn]]:
    """As if the package were there."""
    module = types.ModuleType("exllamav3.modules.quant.exl3")
    module.LinearEXL3 = StandIn  # type: ignore[attr-defined]
    for name in ("exllamav3", "exllamav3.modules", "exllamav3.modules.quant"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delenv("EXL3_INT8_GEMV", raising=False)
    monkeypatch.setattr(StandIn, "factor", 1.0)
    StandIn.made.clear()
    yield StandIn
    os.environ.pop("EXL3_INT8_GEMV", None)


def linears() -> dict[str, Exl3Linear]:
    cache = DecodedCache(1 << 24, torch.float32, CPU)
    found = {
        "head": Exl3Linear(packed(256, 384, 6), 200, 300, cache, is_expert=False),
        "mtp.0.ffn.experts.0.w1": Exl3Linear(packed(seed=1), 128, 128, cache, is_expert=True),
        "mtp.0.ffn.experts.1.w1": Exl3Linear(packed(seed=2), 128, 128, cache, is_expert=True),
    }
    slow = packed(128, 256, 3, Codebook.THREE_INST)._replace(bias=torch.ones(256))
    return found | {"old": Exl3Linear(slow, 128, 256, cache, is_expert=False)}


def used(asked: str, device: torch.device = CUDA) -> tuple[str, dict[str, Exl3Linear]]:
    found = linears()
    return choose_kernels(asked, found, device), found


@pytest.mark.parametrize("asked", ["auto", "exllamav3"])
def test_kernels_that_pass_are_used_for_every_layer(asked: str, installed: type[StandIn]) -> None:
    name, found = used(asked)
    assert name == "exllamav3"
    assert [one.key for one in installed.made] == list(found)
    assert os.environ["EXL3_INT8_GEMV"] == "0"
    head, old = installed.made[0], installed.made[3]
    assert head.shape == (256, 384)
    assert int(head.markers["mul1"]) & 0xFFFFFFFF == MARKERS["mul1"]
    assert head.markers["mcg"] is None
    assert old.markers == {"mul1": None, "mcg": None}
    for linear in found.values():
        x = torch.randn(2, 3, linear.n_in)
        y = linear(x)
        kernel, linear.product = linear.product, None
        assert kernel is not None
        expected = linear(x)
        assert y.shape == expected.shape == (2, 3, linear.n_out)
        assert 0 < float((y - expected).norm() / expected.norm()) < 1e-3


def test_with_kernels_nothing_is_decoded_for_good(installed: type[StandIn]) -> None:
    _, found = used("auto")
    for linear in found.values():
        linear.pin()
        assert linear._pinned is None
        linear.product = None
    found["head"].pin()
    assert found["head"]._pinned is not None


@pytest.mark.parametrize("factor", [1.05, float("nan"), 0.0])
def test_kernels_that_are_wrong_are_found_out_and_never_used(
    factor: float,
    installed: type[StandIn],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(installed, "factor", factor)
    with caplog.at_level(logging.WARNING):
        name, found = used("auto")
    assert name == "torch"
    assert all(linear.product is None for linear in found.values())
    (record,) = caplog.records
    assert "head: 1 rows differ by" in record.getMessage()
    with pytest.raises(CheckpointError, match="backend exllamav3: head: 1 rows differ by"):
        used("exllamav3")


@pytest.mark.parametrize(("noise", "name"), [(0.0, "exllamav3"), (1e-6, "torch")])
def test_a_layer_of_zeros_is_tested_like_any_other(
    noise: float, name: str, installed: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative deviation of nothing from nothing is none, and anything is too much."""
    zeros = packed()._replace(svh=torch.zeros(128))
    cache = DecodedCache(0, torch.float32, CPU)
    forward = StandIn.forward
    monkeypatch.setattr(StandIn, "forward", lambda *given: forward(*given) + noise)
    found = {"w": Exl3Linear(zeros, 128, 128, cache, is_expert=False)}
    assert choose_kernels("auto", found, CUDA) == name


def test_each_kind_of_layer_is_tested_once_at_every_number_of_rows(
    installed: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    forward = StandIn.forward

    def watched(self: StandIn, x: Tensor, params: dict[str, Any], out: torch.dtype) -> Tensor:
        seen.append((self.key, len(x)))
        return forward(self, x, params, out)

    monkeypatch.setattr(StandIn, "forward", watched)
    used("auto")
    names = ("head", "mtp.0.ffn.experts.0.w1", "old")
    assert seen == [(name, n) for name in names for n in kernels._N_ROWS]


@pytest.mark.parametrize(
    "error", [ImportError("No module named x"), OSError("CUDA_HOME\nis unset")]
)
def test_a_package_that_cannot_be_imported_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """§13: without CUDA it raises an OSError of its own."""

    def fails(_: str) -> None:
        raise error

    monkeypatch.setattr("importlib.import_module", fails)
    with caplog.at_level(logging.WARNING):
        assert used("auto")[0] == "torch"
    first = str(error).splitlines()[0]
    assert caplog.records[0].getMessage().endswith(f"{type(error).__name__}: {first}")
    with pytest.raises(CheckpointError, match=f"^backend exllamav3: {type(error).__name__}: "):
        used("exllamav3")


@pytest.mark.parametrize("asked", ["auto", "torch"])
def test_without_cuda_nobody_asks_for_the_package(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(name))
    assert used(asked, CPU)[0] == "torch"
    assert used("torch", CUDA)[0] == "torch"


def test_insisting_without_cuda_or_without_exl3_is_refused() -> None:
    with pytest.raises(CheckpointError, match="need a CUDA device, not cpu"):
        used("exllamav3", CPU)
    with pytest.raises(CheckpointError, match="holds no EXL3 weights"):
        choose_kernels("exllamav3", {}, CUDA)
    assert choose_kernels("auto", {}, CUDA) == "torch"
