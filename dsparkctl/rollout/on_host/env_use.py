"""Which VLLM_DSPARK_* variables the code that is installed on a Spark ever names; run there.

Takes {names, python, mount}: of each name the files below the engine's site-packages (vllm, its
plugins, ours) in which it stands. Bounded in files and bytes.
"""

import contextlib
import json
import os
import subprocess
import sys
from typing import Dict, List

MAX_FILES = 20_000
MAX_FILE_BYTES = 2 << 20
MAX_SHOWN = 3


def sites(python: str, mount: str) -> List[str]:
    found = [mount] if mount else []
    if python:
        program = "import sysconfig; print(sysconfig.get_path('purelib'))"
        argv = [python, "-I", "-c", program]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            found.append(subprocess.run(argv, capture_output=True, timeout=20).stdout.decode())
    return [site.strip() for site in found if site.strip()]


def sources(site: str) -> List[str]:
    """Python files of every package whose name speaks of vllm or dspark."""
    found: List[str] = []
    tops = sorted(os.listdir(site)) if os.path.isdir(site) else []
    for top in tops:
        if "vllm" not in top.lower() and "dspark" not in top.lower():
            continue
        for folder, _, names in os.walk(os.path.join(site, top)):
            found += [os.path.join(folder, name) for name in names if name.endswith(".py")]
    return found[:MAX_FILES]


def main() -> None:
    asked = json.loads(sys.argv[1])
    used: Dict[str, List[str]] = {name: [] for name in asked["names"]}
    for site in sites(asked["python"], asked["mount"]):
        for path in sources(site):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read(MAX_FILE_BYTES)
            except OSError:
                continue
            for name, places in used.items():
                if name in text and len(places) < MAX_SHOWN:
                    places.append(os.path.relpath(path, site))
    json.dump({"used": used}, sys.stdout)


if __name__ == "__main__":
    main()
