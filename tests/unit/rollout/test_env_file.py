"""The client's variables (§10, R40): everybody reads the same, and rank 0 takes them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dsparkctl.client.environment import PREFIX, TABLE, SettingsError, read_environment
from dsparkctl.client.settings import Settings
from dsparkctl.config.fleet import Fleet
from dsparkctl.config.policy import PolicySettings
from dsparkctl.rollout import env_file
from dsparkctl.rollout.render import RenderError

IDENTITY = "ab" * 32


def fleet(**policy: Any) -> Fleet:
    return Fleet.model_validate(
        {
            "version": 1,
            "hosts": {"x86host": {}, "a": {}, "b": {}},
            "links": ({"host": "a", "bind": "10.202.28.2", "peer": "10.202.28.1"},),
            "worker": {"host": "x86host", "checkpoint": "/c", "receipt": "/c/R",
                       "listen": "tcp://10.202.28.1:18620"},
            "engine": {"kind": "venv", "ranks": ("a", "b"), "python": "/opt/vllm/bin/python"},
            "policy": policy,
        },
        context={"folder": Path("/")},
    )  # fmt: skip


policies = st.fixed_dictionaries(
    {},
    optional={
        "policy": st.sampled_from(["capacity", "resilience", "shadow"]),
        "timeout_ms": st.floats(0.001, 10_000).map(lambda x: round(x, 6)),
        "trip": st.integers(0, 1_000_000),
        "cooldown": st.integers(1, 1_000_000),
        "n_out": st.booleans(),
        "asynchronous": st.booleans(),
        "on_fail": st.sampled_from(["fallback", "raise"]),
        "shadow_use": st.sampled_from(["local", "remote"]),
        "record": st.just("/var/lib/dspark/flight"),
        "record_mb": st.integers(1, 1 << 20),
        "record_rows": st.booleans(),
        "log_interval_s": st.just(0.0) | st.floats(0, 86_400).map(lambda x: round(x, 6)),
        "metrics_file": st.just("/var/lib/node/dspark.prom"),
    },
)


def accepted(policy: dict[str, Any]) -> Fleet | None:
    try:
        return fleet(**policy)
    except ValidationError:
        return None


@given(policies)
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_everything_that_is_written_is_what_rank_0_reads(policy: dict[str, Any]) -> None:
    wanted = accepted(policy) or reject()
    values = env_file.variables(wanted, IDENTITY, "cd" * 32)
    read = read_environment(values)
    assert str(read["ENDPOINT"]) == "tcp://10.202.28.1:18620?bind=10.202.28.2"
    assert read["IDENTITY"].hex() == IDENTITY
    assert read["TIMEOUT_MS"] == pytest.approx(wanted.policy.timeout_ms, abs=1e-9)
    assert (read["ASYNC"], read["N_OUT"]) == (wanted.policy.asynchronous, wanted.policy.n_out)
    assert env_file.read(env_file.write(values).decode()) == values


@given(policies)
def test_a_policy_is_refused_here_exactly_if_the_client_would_refuse_it(
    policy: dict[str, Any],
) -> None:
    """Found by reading: a contradiction in dspark.yaml would have kept the engine from starting."""
    given = fleet()
    given = given.model_copy(update={"policy": PolicySettings.model_construct(
        **PolicySettings().model_dump() | policy)})  # fmt: skip
    try:
        Settings.from_environment(env_file.variables(given, IDENTITY, "cd" * 32))
    except SettingsError:
        assert accepted(policy) is None
    else:
        assert accepted(policy) is not None


def test_the_policy_section_has_the_clients_variables_and_defaults() -> None:
    """R40: one table; this section must not drift from it."""
    table = {variable.name: variable for variable in TABLE}
    named = {env_file.variable_of(key): key for key in PolicySettings.model_fields}
    derived = {"ENDPOINT", "IDENTITY", "MARKOV_IDENTITY"}
    assert set(named) | derived == set(table)
    defaults = PolicySettings()
    for name, key in named.items():
        if key not in ("switch_file", "metrics_file"):
            assert getattr(defaults, key) == table[name].default, key
    assert env_file.PREFIX == PREFIX


def test_a_shell_systemd_and_docker_read_one_file_alike(tmp_path: Path) -> None:
    """docker --env-file takes a value as it stands; a shell must come to the same."""
    values = env_file.variables(fleet(), IDENTITY, None)
    path = tmp_path / "client.env"
    path.write_bytes(env_file.write(values))
    script = f"set -a; . {path}; env"
    told = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={})
    found = dict(line.split("=", 1) for line in told.stdout.splitlines())
    assert {name: found[name] for name in values} == values
    plain = dict(
        line.split("=", 1) for line in path.read_text().splitlines() if not line.startswith("#")
    )
    assert plain == values


def test_a_fleet_that_does_not_say_where_to_dial_is_refused() -> None:
    without = fleet().model_copy(update={"links": ()})
    with pytest.raises(RenderError, match="expected a link whose host is rank 0's"):
        env_file.variables(without, IDENTITY, None)


@pytest.mark.parametrize("path", ["/run/a b", "/run/$HOME", "/run/'x'", "/run/\\x"])
def test_a_value_that_readers_would_read_differently_is_refused(path: str) -> None:
    with pytest.raises(RenderError, match="expected no blank, quote or dollar"):
        env_file.variables(fleet(switch_file=path), IDENTITY, None)
