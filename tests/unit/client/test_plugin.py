"""The way into vLLM (§10): what is hooked, what is refused, and that a refusal is loud."""

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from dsparkctl.client import plugin
from dsparkctl.client.plugin import (
    BASE_MODULE,
    CLASS_MODULE,
    ENDPOINT,
    register,
    signature_refusal,
    version_refusal,
)

LIVE = "0.31.1.dev0+g6e517b15.dsv41gb10"
ASKED = {ENDPOINT: "tcp://10.202.28.1:18620"}


class BaseV31(ABC):
    """`BaseSpeculator` as vLLM 0.31 has it, as far as its parameters go."""

    @abstractmethod
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Any,
        num_rejected: Any,
        last_sampled: Any,
        next_prefill_tokens: Any,
        temperature: Any,
        seeds: Any,
        dp_sync: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
    ) -> Any: ...


class BaseV33(ABC):
    """`BaseSpeculator` as vLLM 0.32 and 0.33 have it."""

    @abstractmethod
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Any,
        num_rejected: Any,
        last_sampled: Any,
        next_prefill_tokens: Any,
        temperature: Any,
        seeds: Any,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> Any: ...


class FakeVllm:
    """Modules by name, as much of vLLM as the hook touches; `loaded` says which were asked for."""

    def __init__(self, version: str = LIVE, base: type = BaseV31) -> None:
        stock = type("DSparkSpeculator", (base,), {})
        self.stock, self.ours = stock, type("Ours", (base,), {plugin.MARK: True})
        self.modules = {
            "vllm": module("vllm", __version__=version),
            BASE_MODULE: module(BASE_MODULE, BaseSpeculator=base),
            CLASS_MODULE: module(CLASS_MODULE, DSparkSpeculator=stock),
            "dsparkctl.client.speculator": module("ours", remote_class=self.remote_class),
        }
        self.loaded: list[str] = []
        self.made_for: list[type] = []

    def remote_class(self, stock: type) -> type:
        self.made_for.append(stock)
        return self.ours

    def load(self, name: str) -> ModuleType:
        self.loaded.append(name)
        try:
            return self.modules[name]
        except KeyError:
            raise ModuleNotFoundError(f"No module named {name!r}") from None

    @property
    def chosen(self) -> Any:
        """The class that vLLM finds under the name it looks for."""
        return self.modules[CLASS_MODULE].__dict__["DSparkSpeculator"]

    def refusal(self) -> str:
        with pytest.raises(SystemExit) as caught:
            register(ASKED, self.load)
        return str(caught.value)


def module(name: str, **members: Any) -> ModuleType:
    found = ModuleType(name)
    vars(found).update(members)
    return found


# --- what is hooked -------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [{}, {"VLLM_DSPARK_REMOTE_TRIP": "3"}])
def test_without_an_endpoint_nothing_is_done_and_nothing_is_imported(env: dict[str, str]) -> None:
    vllm = FakeVllm()
    register(env, vllm.load)
    assert vllm.loaded == []
    assert vllm.chosen is vllm.stock


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({ENDPOINT: ""}, f'{ENDPOINT}="": '),
        ({"VLLM_DSPARK_REMOTE_ENDPONT": "tcp://a:1"}, f"did you mean {ENDPOINT}?"),
        ({"VLLM_DSPARK_REMOTE_TRIP": "x"}, "VLLM_DSPARK_REMOTE_TRIP"),
    ],
)
def test_a_blank_or_misspelt_variable_never_means_that_nobody_asked(
    env: dict[str, str], said: str
) -> None:
    """R40."""
    with pytest.raises(SystemExit) as ended:
        register(env, FakeVllm().load)
    assert said in str(ended.value)


@pytest.mark.parametrize(
    ("version", "base"), [(LIVE, BaseV31), ("0.32.0", BaseV33), ("0.33.0", BaseV33)]
)
def test_the_name_that_vllm_looks_for_becomes_our_class(version: str, base: type) -> None:
    vllm = FakeVllm(version, base)
    register(ASKED, vllm.load)
    assert vllm.chosen is vllm.ours
    assert vllm.made_for == [vllm.stock]


def test_being_called_again_in_the_same_process_changes_nothing() -> None:
    vllm = FakeVllm()
    register(ASKED, vllm.load)
    register(ASKED, vllm.load)
    assert vllm.chosen is vllm.ours
    assert vllm.made_for == [vllm.stock]


def test_the_pure_part_imports_neither_vllm_nor_torch() -> None:
    script = (
        "import sys, dsparkctl.client.plugin as p; p.register({}); "
        "sys.exit(any(n.split('.')[0] in ('vllm', 'torch', 'numpy') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.31.0", LIVE, "0.32.0", "0.32.1rc1", "0.33.0+cu130"])
def test_versions_that_were_read_are_accepted(version: str) -> None:
    assert version_refusal(version) == ""


@pytest.mark.parametrize("version", ["0.30.9", "0.34.0", "1.31.0", "0.310.0"])
def test_other_versions_are_refused_by_name(version: str) -> None:
    assert version_refusal(version) == f"vLLM {version}: made for 0.31 to 0.33"


@pytest.mark.parametrize("version", ["", "dev", "0.x", "x0.31.0"])
def test_a_version_that_cannot_be_read_is_refused(version: str) -> None:
    assert "cannot be read" in version_refusal(version)


def no_keywords(
    self: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any
) -> None: ...


@pytest.mark.parametrize("base", [BaseV31, BaseV33])
def test_the_signatures_that_were_read_are_accepted(base: Any) -> None:
    assert signature_refusal(base.propose) == ""


def test_a_parameter_nobody_has_read_is_refused_by_name() -> None:
    def propose(self: Any, input_batch: Any, attn_metadata: Any, slots: Any) -> None: ...

    assert "unexpected parameter slots" in signature_refusal(propose)
    assert "unexpected parameter a" in signature_refusal(no_keywords)


def with_keywords(**names: Any) -> Callable[..., None]:
    """A `propose` with the known positional parameters and these keywords."""
    parameters = ", ".join(["self", *plugin.POSITIONAL, *[f"{name}=None" for name in names]])
    space: dict[str, Any] = {}
    exec(f"def propose({parameters}): ...", space)
    found: Callable[..., None] = space["propose"]
    return found


def test_an_unknown_keyword_is_refused_by_name() -> None:
    propose = with_keywords(dummy_run=None, is_profile=None, tree_mask=None)
    assert "unknown parameters tree_mask" in signature_refusal(propose)


def test_a_propose_that_does_not_say_what_a_dummy_run_is_is_refused() -> None:
    assert "no parameters dummy_run, is_profile" in signature_refusal(with_keywords(mm_inputs=None))


def test_too_few_parameters_are_refused() -> None:
    def propose(self: Any, input_batch: Any) -> None: ...

    assert "only 1 parameters" in signature_refusal(propose)


# --- a refusal is loud ----------------------------------------------------------------------------


def test_a_refusal_ends_the_process_although_vllm_swallows_exceptions() -> None:
    refused = FakeVllm("0.34.0")
    assert refused.refusal() == (
        "VLLM_DSPARK_REMOTE_ENDPOINT is set, but the speculator cannot be replaced: "
        "vLLM 0.34.0: made for 0.31 to 0.33"
    )
    assert refused.chosen is refused.stock


def test_a_vllm_without_the_class_or_its_base_is_refused() -> None:
    for name, member in ((CLASS_MODULE, "DSparkSpeculator"), (BASE_MODULE, "BaseSpeculator")):
        vllm = FakeVllm()
        del vars(vllm.modules[name])[member]
        assert f"{name} has no {member}" in vllm.refusal()


def test_a_missing_module_is_refused_by_name() -> None:
    vllm = FakeVllm()
    del vllm.modules[CLASS_MODULE]
    assert f"No module named '{CLASS_MODULE}'" in vllm.refusal()


def test_a_class_that_is_no_speculator_is_refused() -> None:
    vllm = FakeVllm()
    vars(vllm.modules[CLASS_MODULE])["DSparkSpeculator"] = int
    assert "is no BaseSpeculator" in vllm.refusal()


def test_settings_that_cannot_be_used_are_refused_in_one_line() -> None:
    vllm = FakeVllm()

    def remote_class(stock: type) -> type:
        raise ValueError("VLLM_DSPARK_REMOTE_POLICY: what")

    vars(vllm.modules["dsparkctl.client.speculator"])["remote_class"] = remote_class
    reason = vllm.refusal()
    assert "VLLM_DSPARK_REMOTE_POLICY" in reason
    assert "\n" not in reason
