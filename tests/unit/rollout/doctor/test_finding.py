"""What `doctor` ends with (issue 5 §2): one exit code of `dsparkctl.exits` for all findings."""

import pytest

from dsparkctl.exits import Exit
from dsparkctl.rollout.doctor.finding import Finding, exit_code, fail, ok, warn

FINE = ok("x86host", "ssh", "")
GONE = fail("spark-a", "ssh", "no answer", "look")


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([FINE, warn("x86host", "mtu", "", "")], Exit.OK),
        ([FINE, fail("x86host", "mtu", "", "")], Exit.PREFLIGHT),
        ([GONE], Exit.SSH),
        ([FINE, GONE], Exit.PARTIAL),
        ([FINE, GONE, fail("x86host", "mtu", "", "")], Exit.PREFLIGHT),
        ([], Exit.OK),
    ],
)
def test_the_exit_code(findings: list[Finding], code: Exit) -> None:
    assert exit_code(findings) is code
