"""docs/client.md names every variable and every outcome, and none that does not exist (R40)."""

import re

from dsparkctl.client.counters import Counters
from dsparkctl.client.fallback import Outcome
from tests.house.client_reference import rendered
from tests.house.tree import ROOT

TEXT = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")


def test_the_table_of_variables_is_the_table_that_the_client_reads_by() -> None:
    table = re.search(r"<!-- python .*? -->\n(.*?)\n<!-- end -->", TEXT, re.DOTALL)
    assert table is not None
    assert table[1] == rendered()


def test_the_table_of_outcomes_names_each_with_its_counter() -> None:
    named = re.findall(r"^\| ([A-Z_]+) \| `(\w+)` \|", TEXT, re.MULTILINE)
    assert named == [(outcome.name, outcome.counter) for outcome in Outcome]
    assert {counter for _, counter in named} < Counters(5).snapshot().keys()
