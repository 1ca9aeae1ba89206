"""`dsparkctl simulate`: both sides under every fault, on simulated time, seed by seed."""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.simulation.report import described, results, summed
from dsparkctl.simulation.run import ROUNDS, Result

app = new_app()

_SEEDS = re.compile(r"([0-9]{1,12}):([0-9]{1,12})", re.ASCII)


def _range(text: str) -> range:
    """A:B without B."""
    match = _SEEDS.fullmatch(text)
    seeds = range(int(match[1]), int(match[2])) if match else range(0)
    if not seeds:
        raise Stop(Exit.USAGE, f"--seeds: expected A:B with A below B, e.g. 1:4, got {text!a}")
    return seeds


@app.command()
def simulate(
    seeds: Annotated[
        str,
        typer.Option("--seeds", metavar="A:B", help="Run seeds A to B, B excluded: 1:4 is three."),
    ],
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, max=10_000_000, help="Engine rounds of a seed.")
    ] = ROUNDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the last line as one object.")
    ] = False,
) -> None:
    """Torture rank 0's client and the worker's desk on simulated time.

    Every fault that a link, a worker or a Spark can have falls by chance; after each round all
    that the contract promises is checked. A seed replays exactly. Exits 1 when an invariant is
    broken, with the command that shows it again.
    """
    report = summed(_told(results(_range(seeds), rounds), rounds))
    if as_json:
        render.json_line(report.fields())
    else:
        render.data(report.line())
    if report.failures:
        raise Stop(Exit.FAILED, f"{len(report.failures)} of {report.n_seeds} seeds are broken")


def _told(found: Iterable[Result], n_rounds: int) -> Iterator[Result]:
    for result in found:
        if result.failure is not None:
            render.error(described(result.failure, n_rounds))
        yield result
