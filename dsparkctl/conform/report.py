"""Findings as text for a person, as JSON, and as JUnit XML for whoever collects test results."""

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as Xml

from dsparkctl.conform.finding import Finding, Level


def line(found: Finding) -> str:
    """One line; what was sent and what came stand there where they say something."""
    text = f"{found.level:4}  {found.clause:12}  {found.what}"
    if found.level is Level.FAIL:
        return f"{text}: sent {found.sent or 'nothing'}; came {found.came}"
    return f"{text}: {found.came}" if found.came else text


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    """How many of each level, by its name."""
    return {level.value: sum(one.level is level for one in findings) for level in Level}


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Everything, under the names of `Finding`."""
    rows = [
        {
            "level": one.level.value,
            "clause": one.clause,
            "what": one.what,
            "sent": one.sent,
            "came": one.came,
        }
        for one in findings
    ]
    return {"counts": counts(findings), "findings": rows}


def junit(findings: Sequence[Finding], name: str) -> bytes:
    """A `testsuite`; an INFO is a test that passed and has something to say."""
    found = counts(findings)
    suite = Xml.Element(
        "testsuite",
        name=name,
        tests=str(len(findings)),
        failures=str(found[Level.FAIL]),
        skipped=str(found[Level.SKIP]),
    )
    for one in findings:
        case = Xml.SubElement(suite, "testcase", classname=one.clause, name=one.what)
        match one.level:
            case Level.FAIL:
                Xml.SubElement(case, "failure", message=one.came).text = f"sent: {one.sent}"
            case Level.SKIP:
                Xml.SubElement(case, "skipped", message=one.came)
            case _ if one.came:
                Xml.SubElement(case, "system-out").text = one.came
    data: bytes = Xml.tostring(suite, encoding="utf-8", xml_declaration=True)
    return data
