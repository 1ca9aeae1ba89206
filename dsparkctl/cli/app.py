"""`dsparkctl`: the table of commands, and the one place where an exception becomes an exit code.

Refuses to know what a command does. To add one: a module with a Typer `app`, and a line here.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from dsparkctl import CONTRACT_VERSION, __version__
from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import Entry, lazy_group, new_app
from dsparkctl.streams import open_missing

PROGRAM = "dsparkctl"

_RELEASES = "dsparkctl.cli.releases"

COMMANDS = {
    "demo": Entry("dsparkctl.cli.demo", "See a small engine speculate with a worker's drafts."),
    "worker": Entry("dsparkctl.cli.worker", "Serve drafts, or replay a recorded case."),
    "simulate": Entry("dsparkctl.cli.simulate", "Torture both sides on simulated time."),
    "conform": Entry("dsparkctl.cli.conform", "Hold any worker against the contract."),
    "conform-client": Entry("dsparkctl.cli.conform_client", "Hold any client against it."),
    "probe": Entry("dsparkctl.cli.probe", "Measure PING round trips to a worker."),
    "stats": Entry("dsparkctl.cli.stats", "Watch a worker's counters."),
    "reset": Entry("dsparkctl.cli.reset", "Discard windows of a worker's slots."),
    "doctor": Entry("dsparkctl.cli.doctor", "Examine the hosts of dspark.yaml."),
    "deploy": Entry("dsparkctl.cli.deploy", "Put worker and checkpoint on their host."),
    "status": Entry("dsparkctl.cli.status", "What runs where, and what differs."),
    "drafting": Entry("dsparkctl.cli.drafting", "Switch drafting on and off, without a restart."),
    "rollback": Entry(_RELEASES, "Go back to an earlier release.", "rollback_app"),
    "releases": Entry(_RELEASES, "List the releases on the worker's host.", "releases_app"),
    "history": Entry(_RELEASES, "What was done to it, and by whom.", "history_app"),
    "logs": Entry(_RELEASES, "The worker's journal.", "logs_app"),
    "lock": Entry(_RELEASES, "Who is deploying.", "lock_app"),
    "undeploy": Entry(_RELEASES, "Remove the worker from its host.", "undeploy_app"),
    "inventory": Entry("dsparkctl.cli.inventory", "dspark.yaml as an Ansible inventory."),
    "config": Entry("dsparkctl.cli.config", "Write, check and print dspark.yaml and HELLO."),
    "identity": Entry("dsparkctl.cli.identity", "Receipts: compute, verify and write identities."),
    "checkpoint": Entry("dsparkctl.cli.checkpoint", "Look into a checkpoint, and unpack it."),
    "bench": Entry("dsparkctl.cli.bench", "Measure this machine."),
    "fabric": Entry("dsparkctl.cli.fabric", "libfabric on this machine: o1tcp, o1rdma."),
    "record": Entry("dsparkctl.cli.record", "What a flight recorder kept."),
    "wire": Entry("dsparkctl.cli.wire", "Decode and encode messages of the contract."),
}

app = new_app(
    "Remote DSpark drafting for DeepSeek V4.1: the operator's tool.",
    cls=lazy_group(COMMANDS),
    add_completion=True,
)


def _version(asked: bool) -> None:
    if asked:
        render.data(f"{PROGRAM} {__version__} (contract {CONTRACT_VERSION})")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the versions and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """The entry point of the installed command."""
    open_missing()
    code = run(sys.argv[1:])
    render.finish()
    sys.exit(code)


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code; known errors become one line on stderr.

    An error that is a fault of ours is raised on, with its traceback.
    """
    try:
        command = typer.main.get_command(app)
        code = command.main(list(args) or ["--help"], prog_name=PROGRAM, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except SystemExit as done:  # a completion was printed, or the reader of stdout is gone
        code = done.code
    except Exception as error:
        known = _exit_code(error)
        if known is None:
            raise
        render.error(_one_line(error))
        return known
    return code if isinstance(code, int) else Exit.OK


def _exit_code(error: Exception) -> int | None:
    """The code of an error that a person can act on, None for a fault of ours.

    The classes are imported here, so that a command that succeeds does not pay for them.
    """
    from dsparkctl.checkpoint.errors import CheckpointError
    from dsparkctl.config.errors import ConfigError, ReadError, WriteError
    from dsparkctl.contract.endpoint import EndpointError
    from dsparkctl.contract.receipt import ReceiptError

    match error:
        case Stop():
            return error.code
        case typer.TyperException():
            return error.exit_code
        case ConfigError() | EndpointError() | ReadError() | ReceiptError():
            return Exit.USAGE
        case CheckpointError() | WriteError() | OSError():
            return Exit.FAILED
        case _:
            return None


def _one_line(error: Exception) -> str:
    match error:
        case typer.TyperException():
            context = getattr(error, "ctx", None)
            more = "" if context is None else f" (see {context.command_path} --help)"
            return " ".join(error.format_message().split()) + more
        case OSError(filename=str(name), strerror=str(reason)):
            return f"{name}: {reason}"
        case OSError(strerror=str(reason)):
            return reason
        case _:
            return str(error)
