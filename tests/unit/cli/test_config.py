"""`dsparkctl config`: dspark.yaml, and HELLO's parameters (§6.2)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dsparkctl.config.fleet import Fleet
from dsparkctl.contract.records import Hello

Cli = Callable[..., tuple[int, str, str]]

GOLDEN = Path(__file__).parents[2] / "golden" / "drafter" / "a"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DSPARK_CONFIG", raising=False)
    return tmp_path


def test_what_init_writes_is_valid(cli: Cli, folder: Path) -> None:
    code, out, err = cli("config", "init")
    assert (code, out) == (0, "")
    assert "dspark.yaml: written" in err
    assert cli("config", "validate") == (0, "dspark.yaml: valid\n", "")
    assert [path.name for path in folder.iterdir()] == ["dspark.yaml"]


def test_init_replaces_a_file_only_by_force(cli: Cli, folder: Path) -> None:
    (folder / "dspark.yaml").write_text("mine")
    code, _, err = cli("config", "init")
    assert code == 1
    assert "--force" in err
    assert (folder / "dspark.yaml").read_text() == "mine"
    assert cli("config", "init", "--force")[0] == 0
    assert "worker:" in (folder / "dspark.yaml").read_text()


@pytest.mark.parametrize("args", [("x.yaml",), ("--config", "x.yaml")])
def test_another_file_is_named_either_way(cli: Cli, folder: Path, args: tuple[str, ...]) -> None:
    code, out, _ = cli("config", "init", *args, "--json")
    assert (code, json.loads(out)) == (0, {"written": "x.yaml"})
    assert (folder / "x.yaml").exists()
    assert cli("config", "validate", *args)[:2] == (0, "x.yaml: valid\n")


def test_the_file_may_come_from_the_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_CONFIG", "e.yaml")
    assert cli("config", "init")[0] == 0
    assert cli("config", "validate")[1] == "e.yaml: valid\n"


def test_show_fills_in_every_default_and_loads_again(cli: Cli, folder: Path) -> None:
    cli("config", "init")
    code, out, _ = cli("config", "show")
    shown = yaml.safe_load(out)
    assert code == 0
    assert shown["worker"]["max_slots"] == 4
    assert json.loads(cli("config", "show", "--json")[1]) == shown
    (folder / "again.yaml").write_text(out)
    assert yaml.safe_load(cli("config", "show", "again.yaml")[1]) == shown


def test_validate_names_file_line_key_and_expectation(cli: Cli, folder: Path) -> None:
    text = "version: 1\nworker:\n  checkpoint: c\n  receipt: r\n  max_slots: many\n  dtype: x\n"
    (folder / "dspark.yaml").write_text(text)
    said = [
        'dspark.yaml:5: worker.max_slots: expected an integer between 1 and 32, got "many"',
        'dspark.yaml:6: worker.dtype: expected one of float32, bfloat16, got "x"',
    ]
    assert cli("config", "validate") == (2, "", "\n".join(said) + "\n")
    code, out, _ = cli("config", "validate", "--json")
    assert (code, out.count("\n")) == (2, 1)
    assert json.loads(out)["problems"][0] == {
        "line": 5,
        "key": "worker.max_slots",
        "reason": 'expected an integer between 1 and 32, got "many"',
    }
    assert cli("config", "show")[0] == 2


def test_a_missing_file_is_one_line(cli: Cli) -> None:
    said = "dspark.yaml: cannot be read: No such file or directory\n"
    assert cli("config", "show") == (2, "", said)


def test_schema_is_the_models(cli: Cli) -> None:
    code, out, _ = cli("config", "schema", "--json")
    assert (code, out.count("\n"), json.loads(out)) == (0, 1, Fleet.model_json_schema())
    assert json.loads(cli("config", "schema")[1]) == Fleet.model_json_schema()


@pytest.fixture
def receipt(cli: Cli, folder: Path) -> Path:
    cli("identity", "write", GOLDEN, "--out", folder / "r")
    return folder / "r"


def test_hello_prints_the_fields_of_the_table_by_their_names(cli: Cli, receipt: Path) -> None:
    """§6.2"""
    args = ("config", "hello", "--checkpoint", GOLDEN, "--receipt", receipt)
    code, out, err = cli(*args, "--json")
    found = json.loads(out)
    assert (code, err, out.count("\n"), tuple(found)) == (0, "", 1, Hello._fields)
    identity = json.loads(cli("identity", "receipt", receipt, "--json")[1])["drafter_identity"]
    assert found["drafter_identity"] == identity
    assert (found["max_slots"], found["max_rows_per_step"], found["max_model_len"]) == (
        4,
        4 * found["window"],
        327680,
    )
    assert found["tp_size"] == 2
    assert found["markov_identity"] == "0" * 64
    lines = cli(*args)[1].splitlines()
    assert [line.split()[0] for line in lines] == list(Hello._fields)


def test_hello_takes_limits_and_a_markov_file(cli: Cli, receipt: Path, folder: Path) -> None:
    (folder / "m").write_bytes(b"")
    args = ("config", "hello", "--checkpoint", GOLDEN, "--receipt", receipt, "--json")
    found = json.loads(cli(*args, "--max-slots", 2, "--markov", "m")[1])
    assert (found["max_slots"], found["max_rows_per_step"]) == (2, 2 * found["window"])
    assert found["markov_identity"].startswith("e3b0c442")


def test_hello_refuses_limits_that_no_worker_has(cli: Cli, receipt: Path) -> None:
    args = ("config", "hello", "--checkpoint", GOLDEN, "--receipt", receipt)
    code, out, err = cli(*args, "--max-slots", 33)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("max_slots: ")
