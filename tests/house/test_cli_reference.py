"""docs/cli.md is what the commands themselves say."""

import subprocess
import sys

from tests.house.tree import ROOT


def test_the_cli_reference_is_the_commands_own_help() -> None:
    """In a process of its own: help wraps to the width that the environment names at import."""
    program = [sys.executable, "-m", "tests.house.cli_reference"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    reference = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert reference == done.stdout, "run python -m tests.house.cli_reference > docs/cli.md"
