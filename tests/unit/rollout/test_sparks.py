"""Plans for the Sparks (issue 5, part 2): ranks are a unit, and what runs keeps what it had."""

from pathlib import Path
from typing import Any

import pytest

from dsparkctl.config.fleet import Fleet
from dsparkctl.exits import Exit
from dsparkctl.rollout import env_file
from dsparkctl.rollout.acts import PutFile, Run, Switch, WaitUntil
from dsparkctl.rollout.execute import execute
from dsparkctl.rollout.host import Ran
from dsparkctl.rollout.plan import Plan
from dsparkctl.rollout.sparks import Client, Process, SparkFacts, live
from dsparkctl.rollout.wheelhouse import Wheel
from tests.unit.rollout.doubles import RecordingHost

WHEEL = Wheel(Path("/w/dsparkctl-0.1.0-py3-none-any.whl"), "f" * 64, 1000)


def client(**engine: Any) -> Client:
    given = {"kind": "systemd", "ranks": ("a", "b"), "python": "/opt/vllm/bin/python",
             "unit": "vllm.service", "rendezvous_port": 29501}  # fmt: skip
    fleet = Fleet.model_validate(
        {
            "version": 1,
            "hosts": {"x": {}, "a": {}, "b": {}},
            "links": ({"host": "a", "bind": "10.0.0.2", "peer": "10.0.0.1"},),
            "worker": {"host": "x", "checkpoint": "/c", "receipt": "/c/R"},
            "engine": given | engine,
        },
        context={"folder": Path("/")},
    )
    return Client(fleet, WHEEL, "digest", env_file.variables(fleet, "ab" * 32, None))


def whole(wanted: Client, host: str, *processes: Process) -> SparkFacts:
    """A Spark that has everything."""
    from dsparkctl.rollout.engines import drop_in

    extra = drop_in(wanted.engine)
    return SparkFacts(
        host,
        "ops",
        env_file.write(wanted.values).decode(),
        extra[1].decode() if extra else None,
        "digest",
        "0.1.0",
        processes,
    )


def titles(plan: Plan) -> list[str]:
    return [f"{step.host} {step.key}" for step in plan.steps]


def test_a_first_deploy_installs_and_writes_on_both_and_restarts_nothing() -> None:
    plan = client().plan([SparkFacts("a"), SparkFacts("b")], "deploy spark", restart=False)
    assert titles(plan) == ["a install", "a variables", "b install", "b variables"]
    assert "--restart restarts all ranks" in plan.notes[0]


def test_sparks_that_have_everything_need_nothing() -> None:
    wanted = client()
    running = Process(7, "vllm serve", tuple(sorted(wanted.values.items())))
    facts = [whole(wanted, "a", running), whole(wanted, "b", running)]
    for restart in (False, True):
        assert wanted.plan(facts, "deploy spark", restart=restart).is_empty


def test_ranks_stop_together_and_rank_0_listens_before_rank_1_starts() -> None:
    plan = client().plan([SparkFacts("a"), SparkFacts("b")], "deploy spark", restart=True)
    restart = [name for name in titles(plan) if "st" in name.split()[1][:2]]
    assert restart == ["b stop", "a stop", "a start", "b start"]
    (first,) = (step for step in plan.steps if step.key == "start" and step.host == "a")
    waits = [act for act in first.acts if isinstance(act, WaitUntil)]
    assert "rank 0 to listen on port 29501" in waits[-1].what


def test_the_order_is_a_setting() -> None:
    plan = client(start_order=(1, 0)).plan([SparkFacts("a")], "deploy spark", restart=True)
    assert titles(plan)[-2:] == ["b start", "a start"]


def test_a_rank_0_that_never_listens_ends_the_deploy_before_rank_1_starts() -> None:
    wanted = client(start_timeout_s=0.01)
    plan = wanted.plan([whole(wanted, "b"), SparkFacts("a")], "deploy spark", restart=True)

    def answer(argv: tuple[str, ...]) -> Ran | None:
        if argv[:2] == ("systemctl", "is-active"):
            is_up = any("start --no-block" in text for text in hosts["a"].said)
            return Ran(argv, 0 if is_up else 3, b"active" if is_up else b"inactive", b"")
        return None

    hosts = {name: RecordingHost(name, answer) for name in ("a", "b")}
    outcome = execute(plan, hosts)
    assert outcome.exit in (Exit.FAILED, Exit.PARTIAL)
    assert "in vain for rank 0 to listen on port 29501" in str(outcome.error)
    assert not any("systemctl start" in text for text in hosts["b"].said)


LISTENING = (
    "  sl  local_address rem_address   st\n"
    "   0: 0100007F:733D 00000000:0000 0A 0 0\n"
    "   1: 0200CA0A:733E 0100CA0A:733D 01 0 0\n"
)


@pytest.mark.parametrize(("port", "is_open"), [(0x733D, True), (0x733E, False), (1, False)])
def test_only_a_listening_socket_is_an_open_port(port: int, is_open: bool) -> None:
    wait = client()._listens(port)
    assert wait.is_so(Ran(("cat",), 0, LISTENING.encode(), b"")) is is_open


def test_a_container_is_made_anew_and_never_restarted() -> None:
    """It keeps the environment that it was created with."""
    wanted = client(
        kind="docker",
        unit=None,
        container="vllm",
        start=("docker", "compose", "up", "-d"),
        python=None,
        mount="/opt/dspark-site",
    )
    plan = wanted.plan([SparkFacts("a"), SparkFacts("b")], "deploy spark", restart=True)
    commands = [act.argv for step in plan.steps for act in step.acts if isinstance(act, Run)]
    assert ("docker", "rm", "--force", "vllm") in commands
    assert ("docker", "compose", "up", "-d") in commands
    assert not any("restart" in argv for argv in commands)
    assert any(isinstance(act, Switch) for step in plan.steps for act in step.acts)


def test_the_wheel_is_installed_without_dependencies_and_without_an_index() -> None:
    plan = client().plan([SparkFacts("a")], "deploy spark", restart=False)
    step = next(step for step in plan.steps if step.key == "install")
    assert any(isinstance(act, PutFile) for act in step.acts)
    pip = next(act.argv for act in step.acts if isinstance(act, Run) and "pip" in act.argv)
    assert {"--no-deps", "--no-index"} <= set(pip)
    assert pip[0] == "/opt/vllm/bin/python"


def test_each_variable_is_live_stale_missing_or_extra_in_what_runs() -> None:
    wanted = {f"{env_file.PREFIX}{name}": "1" for name in ("TRIP", "COOLDOWN", "POLICY")}
    own = {**wanted, f"{env_file.PREFIX}TRIP": "2", f"{env_file.PREFIX}RECORD": "/x"}
    del own[f"{env_file.PREFIX}POLICY"]
    helper = Process(8, "a helper", ())
    facts = SparkFacts("b", processes=(Process(7, "vllm", tuple(own.items())), helper))
    states = {row.name.removeprefix(env_file.PREFIX): row.state for row in live(facts, wanted)}
    assert states == {"TRIP": "stale", "COOLDOWN": "live", "POLICY": "missing", "RECORD": "extra"}
    assert {row.state for row in live(SparkFacts("b"), wanted)} == {"missing"}
