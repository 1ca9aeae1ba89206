"""The Pythons that matter on this host, and which dsparkctl each of them finds."""

from __future__ import annotations

import json

from dsparkctl.rollout.doctor.collector.tools import run

_PROBE = """
import importlib.util, json, sys
try:
    import ensurepip
    has_ensurepip = bool(ensurepip.version())
except Exception:
    has_ensurepip = False
has = lambda name: importlib.util.find_spec(name) is not None
print(json.dumps({"version": sys.version_info[:3], "has_venv": has("venv"),
                  "has_pip": has_ensurepip or has("pip")}))
"""

_OURS = """
import json, sys
sys.path[:0] = sys.argv[1:]
import dsparkctl
print(json.dumps({"version": dsparkctl.__version__, "contract": dsparkctl.CONTRACT_VERSION}))
"""


def interpreters(paths: list[str]) -> dict[str, object]:
    """Version and abilities of each; None where it does not run."""
    return {path: _json(["-I", "-c", _PROBE], path) for path in paths}


def installed(places: list[dict[str, str]]) -> dict[str, object]:
    """The versions at each `place`: a Python, with a folder of modules or without; None: none."""
    found = {}
    for one in places:
        extra = [one["folder"]] if one.get("folder") else []
        found[one["place"]] = _json(["-I", "-c", _OURS, *extra], one["python"])
    return found


def _json(argv: list[str], python: str) -> object:
    said = run([python, *argv], 20)
    if said.code:
        return None
    try:
        found: object = json.loads(said.out.splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return found
