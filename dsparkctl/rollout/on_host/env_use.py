"""Which VLLM_DSPARK_* variables the code that is installed on a Spark ever names.

Run there as root, by any Python; inside a container by the container's, where the engine's files
are. Takes {names, python, mount (folders, as in PYTHONPATH), pids}: of each name the files of vllm,
of its plugins and of ours in which it stands, and the variables of the installed client's own
table. Reads sources and runs none of them; bounded in files and bytes.
"""

import ast
import contextlib
import glob
import json
import os
import re
import subprocess
import sys
from typing import Any, Dict, List, Optional, Tuple

MAX_FILES = 20_000
MAX_FILE_BYTES = 2 << 20
MAX_SHOWN = 3
TABLE = ("dsparkctl", "client", "environment.py")
ASK = """
import importlib.util, json, sys, sysconfig
found = {"sites": [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")], "path": sys.path}
spec = importlib.util.find_spec("vllm")
found["vllm"] = list(spec.submodule_search_locations or ()) if spec else []
print(json.dumps(found))
"""
"""Asked of the engine's own Python: where it would find vllm (an editable one lies elsewhere)."""


def asked_of(python: str) -> Dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        argv = [python, "-I", "-c", ASK]
        done = subprocess.run(argv, capture_output=True, timeout=30).stdout
        found = json.loads(done)
        if isinstance(found, dict):
            return found
    return {"sites": [], "path": [], "vllm": []}


def mapped(pids: List[int]) -> Tuple[List[str], List[str]]:
    """Folders of packages, and a vllm beside them, from which running processes have libraries."""
    sites, packages = [], []
    for pid in pids:
        for line in text(f"/proc/{pid}/maps").splitlines():
            path = line.partition("/")[1] + line.partition("/")[2]
            site = re.match(r"(/.+?/(?:site|dist)-packages)/", path)
            if site:
                sites.append(site[1])
            elif "/vllm/" in path:
                packages.append(path[: path.index("/vllm/") + len("/vllm")])
    return list(dict.fromkeys(sites)), list(dict.fromkeys(packages))


def text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FILE_BYTES)
    except OSError:
        return ""


def plugins(site: str) -> List[str]:
    """Top packages that any distribution offers as a plugin of vllm, by its entry points."""
    tops = []
    for path in sorted(glob.glob(os.path.join(glob.escape(site), "*-info", "entry_points.txt"))):
        section = ""
        for line in text(path).splitlines():
            line = line.strip()
            if line.startswith("["):
                section = line.strip("[]")
            elif section.startswith("vllm.") and "=" in line:
                tops.append(line.split("=", 1)[1].split(":")[0].strip().split(".")[0])
    return tops


def packages(site: str) -> List[str]:
    """Every package or module whose name speaks of vllm or dspark, and every plugin."""
    tops = sorted(os.listdir(site)) if os.path.isdir(site) else []
    named = [top for top in tops if "vllm" in top.lower() or "dspark" in top.lower()]
    also = plugins(site)
    named += [top for top in tops if top.partition(".py")[0] in also and top not in named]
    return [os.path.join(site, top) for top in named if not top.endswith("-info")]


def sources(package: str) -> List[str]:
    if package.endswith(".py"):
        return [package]
    return [
        os.path.join(folder, name)
        for folder, _, names in sorted(os.walk(package))
        for name in sorted(names)
        if name.endswith(".py")
    ]


def table(sites: List[str]) -> Optional[List[str]]:
    """The names that the installed client knows, without their prefix; None: there is no client
    there, or nothing that can be read as its table."""
    path = next((at for at in (os.path.join(site, *TABLE) for site in sites) if text(at)), None)
    if path is None:
        return None
    with contextlib.suppress(SyntaxError, ValueError):
        calls = [
            node
            for node in ast.walk(ast.parse(text(path)))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "Variable"
        ]
        firsts = [call.args[0] for call in calls if call.args]
        names = [one.value for one in firsts if isinstance(one, ast.Constant)]
        return [name for name in names if isinstance(name, str)] or None
    return None


def places(asked: Dict[str, Any]) -> Tuple[List[str], List[str]]:
    """Folders of packages, and the packages to read, each once."""
    told = asked_of(asked.get("python") or sys.executable)
    sites = (asked.get("mount") or "").split(os.pathsep)
    sites += told["sites"] + [at for at in told["path"] if at.endswith("-packages")]
    more, beside = mapped(asked.get("pids") or [])
    sites += more
    sites = list(dict.fromkeys(os.path.realpath(site) for site in sites if site))
    found = [package for site in sites for package in packages(site)]
    found += told["vllm"] + beside
    return sites, list(dict.fromkeys(map(os.path.realpath, found)))


def main() -> None:
    asked = json.loads(sys.argv[1])
    sites, read = places(asked)
    files = [(package, path) for package in read for path in sources(package)]
    used: Dict[str, List[str]] = {name: [] for name in asked["names"]}
    for package, path in files[:MAX_FILES]:
        held = text(path)
        for name, shown in used.items():
            if name in held and len(shown) < MAX_SHOWN:
                shown.append(os.path.relpath(path, os.path.dirname(package)))
    answer = {"used": used, "table": table(sites), "has_vllm": any(
        os.path.basename(package) == "vllm" for package in read
    ), "is_cut": len(files) > MAX_FILES}  # fmt: skip
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
