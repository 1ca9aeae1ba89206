"""The table of `VLLM_DSPARK_REMOTE_*` (§10, R40): what each variable may hold."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.client.environment import (
    PREFIX,
    TABLE,
    OnFail,
    Policy,
    SettingsError,
    ShadowUse,
    read_environment,
)
from dsparkctl.contract.endpoint import Endpoint

NAMES = [variable.name for variable in TABLE]

GOOD: dict[str, tuple[str, Any]] = {
    "ENDPOINT": ("tcp://10.202.28.1:18620?bind=10.202.28.2", None),
    "IDENTITY": ("AB" * 32, b"\xab" * 32),
    "MARKOV_IDENTITY": ("0b" * 32, b"\x0b" * 32),
    "POLICY": ("resilience", Policy.RESILIENCE),
    "TIMEOUT_MS": ("12.5", 12.5),
    "TRIP": ("0", 0),
    "COOLDOWN": ("1", 1),
    "ON_FAIL": ("raise", OnFail.RAISE),
    "SHADOW_USE": ("remote", ShadowUse.REMOTE),
    "N_OUT": ("0", False),
    "ASYNC": ("1", True),
    "SPIN_US": ("200", 200),
    "RECORD_MB": ("3", 3),
    "RECORD_ROWS": ("1", True),
    "SWITCH_FILE": ("/run/dspark/off", Path("/run/dspark/off")),
    "RECORD": ("/var/log/dspark", Path("/var/log/dspark")),
    "LOG_INTERVAL_S": ("0", 0.0),
    "METRICS_FILE": ("/var/lib/node/dspark.prom", Path("/var/lib/node/dspark.prom")),
}

BAD = {
    "ENDPOINT": [
        "10.202.28.1:18620",
        "tcp://10.202.28.1",
        "tcp://:18620",
        "tcp://0.0.0.0:18620",
        "tcp://[::]:18620",
        "tcp://10.202.28.1:0",
        "tcp://10.202.28.1:18620?bind=spark-a",
        "o1rdma://10.202.28.1:18620",
    ],
    "IDENTITY": ["ab", "ab" * 33, "zz" * 32, " " + "ab" * 32, "0x" + "ab" * 31],
    "MARKOV_IDENTITY": ["0", "none", "0" * 63, " "],
    "POLICY": ["Capacity", "shadow ", "off"],
    "TIMEOUT_MS": ["0", "-1", "nan", "inf", "1e3", "10001", "50ms", " 50", "0.0", "٥٠"],
    "TRIP": ["-1", "3.0", "0x3", "1_0", "1000001", "+3", "٣"],
    "COOLDOWN": ["0", "-1", "many", "9999999999999"],
    "ON_FAIL": ["Raise", "1"],
    "SHADOW_USE": ["both"],
    "N_OUT": ["true", "2", "yes", "00"],
    "ASYNC": ["true", "on", "-0"],
    "SPIN_US": ["-1", "0.5", "1000001"],
    "RECORD_MB": ["0", "-1", "many"],
    "RECORD_ROWS": ["yes", "2"],
    "SWITCH_FILE": ["off", "./off", "/a\0b", "/"],
    "RECORD": ["record"],
    "LOG_INTERVAL_S": ["-1", "nan", "86401"],
    "METRICS_FILE": ["metrics.prom", "/"],
}


def test_the_table_names_each_variable_of_the_contract_once() -> None:
    """§4.2, §6.3, §6.7, §10, R40."""
    assert len(set(NAMES)) == len(NAMES) == 18
    assert set(NAMES) == set(GOOD) == set(BAD)


def test_unset_variables_have_the_defaults_of_section_10() -> None:
    values = read_environment({})
    assert list(values) == NAMES
    assert values["ENDPOINT"] is values["IDENTITY"] is values["MARKOV_IDENTITY"] is None
    assert (values["POLICY"], values["TIMEOUT_MS"]) == (Policy.CAPACITY, 50)
    assert (values["TRIP"], values["COOLDOWN"]) == (3, 256)
    assert (values["ON_FAIL"], values["SHADOW_USE"]) == (OnFail.FALLBACK, ShadowUse.LOCAL)
    assert (values["N_OUT"], values["ASYNC"]) == (True, False)
    assert values["SWITCH_FILE"] is values["RECORD"] is values["METRICS_FILE"] is None
    assert (values["LOG_INTERVAL_S"], values["SPIN_US"]) == (60, 0)
    assert (values["RECORD_MB"], values["RECORD_ROWS"]) == (64, False)


@pytest.mark.parametrize("name", NAMES)
def test_each_variable_reads_as_what_it_means(name: str) -> None:
    text, expected = GOOD[name]
    if name == "ENDPOINT":
        expected = Endpoint("tcp", "10.202.28.1", 18620, "10.202.28.2")
    value = read_environment({PREFIX + name: text})[name]
    assert value == expected
    assert type(value) is type(expected) or isinstance(expected, Path)


@pytest.mark.parametrize(("name", "text"), [(n, text) for n in BAD for text in BAD[n]])
def test_a_bad_value_is_one_line_that_names_variable_value_and_what_is_allowed(
    name: str, text: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read_environment({PREFIX + name: text})
    message = str(caught.value)
    assert message.startswith(f'{PREFIX}{name}="')
    assert ascii(text)[1:-1][:40] in message
    assert ": expected " in message
    assert message.isprintable()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "MARKOV_IDENTITY"])
def test_an_empty_string_is_never_a_value(name: str) -> None:
    """R40: a variable that a script left blank."""
    with pytest.raises(SettingsError, match=f'^{PREFIX}{name}="": expected .*unset it'):
        read_environment({PREFIX + name: ""})


@pytest.mark.parametrize("text", ["", "0" * 64])
def test_an_empty_markov_identity_says_that_there_is_no_cache(text: str) -> None:
    """R40"""
    assert read_environment({PREFIX + "MARKOV_IDENTITY": text})["MARKOV_IDENTITY"] == bytes(32)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("TIMEOUT", "TIMEOUT_MS"),
        ("ENDPONIT", "ENDPOINT"),
        ("COOL_DOWN", "COOLDOWN"),
        ("MARKOV_ID", "MARKOV_IDENTITY"),
        ("ONFAIL", "ON_FAIL"),
        ("LOG_INTERVAL_MS", "LOG_INTERVAL_S"),
        ("ENDPOİNT", "ENDPOINT"),
    ],
)
def test_an_unknown_variable_is_an_error_that_names_the_nearest(typed: str, meant: str) -> None:
    """R40"""
    with pytest.raises(SettingsError) as caught:
        read_environment({PREFIX + typed: "50"})
    assert str(caught.value).endswith(f"no such variable; did you mean {PREFIX}{meant}?")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["", "???", "\n"])
def test_a_variable_that_resembles_none_is_still_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="no such variable"):
        read_environment({PREFIX + name: "1"})


def test_variables_of_others_are_none_of_our_business() -> None:
    env = {"VLLM_DSPARK_REMOTELY": "", "VLLM_DSPARK_LOCAL_ARGMAX": "1", "PATH": "/bin"}
    assert read_environment(env) == read_environment({})


@given(st.sampled_from(NAMES), st.text(max_size=100))
def test_any_text_reads_or_is_refused_in_one_printable_line(name: str, text: str) -> None:
    message = ""
    try:
        read_environment({PREFIX + name: text})
    except SettingsError as error:
        message = str(error)
    assert message.isprintable()
    assert not message or PREFIX + name in message
