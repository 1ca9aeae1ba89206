"""`dsparkctl bench`: a round measured by the worker's own program, and a round on paper.

Decides nothing: what is measured runs in torch, which the operator's side never reaches; the
formula is `budget`'s.
"""

from typing import Annotated

import typer

from dsparkctl.cli import render
from dsparkctl.cli.become import become
from dsparkctl.cli.budget import LIVE, Inputs, table
from dsparkctl.cli.group import new_app
from dsparkctl.cli.worker import AS_THEY_ARE

app = new_app("Measure this machine, or reckon with another.")


@app.callback()
def _top() -> None:
    pass


@app.command(context_settings=AS_THEY_ARE, add_help_option=False)
def round(context: typer.Context) -> None:
    """Time a round, part by part, beside its matrix products alone."""
    become("bench", "round", *context.args)


@app.command()
def budget(
    link_gbit: Annotated[float, typer.Option(metavar="G", min=0.001)] = LIVE.link_gbit,
    rtt_us: Annotated[float, typer.Option(metavar="US", min=0)] = LIVE.rtt_us,
    memory_gb_s: Annotated[
        float, typer.Option(metavar="GB/S", min=0.1, help="Of the worker's GPU.")
    ] = LIVE.memory_gb_s,
    memory_share: Annotated[
        float, typer.Option(metavar="SHARE", min=0.01, max=1, help="Of it that kernels reach.")
    ] = LIVE.memory_share,
    bits_experts: Annotated[float, typer.Option(metavar="B", min=1, max=32)] = LIVE.bits_experts,
    bits_head: Annotated[float, typer.Option(metavar="B", min=1, max=32)] = LIVE.bits_head,
    markov_cache: Annotated[bool, typer.Option(help="Markov rows are kept.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on one line.")] = False,
) -> None:
    """Reckon what a round costs at the live shape (§3, §8): ms = RTT + bytes over the link +
    weights over the memory.

    A floor with the numbers that are given; bench round measures what is on top.
    """
    inputs = Inputs(
        link_gbit=link_gbit, rtt_us=rtt_us, memory_gb_s=memory_gb_s, memory_share=memory_share,
        bits_experts=bits_experts, bits_head=bits_head, has_markov_cache=markov_cache,
    )  # fmt: skip
    costs = table(inputs)
    if as_json:
        render.json_line({"rounds": [one._asdict() for one in costs]})
        return
    head = ("round", "rows", "wire MB", "wire ms", "read MB", "draft ms", "ms")
    rows = [(one.name, str(one.n_rows), *(f"{value:.2f}" for value in one[2:])) for one in costs]
    render.table(head, rows)
