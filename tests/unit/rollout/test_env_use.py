"""What of the variables anybody reads (issue 5, `doctor env`): judged by the installed code."""

import json
from pathlib import Path

import pytest

from dsparkctl.client.environment import TABLE
from dsparkctl.rollout import env_file
from dsparkctl.rollout.env_use import Fate, Scan, judged, places
from dsparkctl.rollout.spark_facts import Process, SparkFacts
from tests.unit.rollout.conftest import Program

TRIP, TRAP = f"{env_file.PREFIX}TRIP", f"{env_file.PREFIX}TRAP"
CACHE, TURBO = "VLLM_DSPARK_MARKOV_CACHE", "VLLM_DSPARK_TURBO"
CLIENT = Path(__file__).parents[3] / "dsparkctl/client/environment.py"


def fates(scan: Scan | str) -> dict[str, Fate]:
    found = {TRIP: {"file"}, TRAP: {"file", "engine"}, CACHE: {"engine"}, TURBO: {"engine"}}
    return {one.name: one.fate for one in judged("a", found, scan)}


def test_a_variable_is_inert_where_no_installed_code_names_it() -> None:
    scan = Scan({CACHE: ["vllm/envs.py"], TURBO: []}, frozenset({TRIP}), True)
    assert fates(scan) == {
        TRIP: Fate.CONSUMED,
        TRAP: Fate.INERT,
        CACHE: Fate.CONSUMED,
        TURBO: Fate.INERT,
    }


@pytest.mark.parametrize(
    ("scan", "turbo", "trip"),
    [
        (Scan({}, None, True), Fate.INERT, Fate.INERT),
        (Scan({}, frozenset({TRIP}), False), Fate.UNKNOWN, Fate.CONSUMED),
        (Scan({}, frozenset({TRIP}), True, is_cut=True), Fate.UNKNOWN, Fate.CONSUMED),
        ("container vllm does not run", Fate.UNKNOWN, Fate.UNKNOWN),
    ],
)
def test_what_nobody_could_look_at_is_unknown_and_never_inert(
    scan: Scan | str, turbo: Fate, trip: Fate
) -> None:
    found = fates(scan)
    assert (found[TURBO], found[TRIP]) == (turbo, trip)


def test_a_variable_stands_where_file_and_engine_set_it() -> None:
    engine = Process(7, "vllm", ((TRIP, "3"), (TURBO, "1")))
    facts = SparkFacts("a", env_text=f"{TRIP}=3\n{TRAP}=1\nOTHER=1\n", processes=(engine,))
    assert places(facts) == {TRIP: {"file", "engine"}, TRAP: {"file"}, TURBO: {"engine"}}


def scanned(run_program: Program, site: Path, names: list[str]) -> dict[str, object]:
    asked = {"names": names, "python": "", "mount": str(site), "pids": []}
    code, out, err = run_program("env_use", asked)
    assert code == 0, err
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_sources_of_vllm_and_of_its_plugins_are_searched_for_names(
    run_program: Program, tmp_path: Path
) -> None:
    """A plugin may be called anything: its distribution says that it is one."""
    for top, name in (("vllm", "A"), ("turbo", "B"), ("numpyx", "C")):
        (tmp_path / top).mkdir()
        (tmp_path / top / "envs.py").write_text(f'get("VLLM_DSPARK_{name}")')
    info = tmp_path / "turbo-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nturbo = turbo.envs:start\n")
    found = scanned(run_program, tmp_path, [f"VLLM_DSPARK_{name}" for name in "ABC"])
    assert found["used"] == {
        "VLLM_DSPARK_A": ["vllm/envs.py"],
        "VLLM_DSPARK_B": ["turbo/envs.py"],
        "VLLM_DSPARK_C": [],
    }
    assert found["has_vllm"] is True


def test_the_table_is_read_from_the_client_that_is_installed_there(
    run_program: Program, tmp_path: Path
) -> None:
    """Not from the one that asks: the Spark may have an older one."""
    there = tmp_path / "dsparkctl/client"
    there.mkdir(parents=True)
    (there / "environment.py").write_bytes(CLIENT.read_bytes())
    found = scanned(run_program, tmp_path, [])
    assert found["table"] == [variable.name for variable in TABLE]
    (there / "environment.py").write_text('TABLE = (Variable("OLD", 1), Variable("ONE", 2))')
    assert scanned(run_program, tmp_path, [])["table"] == ["OLD", "ONE"]
