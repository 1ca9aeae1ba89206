"""`dsparkctl demo`: worker and engine in one command, rounds drafted before one's eyes."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.spread import summary
from dsparkctl.contract.endpoint import Endpoint, parse_endpoint
from dsparkctl.demo.play import DemoError, HelloRefused, Played, play
from dsparkctl.demo.script import rounds
from dsparkctl.demo.terms import EMBEDDED, Terms, terms_of
from dsparkctl.demo.worker_process import WorkerDied, worker_process
from dsparkctl.net.transport import NotInThisBuild, TransportError

app = new_app()


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
    n_rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=1, max=1_000_000, help="Rounds to play.")
    ] = 100,
    seed: Annotated[int, typer.Option(metavar="S", help="Another seed, another play.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line.")] = False,
) -> None:
    """See rounds being drafted, each answer held against the contract.

    Without --endpoint a worker is started on loopback and ended again.
    """
    terms = terms_of(checkpoint or EMBEDDED)
    session = random.SystemRandom().randrange(1, 1 << 32)
    with _failures(), _worker(endpoint, checkpoint or EMBEDDED, terms) as listener:
        render.note(f"playing {n_rounds} rounds of seed {seed} on {listener}")
        played = play(listener, terms.hello, rounds(seed, n_rounds, terms.hello), session)
    if as_json:
        render.json_line(_facts(listener, terms, seed, played))
    else:
        _show(played)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except WorkerDied as error:
        for line in error.last_lines:
            render.note(f"  {line}")
        raise Stop(Exit.FAILED, str(error)) from None
    except HelloRefused as error:
        raise Stop(Exit.MISMATCH, str(error)) from None
    except NotInThisBuild as error:
        raise Stop(Exit.USAGE, str(error)) from None
    except (DemoError, TransportError) as error:
        raise Stop(Exit.FAILED, str(error)) from None


@contextmanager
def _worker(endpoint: str | None, checkpoint: Path, terms: Terms) -> Iterator[Endpoint]:
    """The listener to play on: the one that is named, or that of a worker of our own."""
    if endpoint is not None:
        yield parse_endpoint(endpoint)
        return
    render.note(f"starting a worker on the checkpoint in {checkpoint}")
    started_s = time.monotonic()
    with worker_process(checkpoint, terms.receipt) as listener:
        render.note(f"ready after {time.monotonic() - started_s:.1f} s")
        yield listener


def _show(played: Played) -> None:
    counts: list[tuple[str, object]] = [
        ("rounds", played.n_rounds),
        ("rows", played.n_rows),
        ("drafts", played.n_drafts),
        *((kind.value, n) for kind, n in sorted(played.kinds.items())),
        ("reconnects", played.n_reconnects),
        *((f"status {status.name}", n) for status, n in sorted(played.statuses.items())),
    ]
    render.table(("what", "count"), counts)
    render.data("")
    split = {name: summary(values, (50, 99)) for name, values in _split(played).items()}
    render.table(
        ("time of a round", "p50 us", "p99 us", "max us"),
        [(name, s["p50"], s["p99"], s["max"]) for name, s in split.items()],
    )


def _facts(listener: Endpoint, terms: Terms, seed: int, played: Played) -> dict[str, Any]:
    split = {name: summary(values, (50, 99)) for name, values in _split(played).items()}
    return {
        "endpoint": str(listener),
        "worker_name": played.worker_name,
        "drafter_identity": terms.hello.drafter_identity.hex(),
        "seed": seed,
        "rounds": played.n_rounds,
        "rows": played.n_rows,
        "drafts": played.n_drafts,
        "reconnects": played.n_reconnects,
        "entries": {kind.name.lower(): n for kind, n in sorted(played.kinds.items())},
        "statuses": {status.name: n for status, n in sorted(played.statuses.items())},
        **{f"{name.replace(' ', '_')}_us": spread for name, spread in split.items()},
    }


def _split(played: Played) -> dict[str, list[float]]:
    return {
        "round trip": played.round_trip_us,
        "worker": played.worker_us,
        "wire": played.wire_us,
    }
