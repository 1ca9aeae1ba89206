"""The README tells the truth about the tree and the commands."""

import re

from tests.house.tree import ROOT, rendered

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tree_is_the_one_that_the_modules_own_sentences_make() -> None:
    block = re.search(r"```tree\n(.*?)\n```", README, re.DOTALL)
    assert block is not None
    assert block[1] == rendered(), "run python -m tests.house.tree and put its output there"


def test_ci_runs_the_two_verbs_of_the_readme_and_nothing_else() -> None:
    """Beside them it installs what tests need from the system, where it may."""
    commands = [
        line
        for line in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
        if line.startswith("make ")
    ]
    assert commands == ["make check", "make test"]
    assert all(command in README for command in commands)
