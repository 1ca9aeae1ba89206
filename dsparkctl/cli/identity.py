"""`dsparkctl identity`: what a receipt says, whether files hold to it, a new one (§6.7, R41)."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dsparkctl.checkpoint.digest import Finding, State, digest_files, verify_files
from dsparkctl.checkpoint.files import find_files
from dsparkctl.cli import render
from dsparkctl.cli.exits import Exit, Stop
from dsparkctl.cli.group import new_app
from dsparkctl.config.files import read_receipt, write_whole
from dsparkctl.contract.identity import NO_MARKOV, drafter_identity
from dsparkctl.contract.receipt import Receipt, parse_digest, render_receipt

app = new_app("Receipts: compute, verify and write identities.")

ReceiptPath = Annotated[Path, typer.Argument(metavar="RECEIPT", help="A DSPARK_COPY_DONE.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on one line.")]


@app.command()
def receipt(
    path: ReceiptPath,
    markov: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The Markov cache to digest as well.")
    ] = None,
    expect: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="Exit 10 unless this is the identity.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute drafter_identity and markov_identity from a receipt."""
    expected = None if expect is None else _digest("--expect", expect)
    summary = _summary(read_receipt(path), markov)
    _show(summary, as_json)
    if expected not in (None, summary["drafter_identity"]):
        raise Stop(
            Exit.MISMATCH,
            f"{path}: drafter_identity is {summary['drafter_identity']}, expected {expected}",
        )


@app.command()
def verify(
    path: ReceiptPath,
    root: Annotated[Path, typer.Option(metavar="DIR", help="Where the extracted files lie.")],
    as_json: Json = False,
) -> None:
    """Hash every extracted file of a receipt and name those that are missing or differ."""
    listed = read_receipt(path).extracted_files
    if not root.is_dir():
        raise Stop(Exit.USAGE, f"{root}: no such folder; --root is where the files lie")
    if not listed:
        raise Stop(Exit.MISMATCH, f"{path}: extracted_files is empty, so nothing can be verified")
    with render.progress("verifying", sum(file.n_bytes or 0 for file in listed)) as tick:
        findings = verify_files(listed, root, progress=tick)
    if not _show_findings(findings, as_json):
        raise typer.Exit(Exit.MISMATCH)


@app.command()
def write(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The checkpoint's folder.")],
    out: Annotated[Path, typer.Option(metavar="RECEIPT", help="The receipt to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a receipt that exists.")] = False,
    as_json: Json = False,
) -> None:
    """Hash a checkpoint's own files and write a receipt of them, whole or not at all."""
    sources = find_files(directory).sources
    if out.resolve() in {source.resolve() for source in sources}:
        raise Stop(Exit.USAGE, f"{out}: belongs to the checkpoint; choose another --out")
    if out.exists() and not force:
        raise Stop(Exit.USAGE, f"{out}: exists; --force replaces it")
    with render.progress("hashing", sum(source.stat().st_size for source in sources)) as tick:
        files = digest_files(sources, progress=tick)
    made = Receipt(files=files, extracted_files=files)
    write_whole(out, render_receipt(made))
    _show(_summary(made, None), as_json)


def _digest(where: str, text: str) -> str:
    try:
        return parse_digest(text)
    except ValueError as error:
        raise Stop(Exit.USAGE, f"{where}: {error}") from None


def _summary(found: Receipt, markov: Path | None) -> dict[str, Any]:
    return {
        "drafter_identity": drafter_identity(found.files).hex(),
        "markov_identity": digest_files([markov])[0].sha256 if markov else NO_MARKOV.hex(),
        "files": [{"name": file.name, "sha256": file.sha256} for file in found.files],
    }


def _show(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        render.json_line(summary)
    else:
        render.fields({**summary, "files": len(summary["files"])})


def _show_findings(findings: tuple[Finding, ...], as_json: bool) -> bool:
    """Print them and say whether every file is what the receipt says."""
    bad = [finding for finding in findings if finding.state is not State.OK]
    if as_json:
        files = [{"name": f.name, "state": f.state.value, "detail": f.detail} for f in findings]
        render.json_line({"ok": not bad, "files": files})
    for finding in bad:
        render.error(f"{finding.name}: {finding.state.value}: {finding.detail}")
    if not as_json:
        render.data(f"{len(findings) - len(bad)} of {len(findings)} files match the receipt")
    return not bad
