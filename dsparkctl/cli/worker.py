"""`dsparkctl worker`: hands every argument to the worker's own program, which then is the process.

Decides nothing about them, `--help` included: the worker knows its options, and needs no typer.
"""

import typer

from dsparkctl.cli.become import become
from dsparkctl.cli.group import new_app

app = new_app("Serve drafts, or replay a recorded case.")

AS_THEY_ARE = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}


@app.command(context_settings=AS_THEY_ARE, add_help_option=False)
def serve(context: typer.Context) -> None:
    """Listen for the engine and draft."""
    become("serve", *context.args)


@app.command(context_settings=AS_THEY_ARE, add_help_option=False)
def replay(context: typer.Context) -> None:
    """Run a recorded case as serving would."""
    become("replay", *context.args)
