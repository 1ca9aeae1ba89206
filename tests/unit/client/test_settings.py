"""The settings as one value: what goes together, where the Markov digest comes from (R40, §6.2)."""

import hashlib
from pathlib import Path

import pytest

from dsparkctl.client import settings
from dsparkctl.client.environment import PREFIX, Policy, SettingsError
from dsparkctl.client.settings import Settings

ASKED = {
    PREFIX + "ENDPOINT": "tcp://10.202.28.1:18620?bind=10.202.28.2",
    PREFIX + "IDENTITY": "be2c" * 16,
}
CACHE = "VLLM_DSPARK_MARKOV_CACHE"


def read(**variables: str) -> Settings:
    given = {PREFIX + name: text for name, text in variables.items()}
    found = Settings.from_environment({**ASKED, **given})
    assert found is not None
    return found


def test_endpoint_and_identity_are_enough() -> None:
    found = read()
    assert str(found.endpoint) == ASKED[PREFIX + "ENDPOINT"]
    assert found.identity == bytes.fromhex("be2c" * 16)
    assert found.markov_identity == bytes(32)
    assert (found.policy, found.timeout_s) == (Policy.CAPACITY, 0.05)
    assert (found.depth_policy, found.has_depth_file) == (None, False)


def test_every_variable_reaches_its_own_field() -> None:
    found = read(
        TIMEOUT_MS="20",
        TRIP="4",
        COOLDOWN="5",
        ON_FAIL="raise",
        N_OUT="0",
        ASYNC="1",
        SWITCH_FILE="/run/off",
        RECORD="/var/record",
        RECORD_MB="3",
        RECORD_ROWS="1",
        SPIN_US="200",
        LOG_INTERVAL_S="7",
        METRICS_FILE="/var/metrics.prom",
        MARKOV_IDENTITY="0b" * 32,
    )
    assert (found.timeout_s, found.trip, found.cooldown) == (0.02, 4, 5)
    assert (found.on_fail, found.n_out_enabled, found.is_async) == ("raise", False, True)
    assert (found.switch_file, found.record) == (Path("/run/off"), Path("/var/record"))
    assert (found.record_bytes, found.record_rows, found.spin_s) == (3 << 20, True, 0.0002)
    assert (found.log_interval_s, found.metrics_file) == (7, Path("/var/metrics.prom"))
    assert found.markov_identity == b"\x0b" * 32
    shadow = read(POLICY="shadow", SHADOW_USE="remote")
    assert (shadow.policy, shadow.shadow_use) == ("shadow", "remote")


def test_without_an_endpoint_nothing_is_asked_for() -> None:
    assert Settings.from_environment({}) is None
    assert Settings.from_environment({PREFIX + "TRIP": "5", CACHE: "/no/such/file"}) is None


@pytest.mark.parametrize(
    ("name", "text"), [("TRIP", "x"), ("POLICY", ""), ("TIMEOUTMS", "50"), ("ASYNC", "yes")]
)
def test_without_an_endpoint_a_bad_or_unknown_variable_is_still_an_error(
    name: str, text: str
) -> None:
    """R40"""
    with pytest.raises(SettingsError, match=PREFIX + name):
        Settings.from_environment({PREFIX + name: text})


def test_an_endpoint_needs_an_identity() -> None:
    """§6.7"""
    with pytest.raises(SettingsError, match=rf"^{PREFIX}IDENTITY: not set, and needed"):
        Settings.from_environment({PREFIX + "ENDPOINT": ASKED[PREFIX + "ENDPOINT"]})


@pytest.mark.parametrize(
    ("variables", "needed"),
    [
        ({"SHADOW_USE": "remote"}, "POLICY=shadow, not capacity"),
        ({"SHADOW_USE": "remote", "POLICY": "resilience"}, "POLICY=shadow, not resilience"),
        ({"ON_FAIL": "raise", "POLICY": "resilience"}, "POLICY=capacity, not resilience"),
        ({"ON_FAIL": "raise", "POLICY": "shadow"}, "POLICY=capacity, not shadow"),
        ({"ASYNC": "1", "POLICY": "shadow"}, "POLICY=capacity, not shadow"),
        ({"METRICS_FILE": "/m.prom", "LOG_INTERVAL_S": "0"}, "LOG_INTERVAL_S above 0"),
    ],
)
def test_variables_that_contradict_each_other_are_an_error(
    variables: dict[str, str], needed: str
) -> None:
    """§10, §4.2: one of the two would silently do nothing."""
    with pytest.raises(SettingsError) as caught:
        read(**variables)
    assert f"needs {PREFIX}{needed}" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("policy", ["capacity", "resilience", "shadow"])
def test_a_default_spelt_out_contradicts_nothing(policy: str) -> None:
    found = read(POLICY=policy, ON_FAIL="fallback", SHADOW_USE="local", ASYNC="0", TRIP="0")
    assert found.policy == policy


def test_the_markov_digest_is_that_of_the_engines_cache_file(tmp_path: Path) -> None:
    """§6.2: sha256 of its bytes, however many reads it takes."""
    cache = tmp_path / "markov_top_tokens.json"
    data = bytes(range(256)) * 8192 + b"tail"
    cache.write_bytes(data)
    found = Settings.from_environment({**ASKED, CACHE: str(cache)})
    assert found is not None
    assert found.markov_identity == hashlib.sha256(data).digest()


@pytest.mark.parametrize("text", ["", "0b" * 32])
def test_a_markov_identity_that_is_set_wins_and_no_file_is_read(text: str) -> None:
    """R40"""
    env = {**ASKED, CACHE: "/no/such/file", PREFIX + "MARKOV_IDENTITY": text}
    found = Settings.from_environment(env)
    assert found is not None
    assert found.markov_identity == (bytes.fromhex(text) or bytes(32))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty; unset it"),
        ("/no/such/markov.json", "cannot be read: No such file"),
        ("/", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("/a\0b", "no path"),
    ],
)
def test_a_cache_that_is_named_and_cannot_be_read_is_an_error(text: str, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({**ASKED, CACHE: text})
    assert str(caught.value).startswith(f'{CACHE}="')
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_cache_beyond_the_bound_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "markov.json"
    cache.write_bytes(b"x" * 101)
    monkeypatch.setattr(settings, "MAX_MARKOV_BYTES", 100)
    with pytest.raises(SettingsError, match="larger than 100 bytes"):
        Settings.from_environment({**ASKED, CACHE: str(cache)})
    cache.write_bytes(b"x" * 100)
    assert Settings.from_environment({**ASKED, CACHE: str(cache)}) is not None


def test_the_engines_depth_variables_are_kept_as_they_stand() -> None:
    """§6.3: a depth file counts as soon as it is named, with whatever."""
    env = {**ASKED, "VLLM_DSPARK_DEPTH_POLICY": "conf:0.6", "VLLM_DSPARK_DEPTH_FILE": ""}
    found = Settings.from_environment(env)
    assert found is not None
    assert (found.depth_policy, found.has_depth_file) == ("conf:0.6", True)
