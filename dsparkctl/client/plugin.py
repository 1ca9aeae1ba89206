"""vLLM's way in: an entry point of `vllm.general_plugins` that puts our speculator for its own.

Decides whether this vLLM is one the speculator was read against, and what happens when it is not.
vLLM imports the speculator's class by name at the moment it is needed, so replacing the name in its
module is enough, whatever was imported before (vLLM has no registry for speculators).

Without VLLM_DSPARK_REMOTE_ENDPOINT nothing is done and nothing is imported, but a variable beside
it that is misspelt or wrong shows that somebody meant to ask. With it, whatever is wrong ends the
process: an engine that silently ran its own drafter would look like one that runs ours. It ends by
SystemExit, which nothing on vLLM's way takes for a plugin's harmless failure.
This module imports neither vllm nor torch: one that cannot be imported is logged and forgotten.
"""

import inspect
import logging
import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from dsparkctl.client.environment import PREFIX, SettingsError, read_environment

log = logging.getLogger(__name__)

ENDPOINT: Final = f"{PREFIX}ENDPOINT"
CLASS_NAME: Final = "DSparkSpeculator"
BASE_NAME: Final = "BaseSpeculator"
CLASS_MODULE: Final = "vllm.v1.worker.gpu.spec_decode.dspark.speculator"
BASE_MODULE: Final = "vllm.v1.worker.gpu.spec_decode.speculator"
MARK: Final = "is_dspark_remote"
"""What tells our class from vLLM's: an attribute of the class."""

FIRST, LAST = (0, 31), (0, 33)
"""The minor versions that were read and tried, both included."""

POSITIONAL: Final = (
    "input_batch",
    "attn_metadata",
    "slot_mappings",
    "last_hidden_states",
    "aux_hidden_states",
    "num_sampled",
    "num_rejected",
    "last_sampled",
    "next_prefill_tokens",
    "temperature",
    "seeds",
)
"""How `BaseSpeculator.propose` is called, in this order, by every version above."""

KEYWORDS: Final = frozenset(
    {
        "dp_sync",  # 0.31
        "dp_sync_state",
        "dummy_run",
        "skip_attn_for_dummy_run",
        "mm_inputs",
        "is_profile",
        "num_speculative_tokens",  # from 0.32 on
    }
)
"""What else `propose` may be given. A name that is not here has a meaning nobody has read."""

REQUIRED_KEYWORDS: Final = frozenset({"dummy_run", "is_profile"})

_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\D|$)", re.ASCII)


class HookRefused(Exception):  # noqa: N818 -- what happened
    """This vLLM is not one that the hook was made for; the message is one line."""


def register(
    env: Mapping[str, str] = os.environ,
    load: Callable[[str], ModuleType] = import_module,
) -> None:
    """Called by vLLM in every process of an engine, in some of them more than once.

    SystemExit, in one line, where remote drafting is asked for and cannot be had.
    """
    try:
        if read_environment(env)["ENDPOINT"] is not None:
            _hook(load)
    except SettingsError as error:
        log.critical("%s", error)
        raise SystemExit(str(error)) from error
    except Exception as error:
        reason = (
            str(error) if isinstance(error, HookRefused) else f"{type(error).__name__}: {error}"
        )
        line = f"{ENDPOINT} is set, but the speculator cannot be replaced: {reason}"
        log.critical("%s", line)
        raise SystemExit(line) from error


def version_refusal(version: str) -> str:
    """Why a vLLM of this version is not hooked into; empty when it is.

    A build of a development version counts as the version it was cut from, as the live image's
    `0.31.1.dev0+g6e517b15.dsv41gb10` does.
    """
    found = _VERSION.match(version)
    if found is None:
        return f"vLLM's version cannot be read: {version[:80]!a}"
    if FIRST <= (int(found[1]), int(found[2])) <= LAST:
        return ""
    lowest, highest = (".".join(map(str, pair)) for pair in (FIRST, LAST))
    return f"vLLM {version[:80]}: made for {lowest} to {highest}"


def signature_refusal(propose: Callable[..., Any]) -> str:
    """Why a `propose` with this signature is not stood in for; empty when it is."""
    names = list(inspect.signature(propose).parameters)[1:]
    given, rest = tuple(names[: len(POSITIONAL)]), names[len(POSITIONAL) :]
    if given != POSITIONAL:
        wrong = [n for n, known in zip(given, POSITIONAL, strict=False) if n != known]
        what = f"unexpected parameter {wrong[0]}" if wrong else f"only {len(given)} parameters"
        return f"{BASE_NAME}.propose: {what}"
    if unknown := sorted(set(rest) - KEYWORDS):
        return f"{BASE_NAME}.propose: unknown parameters {', '.join(unknown)}"
    if missing := sorted(REQUIRED_KEYWORDS - set(rest)):
        return f"{BASE_NAME}.propose: no parameters {', '.join(missing)}"
    return ""


def _hook(load: Callable[[str], ModuleType]) -> None:
    if reason := version_refusal(str(getattr(load("vllm"), "__version__", ""))):
        raise HookRefused(reason)
    base = _member(load(BASE_MODULE), BASE_NAME)
    if reason := signature_refusal(_member(base, "propose")):
        raise HookRefused(reason)
    names: MutableMapping[str, Any] = vars(load(CLASS_MODULE))
    stock = _member(load(CLASS_MODULE), CLASS_NAME)
    if getattr(stock, MARK, False):
        return
    if not issubclass(stock, base):
        raise HookRefused(f"{CLASS_NAME} is no {BASE_NAME}")
    names[CLASS_NAME] = load("dsparkctl.client.speculator").remote_class(stock)
    log.info("%s drafts remotely", CLASS_NAME)


def _member(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise HookRefused(f"{owner.__name__} has no {name}") from None
