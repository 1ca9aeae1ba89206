"""`dsparkctl conform`: any worker against the contract, black-box, clause by clause.

Exit code 0 when nothing failed, 1 when anything did (a hang, a drop and a silence do), 10 when
something answers there and no answer has a DSP1 header.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from dsparkctl.cli import render
from dsparkctl.cli.asking import ask
from dsparkctl.cli.config import hello_of
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.cli.remote import fleet_of, reaching
from dsparkctl.config import defaults
from dsparkctl.config.files import read_whole, write_whole
from dsparkctl.config.hello import HelloParams
from dsparkctl.conform import report
from dsparkctl.conform.finding import Level
from dsparkctl.conform.line import Dial
from dsparkctl.conform.stream import open_stream
from dsparkctl.conform.subject import Subject
from dsparkctl.conform.suite import examine
from dsparkctl.contract.endpoint import Endpoint, EndpointError, parse_endpoint
from dsparkctl.net.dial import require_usable
from dsparkctl.net.transport import NotInThisBuild
from dsparkctl.rollout.host import HostError

app = new_app()

MAX_HELLO_BYTES = 64 << 10
RECEIPT = "DSPARK_COPY_DONE"


@app.command()
def conform(
    endpoint: Annotated[
        str, typer.Argument(metavar="ENDPOINT", help="Its data listener: tcp://HOST:PORT.")
    ],
    hello: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its terms, as config hello --json prints.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Or: the checkpoint that it serves.")
    ] = None,
    receipt: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Its receipt; DIR/{RECEIPT} by itself.")
    ] = None,
    markov: Annotated[Path | None, typer.Option(metavar="FILE", help="Its Markov cache.")] = None,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, max=10**7)] = 2000,
    fuzz: Annotated[int, typer.Option(metavar="N", min=1, max=10**7)] = 1000,
    seed: Annotated[int, typer.Option(metavar="N", help="Replays a run.")] = 1,
    timeout: Annotated[float, typer.Option(metavar="S", min=0.05, max=600)] = 5.0,
    via: Annotated[
        str | None, typer.Option("--via", metavar="HOST", help="Through this host's SSH.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="It serves no engine: do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line.")] = False,
) -> None:
    """Examine a worker: PASS, FAIL, INFO (a choice that the contract leaves) or SKIP, each with
    its § and with what was sent and what came.

    It takes the worker's data listener over and drops every window: never run it beside an engine.
    """
    target, terms = _endpoint(endpoint), terms_of(hello, checkpoint, receipt, markov)
    if via is not None and target.scheme != "tcp":
        raise Stop(Exit.USAGE, f"--via: only for tcp://, not for {target}")
    if not yes:  # connecting alone closes an engine's connection (§7.5, R37)
        lost = f"An engine that drafts on {target} loses its connection and every window. Go on?"
        ask(lost, "nothing was sent")
    with _dialling(target, via) as dial:
        on = Subject(
            dial, terms.record(), seed=seed, timeout_s=timeout, is_stream=target.scheme == "tcp"
        )
        findings = []
        for found in examine(on, n_rounds=rounds, n_fuzz=fuzz):
            findings.append(found)
            if not as_json:
                render.data(report.line(found))
    if junit is not None:
        write_whole(junit, report.junit(findings, f"dsparkctl conform {target}"))
    if as_json:
        render.json_line({"endpoint": str(target), "seed": seed, **report.as_json(findings)})
    said = ", ".join(f"{n} {level}" for level, n in report.counts(findings).items() if n)
    if not on.n_replies and on.n_other:
        raise Stop(Exit.MISMATCH, f"{target}: what answers there does not speak DSP1")
    if any(one.level is Level.FAIL for one in findings):
        raise Stop(Exit.FAILED, f"{target}: {said} (seed {seed})")
    render.note(f"{target}: {said}")


def _endpoint(text: str) -> Endpoint:
    try:
        found = parse_endpoint(text)
    except EndpointError as error:
        raise Stop(Exit.USAGE, str(error)) from None
    if found.is_wildcard or not found.port:
        raise Stop(Exit.USAGE, f"{text}: expected the host and port of a data listener")
    try:
        require_usable(found)
    except NotInThisBuild as error:
        raise Stop(Exit.USAGE, str(error)) from None
    return found


def terms_of(
    hello: Path | None, checkpoint: Path | None, receipt: Path | None, markov: Path | None
) -> HelloParams:
    if (hello is None) == (checkpoint is None):
        raise Stop(Exit.USAGE, "expected --hello FILE or --checkpoint DIR, one of them")
    if checkpoint is not None:
        return hello_of(checkpoint, receipt or checkpoint / RECEIPT, markov, {})
    assert hello is not None
    try:
        given = json.loads(read_whole(hello, max_bytes=MAX_HELLO_BYTES))
        if isinstance(given, dict) and isinstance(given.get("tap_layer_ids"), list):
            given["tap_layer_ids"] = tuple(given["tap_layer_ids"])
        return HelloParams.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Stop(Exit.USAGE, f"{hello}: {where}: {first['msg']}") from None
    except ValueError as error:
        raise Stop(Exit.USAGE, f"{hello}: no JSON: {error}") from None


@contextmanager
def _dialling(target: Endpoint, via: str | None) -> Iterator[Dial]:
    if via is None:
        yield partial(open_stream, target)
        return
    known = defaults.CONFIG.exists()
    with reaching(fleet_of(None) if known else None) as hosts:
        host = hosts[via]

        def through(timeout_s: float) -> socket.socket:
            try:
                return host.connect(target.host, target.port, timeout_s=timeout_s)
            except HostError as error:
                raise OSError(str(error)) from None

        yield through
