"""`dsparkctl deploy`: put the worker on its host, its checkpoint, and the client on the Sparks."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.remote import (
    ConfigFile,
    Diff,
    DryRun,
    HostKey,
    Json,
    LockWait,
    at_worker,
    fleet_of,
    reaching,
    show_plan,
    telling,
    worker_host,
)
from dsparkctl.config.fleet import Fleet
from dsparkctl.rollout.checkpoint import CheckpointPlanError, plan_checkpoint
from dsparkctl.rollout.deploy import Deploy
from dsparkctl.rollout.deploy_sparks import SparkDeploy
from dsparkctl.rollout.doctor.examine import examine
from dsparkctl.rollout.doctor.finding import Level
from dsparkctl.rollout.execute import Outcome
from dsparkctl.rollout.plan import Plan
from dsparkctl.rollout.render import RenderError
from dsparkctl.rollout.ssh.known_hosts import Trust
from dsparkctl.rollout.wheelhouse import WheelhouseError

app = new_app("Put worker, checkpoint and client on their hosts.")

Wheelhouse = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Wheels for the worker's host, instead of pip's index."),
]


@app.command()
def x86host(
    wheelhouse: Wheelhouse = None,
    dry_run: DryRun = False,
    diff: Diff = False,
    lock_wait: LockWait = 0.0,
    host_key: HostKey = Trust.STRICT,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Install the worker on its host, switch to it, and see it draft.

    Exit code 0 also when nothing had to change; 8 when the new release did not draft and the one
    before it serves again; 9 when that failed too.
    """
    with (
        at_worker(config, host_key, lock_wait) as deploy,
        deploy.locked("deploy x86host", is_dry=dry_run or diff) as lease,
    ):
        try:
            plan = deploy.plan(deploy.facts(), wheelhouse, cache_folder(), "deploy x86host")
        except (RenderError, WheelhouseError) as error:
            raise Stop(Exit.USAGE, str(error)) from None
        if dry_run or diff:
            show_plan(plan, as_json=as_json, with_diff=diff)
        else:
            finish(plan, deploy.run(plan, lease), as_json=as_json)


@app.command()
def checkpoint(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The checkpoint, here.")],
    receipt: Annotated[Path, typer.Option(metavar="FILE", help="Its receipt, here.")],
    markov: Annotated[Path | None, typer.Option(metavar="FILE", help="The Markov file.")] = None,
    dry_run: DryRun = False,
    lock_wait: LockWait = 0.0,
    host_key: HostKey = Trust.STRICT,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Bring the checkpoint's files that the receipt names to the worker's host.

    What is there already and right is left alone; an upload that broke off is gone on with; a file
    gets its name when its sha256 is right.
    """
    with (
        at_worker(config, host_key, lock_wait) as deploy,
        deploy.locked("deploy checkpoint", is_dry=dry_run) as lease,
    ):
        try:
            plan = plan_checkpoint(deploy.fleet, deploy.host, directory, receipt, markov)
        except CheckpointPlanError as error:
            raise Stop(Exit.USAGE, str(error)) from None
        if dry_run:
            show_plan(plan, as_json=as_json, with_diff=False)
        else:
            finish(plan, deploy.run(plan, lease), as_json=as_json)


@app.command()
def spark(
    restart: Annotated[
        bool, typer.Option("--restart", help="Restart all ranks, in their order.")
    ] = False,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="HOST", help="Files on this host alone.")
    ] = None,
    wheelhouse: Wheelhouse = None,
    dry_run: DryRun = False,
    diff: Diff = False,
    lock_wait: LockWait = 0.0,
    host_key: HostKey = Trust.STRICT,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Install the client on the Sparks and write its variables.

    The identity that it will demand is that of the worker that drafts now. With --restart, success
    means: live on every rank, a new session at the worker, and rising steps.
    """
    fleet = fleet_of(config)
    with reaching(fleet, host_key) as hosts:
        worker = Deploy(fleet, hosts[worker_host(fleet)], telling(), lock_wait)
        with worker.locked("deploy spark", is_dry=dry_run or diff) as lease:
            try:
                deploy = SparkDeploy(fleet, worker.host, hosts)
                names = _limited(deploy.engine.ranks, limit, restart=restart)
                before = deploy.worker_stats(worker.facts().identity)
                client = deploy.client(before, wheelhouse, cache_folder())
                plan = deploy.plan(client, deploy.facts(names), before, restart=restart)
            except (RenderError, WheelhouseError) as error:
                raise Stop(Exit.USAGE, str(error)) from None
            if dry_run or diff:
                show_plan(plan, as_json=as_json, with_diff=diff)
                return
            outcome = worker.run(plan, lease, hosts)
            for line in deploy.faults(client):
                render.note(line)
            finish(plan, outcome, as_json=as_json)


app.command("sparks", help="The same as spark.")(spark)


@app.command("all")
def everything(
    restart: Annotated[
        bool, typer.Option("--restart", help="Restart all ranks, in their order.")
    ] = False,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="HOST", help="This host alone.")
    ] = None,
    wheelhouse: Wheelhouse = None,
    lock_wait: LockWait = 0.0,
    host_key: HostKey = Trust.STRICT,
    config: ConfigFile = None,
) -> None:
    """A doctor's look at every host, then the worker, then, once it drafts, the Sparks.

    Nothing is changed anywhere where a check fails (exit code 3). Exit code 6: the worker is done,
    the Sparks are not.
    """
    fleet = fleet_of(config)
    worker, ranks = worker_host(fleet), fleet.engine.ranks if fleet.engine else ()
    if limit is not None and limit not in (worker, *ranks):
        raise Stop(Exit.USAGE, f"--limit: {limit} is none of {', '.join((worker, *ranks))}")
    _examined(fleet, [limit] if limit else [*fleet.hosts], host_key)
    if limit in (None, worker):
        x86host(wheelhouse, lock_wait=lock_wait, host_key=host_key, config=config)
    if limit == worker:
        return
    try:
        spark(restart, limit, wheelhouse, lock_wait=lock_wait, host_key=host_key, config=config)
    except Stop as error:
        if limit is not None:
            raise
        rows = [(worker, "done"), *((rank, f"not done: {error}") for rank in ranks)]
        render.table(("host", "deploy"), rows)
        raise Stop(Exit.PARTIAL, "the worker serves, the Sparks are not done") from None


def _examined(fleet: Fleet, names: list[str], trust: Trust) -> None:
    """Stop where a check fails."""
    with reaching(fleet, trust) as hosts:
        found = examine(fleet, names, hosts.__getitem__)
    bad = [one for one in found if one.level is Level.FAIL]
    for one in bad:
        render.note(f"{one.host}: {one.check}: {one.saw}; {one.todo}")
    if bad:
        raise Stop(Exit.PREFLIGHT, f"{len(bad)} checks failed; nothing was changed")


def _limited(ranks: Sequence[str], limit: str | None, *, restart: bool) -> Sequence[str]:
    if limit is None:
        return ranks
    if restart:
        raise Stop(Exit.USAGE, "--limit: ranks restart together; leave out --limit or --restart")
    if limit not in ranks:
        raise Stop(Exit.USAGE, f"--limit: {limit} is none of {', '.join(ranks)}")
    return [limit]


def finish(plan: Plan, outcome: Outcome, *, as_json: bool) -> None:
    """Tell how a plan ended; Stop with the code that says it."""
    for remark in (*plan.notes, *outcome.remarks):
        render.note(remark)
    if as_json:
        done = [step.key for step in outcome.done]
        error = str(outcome.error) if outcome.error else None
        render.json_line(
            {"release": plan.release, "changed": bool(done), "done": done, "error": error}
        )
    if outcome.error is None:
        if not as_json:
            render.data("no changes" if plan.is_empty else f"done: {plan.release or plan.command}")
        return
    said = str(outcome.error)
    if outcome.undo_error is not None:
        said += f"; taking it back failed as well: {outcome.undo_error}"
    elif outcome.undone:
        said += "; it was taken back"
    if outcome.exit is Exit.PARTIAL and not as_json:
        render.table(("host", plan.command), outcome.by_host(plan))
    raise Stop(outcome.exit, said)


def cache_folder() -> Path:
    """Where wheels are kept on this machine."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "dsparkctl"
