"""One performance of the demo: a worker, the engine, and what came of it as plain values.

Decides that the demo's own worker starts first: it and this process then import torch at the same
time. Refuses to know how the result is shown.
"""

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from dsparkctl.demo.options import Options, require_sense
from dsparkctl.demo.outage import Outage
from dsparkctl.demo.terms import terms_of
from dsparkctl.demo.worker_process import Worker, worker_process


def perform(options: Options, note: Callable[[str], None]) -> dict[str, Any]:
    """The report, in the order of its JSON; `note` is told what goes on.

    OptionError, WorkerDied, SettingsError, TermsError, CheckpointError and their like are one line
    each. A worker that cannot be reached, or does not want this client, is no error.
    """
    require_sense(options)
    terms = terms_of(options.checkpoint)
    worker: Worker | None = None
    with ExitStack() as stack:
        endpoint = options.endpoint
        if endpoint is None:
            note(f"starting a worker on the checkpoint in {options.checkpoint}")
            worker = stack.enter_context(
                worker_process(
                    options.checkpoint,
                    terms.receipt,
                    transport=options.transport,
                    meanwhile=_import_run,
                )
            )
            endpoint = worker.endpoint
        from dsparkctl.demo import run  # torch: a worker of our own starts meanwhile

        weights = run.prepare(options.checkpoint)
        note(f"{options.requests} requests of {options.n_tokens} tokens, drafts by {endpoint}")
        outage = Outage(worker if options.shows_outage else None)
        played = run.play(options, terms, weights, endpoint, outage)
    return run.facts(options, played)


def _import_run() -> None:
    import_module("dsparkctl.demo.run")
