"""What runs against what was written (issue 5, part 2; field reports of files that nobody read)."""

from hypothesis import given
from hypothesis import strategies as st

from dsparkctl.rollout import env_file
from dsparkctl.rollout.environ import State, faults, live, runs_older_code, told
from dsparkctl.rollout.spark_facts import Process, SparkFacts

NAMES = tuple(f"{env_file.PREFIX}{name}" for name in ("TRIP", "COOLDOWN", "POLICY", "RECORD"))
settings = st.dictionaries(st.sampled_from(NAMES), st.sampled_from("123"))


def facts(*environments: dict[str, str]) -> SparkFacts:
    return SparkFacts(
        "b", processes=tuple(Process(7, "vllm", tuple(one.items())) for one in environments)
    )


def test_each_variable_is_live_stale_missing_or_extra_in_what_runs() -> None:
    wanted = dict.fromkeys(NAMES[:3], "1")
    own = {NAMES[0]: "2", NAMES[1]: "1", NAMES[3]: "/x"}
    found = live(facts(own, {}), wanted)
    assert {row.name: row.state for row in found} == {
        NAMES[0]: State.STALE,
        NAMES[1]: State.LIVE,
        NAMES[2]: State.MISSING,
        NAMES[3]: State.EXTRA,
    }
    assert [str(row) for row in found if row.state is State.EXTRA] == [
        f"b: {NAMES[3]}=/x is extra: the file does not hold it"
    ]


def test_nothing_is_said_of_an_engine_that_does_not_run() -> None:
    """A variable is not missing in nothing: the engine is."""
    assert live(SparkFacts("b"), {NAMES[0]: "1"}) == []
    assert faults(SparkFacts("b"), {NAMES[0]: "1"}) == []


def test_a_helper_without_our_variables_does_not_count_unless_none_has_any() -> None:
    wanted = {NAMES[0]: "1"}
    assert faults(facts({}, wanted), wanted) == []
    assert [row.state for row in live(facts({}, {}), wanted)] == [State.MISSING]


@given(settings, st.lists(settings, min_size=1, max_size=4))
def test_no_fault_is_found_exactly_where_every_process_that_counts_has_what_is_wanted(
    wanted: dict[str, str], environments: list[dict[str, str]]
) -> None:
    seen = facts(*environments)
    counted = [dict(one.variables) for one in told(seen)]
    assert (faults(seen, wanted) == []) is all(one == wanted for one in counted)


@given(wanted=settings, own=settings)
def test_every_variable_gets_exactly_one_row(wanted: dict[str, str], own: dict[str, str]) -> None:
    rows = live(facts(own), wanted)
    assert sorted(row.name for row in rows) == sorted({*wanted, *own})
    for row in rows:
        assert (row.state is State.LIVE) is (wanted.get(row.name) == own.get(row.name))
        assert (row.state is State.EXTRA) is (row.name not in wanted)


def test_a_process_that_began_before_the_installation_runs_older_code() -> None:
    def at(started_s: float, came_s: float) -> SparkFacts:
        process = Process(7, "vllm", ((NAMES[0], "1"),), started_s)
        return SparkFacts("b", package_digest="d", package_came_s=came_s, processes=(process,))

    assert runs_older_code(at(100, 200))
    assert not runs_older_code(at(200, 100))
    assert not runs_older_code(at(199.5, 200)), "two clocks of one host"
    assert faults(at(100, 200), {NAMES[0]: "1"}) == [
        "b: the engine runs since before this client was installed"
    ]
