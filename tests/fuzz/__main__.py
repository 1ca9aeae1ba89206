"""Fuzz every parser: `python -m tests.fuzz [--inputs 1000000] [--target NAME] [--keep]`.

Each target runs in a process of its own, guided by coverage (atheris, on libFuzzer; `make fuzz`
installs it). A finding is another exception than the expected one, more than 10 s for one input,
more than 600 MB, or a growth of 64 MB between a fifth of the run and its end. It ends the command
with 1 and leaves the input in a file. --keep adds what was found to be new to the corpus.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
SLOW = {"wire": 5, "fleet": 10, "safetensors": 10, "model_config": 10}
"""Targets that get so many times fewer inputs."""
MAX_BYTES = 8192
MAX_GROWTH_BYTES = 64 << 20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def child(name: str, n_inputs: int, folders: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["dsparkctl"]):
        from tests.fuzz.targets import TARGETS
    target, n_done, early = TARGETS[name], 0, 0

    def one_input(data: bytes) -> None:
        nonlocal n_done, early
        n_done += 1
        target(data)
        if n_done == n_inputs // 5:
            early = resident_bytes()
        if n_done == n_inputs - 1:
            grown = resident_bytes() - early
            assert grown < MAX_GROWTH_BYTES, f"{grown} bytes of growth"

    flags = [f"-runs={n_inputs}", f"-max_len={MAX_BYTES}", "-timeout=10", "-rss_limit_mb=600",
             "-verbosity=0", f"-artifact_prefix={name}-"]  # fmt: skip
    atheris.Setup([sys.argv[0], *flags, *folders], one_input)
    atheris.Fuzz()


def run(name: str, n_inputs: int, *, keep: bool) -> int:
    """The exit code of one target's process; its new inputs go to a scratch folder, or stay."""
    from tests.fuzz.targets import TARGETS

    kept = CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        fresh, seeds = Path(scratch) / "new", Path(scratch) / "seeds"
        fresh.mkdir()
        seeds.mkdir()
        for number, data in enumerate(TARGETS[name].seeds()):
            (seeds / str(number)).write_bytes(data)
        run_one = [sys.executable, "-m", "tests.fuzz", "--child", name]
        folders = [str(fresh), str(kept), str(seeds)]
        run_one += ["--inputs", str(n_inputs), *folders]
        done = subprocess.run(run_one, capture_output=True, text=True, check=False)
        code = done.returncode
        if code:
            print(done.stdout + done.stderr)  # noqa: T201
        print(f"{name}: {n_inputs} inputs, {len([*fresh.iterdir()])} new, exit code {code}")  # noqa: T201
        if keep and not code:
            for path in sorted(fresh.iterdir(), key=lambda one: one.stat().st_size)[:40]:
                (kept / path.name[:16]).write_bytes(path.read_bytes())
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--target")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("folders", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.inputs, given.folders)
        return 0
    from tests.fuzz.targets import TARGETS

    names = [given.target] if given.target else [*TARGETS]
    weights = {name: 1 / SLOW.get(name, 1) for name in names}
    share = given.inputs / sum(weights.values())
    codes = [run(name, round(share * weights[name]) + 1, keep=given.keep) for name in names]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
