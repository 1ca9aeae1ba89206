"""`dspark.yaml`: every fault names file, line, key and what was expected."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.config.engine import EngineSettings
from dsparkctl.config.errors import ConfigError, ReadError
from dsparkctl.config.fleet import Fleet
from dsparkctl.config.hosts import HostSettings, LinkSettings
from dsparkctl.config.policy import PolicySettings, ReleaseSettings
from dsparkctl.config.source import MAX_CONFIG_BYTES, load_fleet, parse_fleet
from dsparkctl.config.template import template
from dsparkctl.config.worker import WorkerSection, WorkerSettings
from dsparkctl.contract.endpoint import Endpoint

PATH = Path("/etc/dspark/dspark.yaml")
HEAD = "version: 1\nworker:\n  checkpoint: ckpt\n  receipt: done\n"


def load(text: str) -> Fleet:
    return parse_fleet(text.encode(), PATH)


def problems(text: str | bytes) -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(ConfigError) as caught:
        parse_fleet(data, PATH)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems)
    return [line.removeprefix("/etc/dspark/dspark.yaml:") for line in lines]


def test_the_least_configuration_has_the_issues_defaults() -> None:
    worker = load(HEAD).worker
    assert worker.checkpoint == Path("/etc/dspark/ckpt")
    assert worker.receipt == Path("/etc/dspark/done")
    assert (worker.max_slots, worker.max_rows_per_step, worker.max_model_len) == (4, None, 327680)
    assert worker.listen == Endpoint("tcp", "127.0.0.1", 18620)
    assert worker.admin == (Endpoint("tcp", "127.0.0.1", 18630),)
    assert (worker.kv_quant, worker.drafter, worker.device) == ("auto", "torch", "cpu")
    assert not worker.allow_any_address


ROLLOUT = "# --- For `deploy`"


def test_the_rollouts_part_of_the_template_is_valid_and_states_every_key_and_default() -> None:
    head, _, rest = template().decode().partition(ROLLOUT)
    lines = [line.removeprefix("#").removeprefix(" ") for line in rest.splitlines()[1:]]
    fleet = parse_fleet((head + "\n" + "\n".join(lines)).encode(), PATH)
    assert fleet.engine is not None
    keys = {line.strip("- ").partition(":")[0] for line in lines}
    for section in (HostSettings, LinkSettings, EngineSettings, PolicySettings, ReleaseSettings):
        assert set(section.model_fields) <= keys, section
    assert fleet.policy == PolicySettings()
    assert fleet.release == ReleaseSettings()
    assert fleet.hosts["spark-a"] == HostSettings()
    own = {"kind", "ranks", "python", "unit", "rendezvous_port"}
    asked = {"kind": "systemd", "ranks": ("a", "b"), "python": "/p", "unit": "u.service"}
    plain = EngineSettings.model_validate(asked)
    assert fleet.engine.model_dump(exclude=own) == plain.model_dump(exclude=own)


def test_the_template_is_valid_and_states_every_key_and_its_default() -> None:
    """What a person uncomments must be what was there already."""
    text = template().decode().partition(ROLLOUT)[0]
    assert parse_fleet(template(), PATH).worker.max_slots == 4
    lines = [line.replace("  # ", "  ", 1) for line in text.splitlines()]
    keys = [line.partition(":")[0].strip() for line in lines]
    assert set(WorkerSettings.model_fields) <= set(keys)
    own = {"checkpoint", "receipt", "markov"}
    defaults = [
        line
        for line, key in zip(lines, keys, strict=True)
        if line.startswith("    - ") or (key in WorkerSettings.model_fields and key not in own)
    ]
    assert load(HEAD + "\n".join(defaults)) == load(HEAD)


FAULTS = [
    ("max_slots: many", 'worker.max_slots: expected an integer between 1 and 32, got "many"'),
    ("max_slots: 0", "worker.max_slots: expected an integer between 1 and 32, got 0"),
    ("max_slots: 4.0", "worker.max_slots: expected an integer between 1 and 32, got 4.0"),
    ("max_slots: true", "worker.max_slots: expected an integer between 1 and 32, got true"),
    ("max_slots:", "worker.max_slots: expected an integer between 1 and 32, got nothing"),
    ("log_json: 'yes'", 'worker.log_json: expected true or false, got "yes"'),
    ("dtype: fp8", 'worker.dtype: expected one of float32, bfloat16, got "fp8"'),
    ("device: gpu", 'worker.device: expected cpu or cuda:N, got "gpu"'),
    ("markov: 7", "worker.markov: expected a path, got 7"),
    ("metrics: 9100", "worker.metrics: expected ADDR:PORT, got 9100"),
    ("metrics: o1tcp://a:1", "worker.metrics: expected"),
    ("metrics: 0.0.0.0:9100", "worker.metrics: expected one address, or allow_any_address"),
    ("markov: [a]", "worker.markov: expected a path, got a list"),
    ("slots: 4", "worker.slots: unknown key; did you mean max_slots?"),
    ("qqq: 4", "worker.qqq: unknown key"),
    ("admin: tcp://h:1", 'worker.admin: expected a list of at most 16, got "tcp://h:1"'),
    ("listen: udp://h:1", 'worker.listen: expected one of tcp, o1tcp, o1rdma before ://, got "udp'),
    ("listen: 18620", "worker.listen: expected tcp://ADDR:PORT or o1tcp://ADDR:PORT, got 18620"),
    ("listen: 'o1rdma://[::]:1'", "worker.listen: expected the address of an RDMA device"),
    ("admin: ['o1tcp://h:1']", "worker.admin[0]: expected tcp://ADDR:PORT, which is how a worker"),
    ("listen: tcp://h:1?bind=::1", "worker.listen: expected tcp://ADDR:PORT"),
    ("listen: tcp://0.0.0.0:1", "worker.listen: expected one address, or allow_any_address: true"),
    ("admin: ['tcp://[::]:1']", "worker.admin: expected one address, or allow_any_address: true"),
    ("admin: ['tcp://127.0.0.1:18620']", "worker.admin: expected another endpoint than listen's"),
    ("checkpoint: other", "worker.checkpoint: stands twice, first in line 3"),
    ("? [a]\n  : b", "worker: expected a plain word for a key"),
    ("max_slots: 2020-13-45", "worker.max_slots: not YAML: '2020-13-45' is no timestamp"),
    ("max_slots: !!python/name:os.x", "worker.max_slots: not YAML: tag 'tag:yaml.org,2002:python"),
    ("max_slots: !!bool maybe", "worker.max_slots: not YAML: 'maybe' is no bool"),
    ("max_slots: !!map x", "worker.max_slots: not YAML: tag 'tag:yaml.org,2002:map'"),
    ("max_slots: *x", "not YAML: found undefined alias 'x'"),
    ("max_slots: [", "not YAML: "),
]


@pytest.mark.parametrize(("line", "said"), FAULTS, ids=[line for line, _ in FAULTS])
def test_a_fault_names_line_and_key_and_what_was_expected(line: str, said: str) -> None:
    (problem,) = problems(f"{HEAD}  {line}\n# the end\n")
    number, _, rest = problem.partition(": ")
    assert rest.startswith(said)
    assert number == ("7" if line.endswith("[") else "5")  # what is open is missed at the end


def test_an_item_of_a_list_is_named_by_its_own_line() -> None:
    assert problems(f"{HEAD}  admin:\n    - tcp://127.0.0.1:1\n    - x\n") == [
        '7: worker.admin[1]: expected tcp://HOST:PORT, got "x"'
    ]


def test_all_faults_are_said_at_once_in_the_files_order() -> None:
    assert problems("worker:\n  max_slots: a\n  dtype: b\nversion: 2\n") == [
        "1: worker.checkpoint: missing; expected the checkpoint's folder",
        '2: worker.max_slots: expected an integer between 1 and 32, got "a"',
        '3: worker.dtype: expected one of float32, bfloat16, got "b"',
        "4: version: expected 1, got 2",
    ]


def test_one_identity_is_needed_and_no_more() -> None:
    """§6.7: without a receipt the worker refuses, unless it is told to hash the files."""
    without = HEAD.replace("  receipt: done\n", "")
    assert problems(without) == [
        "2: worker: expected a receipt, or identity_from_files: true, got neither"
    ]
    assert load(f"{without}  identity_from_files: true\n").worker.identity_from_files
    assert "got both" in problems(f"{HEAD}  identity_from_files: true\n")[0]


def test_every_address_may_be_listened_on_when_that_is_said() -> None:
    text = f"{HEAD}  listen: tcp://0.0.0.0:18620\n  allow_any_address: true\n"
    assert load(text).worker.listen.is_wildcard


def test_the_same_port_0_may_stand_in_both_listeners() -> None:
    """Port 0 picks a free port each time, so the two are not the same listener."""
    free = "tcp://127.0.0.1:0"
    worker = load(f"{HEAD}  listen: {free}\n  admin: ['{free}']\n").worker
    assert worker.admin == (worker.listen,)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "1: expected a section of keys and values, got nothing"),
        (b"# nothing\n", "1: expected a section of keys and values, got nothing"),
        (b"- 1\n", "1: expected a section of keys and values, got a list"),
        (b"version: 1\nworker: 3\n", "2: worker: expected a section of keys and values, got 3"),
        (b"version: 1\n\xff\n", "2: not UTF-8 text"),
        (b"version: 1\nworker: \x00\n", "2: not YAML: special characters are not allowed"),
        (b"a: 1\n---\nb: 1\n", "2: not YAML: expected a single document in the stream"),
        (b"a: &a [*a]\n", "1: a[0][0][0][0][0][0][0][0]: nested deeper than 8 levels"),
        (b"a: " + b"[" * 5000, "1: nested deeper than 8 levels"),
        (b"a: " + b"9" * 5000, "1: a: not YAML: '9999"),
    ],
)
def test_a_file_that_is_no_configuration_is_said_to_be_none(data: bytes, said: str) -> None:
    assert problems(data)[0].startswith(said)


def test_an_alias_bomb_is_stopped() -> None:
    """Ten lines that stand for 10^9 values."""
    lines = ["a0: &a0 [1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 7)]
    assert "more than 10000 values" in problems("\n".join(lines))[0]


def test_anchors_are_otherwise_welcome() -> None:
    text = f"{HEAD}  max_slots: &n 2\n  max_rows_per_step: *n\n"
    assert load(text).worker.max_rows_per_step == 2


def test_a_file_is_bounded_and_its_absence_is_said(tmp_path: Path) -> None:
    path = tmp_path / "dspark.yaml"
    with pytest.raises(ReadError, match="No such file"):
        load_fleet(path)
    path.write_text(HEAD + "#" * MAX_CONFIG_BYTES)
    with pytest.raises(ReadError, match="larger than"):
        load_fleet(path)


def test_an_effective_configuration_loads_to_itself() -> None:
    fleet = load(HEAD)
    assert load(yaml.safe_dump(fleet.model_dump(mode="json"))) == fleet


def test_the_schema_knows_every_key_and_forbids_others() -> None:
    schema = Fleet.model_json_schema()
    worker = schema["$defs"]["WorkerSection"]
    assert set(worker["properties"]) == set(WorkerSection.model_fields)
    assert worker["additionalProperties"] is schema["additionalProperties"] is False
    assert worker["properties"]["max_slots"]["maximum"] == 32
    assert all("description" in field for field in worker["properties"].values())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
keys = st.sampled_from([*WorkerSettings.model_fields, "other"])


@given(st.dictionaries(keys, values, max_size=4))
def test_faults_of_any_values_are_one_line_each_with_a_line_of_the_file(
    worker: dict[str, Any],
) -> None:
    text = yaml.safe_dump({"version": 1, "worker": worker})
    with pytest.raises(ConfigError) as caught:
        load(f"{text}\nother: 1")
    assert len(str(caught.value).splitlines()) == len(caught.value.problems) > 0
    assert all(1 <= p.line <= text.count("\n") + 2 for p in caught.value.problems)


@given(st.text("abw:-[]{}&*!#'\"\n \t%@|>?,1~<=", max_size=60))
def test_any_text_is_a_configuration_or_faults(text: str) -> None:
    with pytest.raises(ConfigError):
        load(text)
