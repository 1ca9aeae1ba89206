"""`dsparkctl conform-client`: a worker that does one wrong thing after another, and judges whatever
client connects.

Exit code 0 when nothing failed, 1 when anything did or nobody came.
"""

from pathlib import Path
from typing import Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.conform import terms_of
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.config.files import write_whole
from dsparkctl.conform import report
from dsparkctl.conform.client.stand import Stand
from dsparkctl.conform.finding import Level
from dsparkctl.contract.endpoint import EndpointError, parse_endpoint

app = new_app()


@app.command()
def conform_client(
    listen: Annotated[str, typer.Option(metavar="URL", help="Where the client will connect.")],
    hello: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its terms, as config hello --json prints.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Or: the checkpoint that it drafts with.")
    ] = None,
    receipt: Annotated[Path | None, typer.Option(metavar="FILE", help="Its receipt.")] = None,
    markov: Annotated[Path | None, typer.Option(metavar="FILE", help="Its Markov cache.")] = None,
    seconds: Annotated[float, typer.Option(metavar="S", min=1, max=86_400)] = 120.0,
    late: Annotated[
        float, typer.Option(metavar="S", min=0.01, max=60, help="Longer than its deadline.")
    ] = 1.0,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line.")] = False,
) -> None:
    """Be a worker that misbehaves, and judge what a client makes of it: PASS, FAIL or SKIP.

    Start this, then an engine with traffic: every act waits for the next STEP. The client's breaker
    and backoff take their time, so allow two minutes.
    """
    try:
        place = parse_endpoint(listen)
    except EndpointError as error:
        raise Stop(Exit.USAGE, str(error)) from None
    terms = terms_of(hello, checkpoint, receipt, markov).record()
    try:
        stand = Stand(terms, place.host, place.port, seconds=seconds, late_s=late)
    except OSError as error:
        raise Stop(Exit.FAILED, f"{place}: cannot listen: {error.strerror}") from None
    render.note(f"listening on tcp://{place.host}:{stand.port}")
    findings = []
    try:
        for found in stand.examine():
            findings.append(found)
            if not as_json:
                render.data(report.line(found))
    finally:
        stand.close()
    if junit is not None:
        write_whole(junit, report.junit(findings, "dsparkctl conform-client"))
    if as_json:
        render.json_line({"listen": str(place), **report.as_json(findings)})
    said = ", ".join(f"{n} {level}" for level, n in report.counts(findings).items() if n)
    if not stand.judge.n_steps:
        raise Stop(Exit.FAILED, f"no client sent a STEP within {seconds:g} s")
    if any(one.level is Level.FAIL for one in findings):
        raise Stop(Exit.FAILED, said)
    render.note(said)
