"""`dsparkctl bench`: measured by the worker's own program, which then is the process.

Decides nothing: what is measured runs in torch, which the operator's side never reaches.
"""

import typer

from dsparkctl.cli.become import become
from dsparkctl.cli.group import new_app
from dsparkctl.cli.worker import AS_THEY_ARE

app = new_app("Measure this machine.")


@app.callback()
def _top() -> None:
    pass


@app.command(context_settings=AS_THEY_ARE, add_help_option=False)
def round(context: typer.Context) -> None:
    """Time a round, part by part, beside its matrix products alone."""
    become("bench", "round", *context.args)
