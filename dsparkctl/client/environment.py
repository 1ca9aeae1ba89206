"""Every `VLLM_DSPARK_REMOTE_*` variable (§10, R40): its name, its default, and how its text reads.

Decides what each variable may hold, one by one. Refuses to know how they go together, and reads no
file. An empty string is an error wherever it has no meaning of its own: a variable that a script
left blank must never turn into a value that nobody chose.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from dsparkctl.contract.endpoint import Endpoint, EndpointError, parse_endpoint
from dsparkctl.contract.identity import NO_MARKOV
from dsparkctl.contract.receipt import parse_digest
from dsparkctl.net.dial import require_usable
from dsparkctl.net.transport import NotInThisBuild

PREFIX: Final = "VLLM_DSPARK_REMOTE_"

_INTEGER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


class SettingsError(Exception):
    """A variable that cannot be used; the message is one line and names it."""


class Policy(StrEnum):
    """What a failed round means to the engine (§10)."""

    CAPACITY = "capacity"
    RESILIENCE = "resilience"
    SHADOW = "shadow"


class OnFail(StrEnum):
    """A failed round under `capacity`: drafts of zeros, or the end of the engine (§10)."""

    FALLBACK = "fallback"
    RAISE = "raise"


class ShadowUse(StrEnum):
    """Whose drafts the engine takes under `shadow` (§10)."""

    LOCAL = "local"
    REMOTE = "remote"


Reader = Callable[[str], Any]
"""The value that a variable's text means; ValueError says what was expected instead."""


class Variable(NamedTuple):
    """One row of the table."""

    name: str
    """Without the prefix."""
    default: Any
    """The value when the variable is not set."""
    read: Reader
    meaning: str


def _integer(least: int, most: int) -> Reader:
    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise ValueError(f"expected a whole number from {least} to {most}")
        return int(text)

    return read


def _number(most: float, *, zero_too: bool) -> Reader:
    """A decimal number, written out: nan, inf and exponents are no way to say how long."""

    def read(text: str) -> float:
        value = float(text) if _NUMBER.fullmatch(text) else -1.0
        if not 0 <= value <= most or (value == 0 and not zero_too):
            lower = "from 0" if zero_too else "above 0 and"
            raise ValueError(f"expected a number {lower} up to {most:g}")
        return value

    return read


def _one_of(kind: type[StrEnum]) -> Reader:
    def read(text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"expected one of {', '.join(kind)}") from None

    return read


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


def _path(text: str) -> Path:
    """Absolute: who starts the engine does not choose the folder its processes run in."""
    path = Path(text)
    if not path.is_absolute() or not path.name or "\0" in text:
        raise ValueError("expected an absolute path that ends in a name")
    return path


def _identity(text: str) -> bytes:
    try:
        return bytes.fromhex(parse_digest(text))
    except ValueError:
        raise ValueError("expected 64 hex digits") from None


def _markov_identity(text: str) -> bytes:
    return _identity(text) if text else NO_MARKOV


def _endpoint(text: str) -> Endpoint:
    """An endpoint that this host can dial."""
    try:
        endpoint = parse_endpoint(text)
        require_usable(endpoint)
    except EndpointError as error:
        raise ValueError(str(error).partition(", got ")[0]) from None
    except NotInThisBuild as error:
        reason = str(error).partition(": ")[2]
        raise ValueError(f"expected a transport of this host; {reason}") from None
    if endpoint.is_wildcard or not endpoint.port:
        raise ValueError("expected the host and the port of a worker")
    return endpoint


TABLE: Final = (
    Variable("ENDPOINT", None, _endpoint, "the worker: tcp://HOST:PORT?bind=ADDR; unset: no hook"),
    Variable("IDENTITY", None, _identity, "drafter_identity (§6.7), 64 hex digits; needed"),
    Variable(
        "MARKOV_IDENTITY",
        None,
        _markov_identity,
        "digest of the Markov cache, zeros or empty: none; unset: of VLLM_DSPARK_MARKOV_CACHE",
    ),
    Variable("POLICY", Policy.CAPACITY, _one_of(Policy), "what a failed round means (§10)"),
    Variable("TIMEOUT_MS", 50.0, _number(10_000, zero_too=False), "deadline of a round (§10)"),
    Variable("TRIP", 3, _integer(0, 1_000_000), "failures that open the breaker; 0: off (§10)"),
    Variable("COOLDOWN", 256, _integer(1, 1_000_000), "engine rounds it then stays open (§10)"),
    Variable("ON_FAIL", OnFail.FALLBACK, _one_of(OnFail), "raise ends the engine; benchmarks"),
    Variable("SHADOW_USE", ShadowUse.LOCAL, _one_of(ShadowUse), "whose drafts shadow uses (§10)"),
    Variable("N_OUT", True, _switch, "0: always ask for all N positions (§6.3)"),
    Variable("ASYNC", False, _switch, "1: the engine's thread does not wait for replies (§4.2)"),
    Variable("SPIN_US", 0, _integer(0, 1_000_000), "look so long for a reply before sleeping"),
    Variable("SWITCH_FILE", None, _path, "while this file exists nothing is sent"),
    Variable("RECORD", None, _path, "folder of the flight recorder; unset: nothing is recorded"),
    Variable("RECORD_MB", 64, _integer(1, 1 << 20), "bound of its ring, in MiB"),
    Variable("RECORD_ROWS", False, _switch, "1: with tap rows, so that it can be replayed"),
    Variable("LOG_INTERVAL_S", 60.0, _number(86_400, zero_too=True), "of the counters; 0: never"),
    Variable("METRICS_FILE", None, _path, "Prometheus text file, rewritten every log interval"),
)


def read_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """Every variable of the table by its bare name, defaults filled in; SettingsError if one is
    unknown or holds what it may not."""
    _refuse_unknown(env)
    return {variable.name: _value(variable, env) for variable in TABLE}


def shown(text: str) -> str:
    """A value as an error shows it: quoted, printable, short."""
    plain = ascii(text)[1:-1]
    return f'"{plain}"' if len(plain) <= 80 else f'"{plain[:76]}..."'


def _value(variable: Variable, env: Mapping[str, str]) -> Any:
    name = PREFIX + variable.name
    text = env.get(name)
    if text is None:
        return variable.default
    try:
        return variable.read(text)
    except ValueError as error:
        hint = "" if text else "; unset it for the default"
        raise SettingsError(f"{name}={shown(text)}: {error}{hint}") from None


def _refuse_unknown(env: Mapping[str, str]) -> None:
    known = [variable.name for variable in TABLE]
    for name in sorted(env):
        bare = name.removeprefix(PREFIX)
        if bare != name and bare not in known:
            nearest = difflib.get_close_matches(bare, known, n=1, cutoff=0.0)[0]
            raise SettingsError(
                f"{shown(name)[1:-1]}: no such variable; did you mean {PREFIX}{nearest}?"
            )
