"""docs/stats.md explains every key of STATS, and none that does not exist (R35)."""

import re

from tests.e2e.running import Client, running_worker
from tests.house.tree import ROOT


def test_the_reference_names_exactly_the_keys_that_a_worker_answers_with() -> None:
    text = (ROOT / "docs" / "stats.md").read_text(encoding="utf-8")
    named = {
        key
        for line in text.splitlines()
        if line.startswith("| `")
        for key in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    with running_worker("--drafter", "scripted") as worker, Client(worker.admin) as client:
        assert named == client.stats().keys()
