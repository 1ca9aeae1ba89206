"""`dsparkctl config`: `dspark.yaml`, and the HELLO parameters of a checkpoint (§6.2)."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError

from dsparkctl.checkpoint.digest import digest_files
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.config import defaults
from dsparkctl.config.errors import ConfigError
from dsparkctl.config.files import read_receipt, write_whole
from dsparkctl.config.fleet import Fleet
from dsparkctl.config.hello import HelloParams
from dsparkctl.config.source import load_fleet
from dsparkctl.config.template import template
from dsparkctl.contract.identity import NO_MARKOV, drafter_identity

app = new_app("Write, check and print dspark.yaml and the HELLO parameters.")

ConfigPath = Annotated[
    Path, typer.Argument(metavar="[FILE]", envvar="DSPARK_CONFIG", help="The configuration.")
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The same, as elsewhere.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on one line.")]


@app.command()
def init(
    file: ConfigPath = defaults.CONFIG,
    config: ConfigOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented dspark.yaml with every key and its default."""
    path = config or file
    if path.exists() and not force:
        raise Stop(Exit.FAILED, f"{path}: exists already; --force replaces it")
    write_whole(path, template())
    if as_json:
        render.json_line({"written": str(path)})
    render.note(f"{path}: written; put your paths in, then run dsparkctl config validate {path}")


@app.command()
def show(
    file: ConfigPath = defaults.CONFIG, config: ConfigOption = None, as_json: Json = False
) -> None:
    """Print the configuration as it works, with every default filled in."""
    effective = load_fleet(config or file).model_dump(mode="json")
    if as_json:
        render.json_line(effective)
    else:
        render.data(yaml.safe_dump(effective, sort_keys=False).rstrip())


@app.command()
def validate(
    file: ConfigPath = defaults.CONFIG, config: ConfigOption = None, as_json: Json = False
) -> None:
    """Check a configuration; every problem is named with its line and key."""
    path = config or file
    try:
        load_fleet(path)
    except ConfigError as error:
        if as_json:
            problems = [{"line": p.line, "key": p.key, "reason": p.reason} for p in error.problems]
            render.json_line({"valid": False, "problems": problems})
        raise
    if as_json:
        render.json_line({"valid": True, "problems": []})
    else:
        render.data(f"{path}: valid")


@app.command()
def schema(as_json: Json = False) -> None:
    """Print the JSON schema of dspark.yaml, for editors."""
    found = Fleet.model_json_schema()
    if as_json:
        render.json_line(found)
    else:
        render.data(json.dumps(found, indent=2, ensure_ascii=False))


@app.command()
def hello(
    checkpoint: Annotated[Path, typer.Option(metavar="DIR", help="The checkpoint's folder.")],
    receipt: Annotated[Path, typer.Option(metavar="FILE", help="Its receipt.")],
    markov: Annotated[Path | None, typer.Option(metavar="FILE", help="The Markov cache.")] = None,
    max_slots: Annotated[int, typer.Option(help="Requests at a time.")] = defaults.MAX_SLOTS,
    max_rows_per_step: Annotated[
        int | None, typer.Option(help="Rows of one STEP; default: max_slots x window.")
    ] = None,
    max_model_len: Annotated[int, typer.Option(help="Tokens.")] = defaults.MAX_MODEL_LEN,
    as_json: Json = False,
) -> None:
    """Derive the HELLO parameters from a checkpoint and print them by the names of §6.2."""
    limits = {
        "max_slots": max_slots,
        "max_rows_per_step": max_rows_per_step,
        "max_model_len": max_model_len,
    }
    params = hello_of(checkpoint, receipt, markov, limits).model_dump(mode="json")
    if as_json:
        render.json_line(params)
    else:
        render.fields(params)


def hello_of(
    checkpoint: Path, receipt: Path, markov: Path | None, limits: dict[str, Any]
) -> HelloParams:
    identity = drafter_identity(read_receipt(receipt).files)
    markov_sha = bytes.fromhex(digest_files([markov])[0].sha256) if markov else NO_MARKOV
    shape = read_model_config(find_files(checkpoint))
    try:
        return HelloParams.from_checkpoint(
            shape, drafter_identity=identity, markov_identity=markov_sha, **limits
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or str(checkpoint)
        raise Stop(Exit.USAGE, f"{where}: {first['msg']}, got {first['input']}") from None
