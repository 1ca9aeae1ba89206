"""Our own distribution as a wheel, whichever way it runs here.

Decides between a source tree, from which `pip wheel` builds, and an installed distribution, whose
recorded files are packed again. Both give the same bytes for the same contents, since the digest of
a release rests on them.
"""

import base64
import csv
import hashlib
import io
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from dsparkctl import __version__
from dsparkctl.rollout.wheelhouse import OURS, WheelhouseError

BUILD_TIMEOUT_S: Final = 300
_EPOCH: Final = (2020, 1, 1, 0, 0, 0)
_LEFT_OUT: Final = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")
"""What an installer adds to `.dist-info`; RECORD is written anew."""


def source_tree() -> Path | None:
    """The folder of pyproject.toml when we run from a checkout."""
    top = Path(__file__).parents[2]
    return top if (top / "pyproject.toml").is_file() else None


def own_wheel(folder: Path) -> Path:
    """Our wheel, made in `folder`; WheelhouseError with the builder's last line otherwise."""
    tree = source_tree()
    if tree is not None:
        return _built(tree, folder)
    try:
        return _packed(distribution(OURS), folder)
    except PackageNotFoundError:
        raise WheelhouseError(
            f"{OURS} runs neither from its source tree nor installed: give --wheelhouse DIR"
        ) from None


def _built(tree: Path, folder: Path) -> Path:
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    run_pip([*argv, str(folder), str(tree)], BUILD_TIMEOUT_S)
    return next(folder.glob(f"{OURS}-{__version__}-*.whl"))


def run_pip(argv: list[str], timeout_s: float) -> None:
    """pip on this machine; WheelhouseError with its last word."""
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise WheelhouseError(
            f"pip was still at work after {timeout_s:g} s; {_OTHERWISE}"
        ) from None
    if ran.returncode:
        lines = [line for line in ran.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no word"]
        raise WheelhouseError(f"pip failed: {errors[-1][:300]}; {_OTHERWISE}")


_OTHERWISE: Final = "give --wheelhouse DIR, or release.wheelhouse, to do without an index"


def _packed(own: Distribution, folder: Path) -> Path:
    """The wheel whose installation the distribution is: its files but scripts and bytecode."""
    info = f"{OURS}-{own.version}.dist-info"
    contents: dict[str, bytes] = {}
    for file in own.files or ():
        name = file.as_posix()
        is_added = name.startswith(info) and file.name in _LEFT_OUT
        if name.startswith("..") or name.endswith(".pyc") or is_added:
            continue
        contents[name] = Path(str(own.locate_file(file))).read_bytes()
    if f"{info}/WHEEL" not in contents:
        raise WheelhouseError(f"{OURS} is not installed from a wheel: give --wheelhouse DIR")
    contents[f"{info}/RECORD"] = _record(contents, f"{info}/RECORD")
    path = folder / f"{OURS}-{own.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, contents[name])
    return path


def _record(contents: dict[str, bytes], name: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for at in sorted(contents):
        digest = base64.urlsafe_b64encode(hashlib.sha256(contents[at]).digest()).rstrip(b"=")
        rows.writerow([at, f"sha256={digest.decode()}", len(contents[at])])
    rows.writerow([name, "", ""])
    return text.getvalue().encode()
