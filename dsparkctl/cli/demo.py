"""`dsparkctl demo`: a small engine that really speculates, with the real client and a worker."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.client.environment import Policy, SettingsError
from dsparkctl.client.terms import TermsError
from dsparkctl.contract.codes import FrameStatus
from dsparkctl.contract.endpoint import parse_endpoint
from dsparkctl.demo import options as limits
from dsparkctl.demo.options import EngineEnded, OptionError, Options
from dsparkctl.demo.perform import perform
from dsparkctl.demo.terms import EMBEDDED
from dsparkctl.demo.worker_process import WorkerDied
from dsparkctl.net.transport import NotInThisBuild

app = new_app()


class Transport(Enum):
    """Carriers that one machine can show (§5)."""

    TCP = "tcp"
    O1TCP = "o1tcp"


@app.command()
def demo(
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The data listener of a worker that already runs; its engine is thrown out.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Instead of the embedded tiny checkpoint.")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            metavar="R",
            min=1,
            max=limits.MAX_REQUESTS,
            help=f"Requests; by itself {limits.N_REQUESTS}, with --show-outage"
            f" {limits.OUTAGE_N_REQUESTS}.",
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(metavar="T", min=1, max=limits.MAX_TOKENS, help="Tokens for each.")
    ] = limits.N_TOKENS,
    concurrency: Annotated[
        int,
        typer.Option(metavar="C", min=1, max=limits.MAX_CONCURRENCY, help="Requests at a time."),
    ] = limits.MAX_CONCURRENCY,
    seed: Annotated[int, typer.Option(metavar="S", help="Another seed, other prompts.")] = 1,
    policy: Annotated[
        Policy, typer.Option(help="What a failed round means; all but capacity draft here, too.")
    ] = Policy.CAPACITY,
    timeout_ms: Annotated[
        float, typer.Option(metavar="MS", min=1, max=10_000, help="Deadline of a round.")
    ] = limits.TIMEOUT_MS,
    step_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=0,
            max=10_000,
            help="What a round takes at least; a verify step on the real machine takes 33 to 48."
            f" By itself 0, with --show-outage {limits.OUTAGE_STEP_MS:g}.",
        ),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.1, max=86_400, help="End the rounds after so long."),
    ] = None,
    transport: Annotated[
        Transport, typer.Option(help="Carrier between engine and the demo's own worker.")
    ] = Transport.TCP,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line.")] = False,
    show_outage: Annotated[
        bool, typer.Option("--show-outage", help="Kill the demo's own worker, and bring it back.")
    ] = False,
) -> None:
    """See a small engine speculate with a worker's drafts, and what they are worth.

    Without --endpoint a worker is started on loopback and ended again. Every output is compared
    with what the target says without drafts; exit code 1 when one differs, 10 when the worker
    refuses this checkpoint's drafter.
    """
    with _failures():
        options = Options(
            None if endpoint is None else parse_endpoint(endpoint),
            checkpoint or EMBEDDED,
            *(requests, tokens, concurrency, seed, policy),
            *(timeout_ms, step_ms, max_seconds, show_outage, transport.value),
        )
        report = perform(options, render.note)
    (render.json_line if as_json else _show)(report)
    if not report["outputs_match_reference"]:
        raise Stop(Exit.FAILED, "an output differs from what the target says without drafts")
    if report["remote"].partition(":")[0] in FrameStatus.__members__:
        raise Stop(
            Exit.MISMATCH,
            f"{endpoint} drafts for another engine: give --checkpoint what it serves, without a "
            "Markov file there, and the same release on both sides",
        )


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except WorkerDied as error:
        for line in error.last_lines:
            render.note(f"  {line}")
        raise Stop(Exit.FAILED, str(error)) from None
    except (OptionError, SettingsError, NotInThisBuild) as error:
        raise Stop(Exit.USAGE, str(error)) from None
    except (EngineEnded, TermsError) as error:
        raise Stop(Exit.FAILED, str(error)) from None
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise Stop(
            Exit.FAILED, f"the demo needs {error.name}: pip install 'dsparkctl[worker]'"
        ) from None


_FIELDS = (
    "requests",
    "requests_done",
    "tokens",
    "preempted",
    "prefix_hits",
    "chunked",
    "connections",
    "steps_sent",
    "resyncs",
    "remote",
    "outputs_match_reference",
)


def _show(report: dict[str, Any]) -> None:
    """What nobody publishes comes first: tokens a target step with the drafter, and without."""
    phases = report.get("phases") or {_whole(report): report}
    render.table(
        ("", "rounds", "tokens per target step", "drafts accepted", "rounds without drafts"),
        [
            *((name, *_phase(phase)) for name, phase in phases.items()),
            ("the target by itself", "", "1.00", "", ""),
        ],
    )
    render.data("")
    shares = [f"{share:.1%}" for share in report["acceptance_per_position"]]
    render.table(("draft", "accepted"), [*enumerate(shares, 1)])
    render.data("")
    render.table(("time of a round", "p50 ms", "p99 ms"), _times(report["ms_per_round"]))
    render.data("")
    render.fields({name: report[name] for name in _FIELDS})
    for note in _notes(report):
        render.note(note)


def _whole(report: dict[str, Any]) -> str:
    """What the run is called: whose drafts they were, or that there were none."""
    if report["policy"] != Policy.CAPACITY:
        return f"policy {report['policy']}"
    return "with the drafter" if report["drafted_requests"] else "no drafts came"


def _notes(report: dict[str, Any]) -> Iterator[str]:
    """What a person would otherwise take for something else."""
    if report["requests_done"] < report["requests"]:
        n_done, n = report["requests_done"], report["requests"]
        yield f"cut short by --max-seconds: {n_done} of {n} requests were finished"
    if report["remote"] != "on":
        yield f"remote drafting ended as: {report['remote']}"
    yield (
        "drafts accepted, of 5: 3 and more requests verify 4 drafts each, so the last one counts"
        " as accepted in rounds of 1 or 2 alone"
    )


def _phase(phase: dict[str, Any]) -> tuple[object, ...]:
    reasons = [
        f"{n} {name.removeprefix('fallback_').replace('_', ' ')}"
        for name, n in phase["fallbacks"].items()
    ]
    mean = f"{sum(phase['acceptance_per_position']):.2f}"
    return phase["rounds"], f"{phase['tokens_per_step']:.2f}", mean, ", ".join(reasons) or "none"


def _times(parts: dict[str, Any]) -> list[tuple[object, ...]]:
    """Of an exchange there is none where nothing was sent."""
    return [
        (name, spread["p50"], spread["p99"])
        for name, spread in parts.items()
        if spread.get("p50") is not None
    ]
