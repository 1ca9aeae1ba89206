"""What the environment asks of the client, read once into one frozen value (§10, R40).

Decides which variables may stand together and where the Markov digest comes from. How each one
reads is `environment`'s. Opens no file but the Markov cache.

Two variables that contradict each other are an error, since one of them would silently do nothing:
- `SHADOW_USE=remote` and `ASYNC=1` mean something under one policy only (§10, §4.2);
- `ON_FAIL=raise` would take from resilience and shadow what they are chosen for;
- a metrics file that no interval ever writes, rows of a recording that nobody makes.
A default that is spelt out contradicts nothing. `TRIP=0` beside a cooldown is how §10 turns the
breaker off for a while, so it is allowed.
"""

import hashlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dsparkctl.client.environment import (
    PREFIX,
    OnFail,
    Policy,
    SettingsError,
    ShadowUse,
    read_environment,
    shown,
)
from dsparkctl.contract.endpoint import Endpoint
from dsparkctl.contract.identity import NO_MARKOV

MARKOV_CACHE: Final = "VLLM_DSPARK_MARKOV_CACHE"
DEPTH_POLICY: Final = "VLLM_DSPARK_DEPTH_POLICY"
DEPTH_FILE: Final = "VLLM_DSPARK_DEPTH_FILE"
"""The engine's own variables (§2, §6.3); what they may hold is not ours to say."""

MAX_MARKOV_BYTES: Final = 4 << 30
"""Far above any cache of top tokens; a device or a wrong path must not be read for ever."""

_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """All that the client is told from outside; the engine's own config tells the rest (terms)."""

    endpoint: Endpoint
    identity: bytes
    """32 bytes: drafter_identity (§6.7)."""
    markov_identity: bytes
    """32 bytes, zeros when there is no Markov cache (§6.2)."""
    policy: Policy
    timeout_s: float
    trip: int
    cooldown: int
    on_fail: OnFail
    shadow_use: ShadowUse
    n_out_enabled: bool
    is_async: bool
    spin_s: float
    """0: an exchange sleeps until its reply is there."""
    switch_file: Path | None
    record: Path | None
    record_bytes: int
    record_rows: bool
    log_interval_s: float
    """0: never."""
    metrics_file: Path | None
    depth_policy: str | None
    """`VLLM_DSPARK_DEPTH_POLICY` as it stands (§6.3)."""
    has_depth_file: bool
    """`VLLM_DSPARK_DEPTH_FILE` is set, to whatever: the mode could change at run time (§6.3)."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> "Settings | None":
        """None when no endpoint is set: remote drafting is not asked for.

        SettingsError otherwise names the variable at fault, in one line. Faulty variables are
        errors without an endpoint too: they show that somebody meant to ask for it.
        """
        values = read_environment(env)
        _refuse_contradictions(values)
        if values["ENDPOINT"] is None:
            return None
        if values["IDENTITY"] is None:
            raise SettingsError(
                f"{PREFIX}IDENTITY: not set, and needed with {PREFIX}ENDPOINT; "
                "`dsparkctl identity receipt` computes it"
            )
        markov = values["MARKOV_IDENTITY"]
        return cls(
            endpoint=values["ENDPOINT"],
            identity=values["IDENTITY"],
            markov_identity=_cache_identity(env.get(MARKOV_CACHE)) if markov is None else markov,
            policy=values["POLICY"],
            timeout_s=values["TIMEOUT_MS"] / 1e3,
            trip=values["TRIP"],
            cooldown=values["COOLDOWN"],
            on_fail=values["ON_FAIL"],
            shadow_use=values["SHADOW_USE"],
            n_out_enabled=values["N_OUT"],
            is_async=values["ASYNC"],
            spin_s=values["SPIN_US"] / 1e6,
            switch_file=values["SWITCH_FILE"],
            record=values["RECORD"],
            record_bytes=values["RECORD_MB"] << 20,
            record_rows=values["RECORD_ROWS"],
            log_interval_s=values["LOG_INTERVAL_S"],
            metrics_file=values["METRICS_FILE"],
            depth_policy=env.get(DEPTH_POLICY),
            has_depth_file=DEPTH_FILE in env,
        )


def _refuse_contradictions(values: Mapping[str, Any]) -> None:
    policy = values["POLICY"]
    if values["SHADOW_USE"] is ShadowUse.REMOTE and policy is not Policy.SHADOW:
        raise _contradiction("SHADOW_USE=remote", f"POLICY=shadow, not {policy}")
    if values["ON_FAIL"] is OnFail.RAISE and policy is not Policy.CAPACITY:
        raise _contradiction("ON_FAIL=raise", f"POLICY=capacity, not {policy}")
    if values["ASYNC"] and policy is not Policy.CAPACITY:
        raise _contradiction("ASYNC=1", f"POLICY=capacity, not {policy}")
    if values["RECORD_ROWS"] and values["RECORD"] is None:
        raise _contradiction("RECORD_ROWS=1", "RECORD, a folder")
    if values["METRICS_FILE"] is not None and not values["LOG_INTERVAL_S"]:
        raise _contradiction("METRICS_FILE", "LOG_INTERVAL_S above 0: it is written as often")


def _contradiction(setting: str, needed: str) -> SettingsError:
    return SettingsError(f"{PREFIX}{setting}: needs {PREFIX}{needed}")


def _cache_identity(text: str | None) -> bytes:
    """The digest of the file that the engine's own variable names, as the worker has it (§6.2)."""
    if text is None:
        return NO_MARKOV
    where = f"{MARKOV_CACHE}={shown(text)}"
    if not text:
        raise SettingsError(f"{where}: empty; unset it when there is no Markov cache")
    path = Path(text)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SettingsError(f"{where}: not a regular file")
        return _sha256(path, where)
    except OSError as error:
        raise SettingsError(f"{where}: cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL
        raise SettingsError(f"{where}: no path") from None


def _sha256(path: Path, where: str) -> bytes:
    digest, n_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            n_bytes += len(chunk)
            if n_bytes > MAX_MARKOV_BYTES:
                raise SettingsError(f"{where}: larger than {MAX_MARKOV_BYTES} bytes")
            digest.update(chunk)
    return digest.digest()
