"""Observations that are as they should be; a test spoils one of them."""

from pathlib import Path
from typing import Any

from dsparkctl.config.fleet import Fleet
from dsparkctl.config.source import parse_fleet
from dsparkctl.rollout.doctor.finding import Finding
from dsparkctl.rollout.doctor.observations import Seen
from dsparkctl.rollout.doctor.part import Part, part_of

YAML = """
version: 1
hosts:
  x86host: {}
  spark-a: {}
  spark-b: {}
links:
  - {host: spark-a, bind: 10.202.28.2, peer: 10.202.28.1, mtu: 9000, rate_gbit: 10.0}
worker:
  host: x86host
  checkpoint: /srv/dspark/checkpoint
  receipt: /srv/dspark/DSPARK_COPY_DONE
  device: cuda:0
  listen: tcp://10.202.28.1:18620
  admin: [tcp://127.0.0.1:18630, tcp://10.202.28.1:18630]
engine:
  kind: venv
  ranks: [spark-a, spark-b]
  python: /opt/vllm/bin/python
"""


def fleet(**replaced: str) -> Fleet:
    """The fleet, with texts of the file replaced: `fleet(cuda_0="cpu")` is for `cuda:0`."""
    text = YAML
    for old, new in replaced.items():
        assert old.replace("_", ":") in text or old in text
        text = text.replace(old if old in text else old.replace("_", ":"), new)
    return parse_fleet(text.encode(), Path("/etc/dspark.yaml"))


def worker(**replaced: str) -> Part:
    return part_of(fleet(**replaced), "x86host")


def spark(**replaced: str) -> Part:
    return part_of(fleet(**replaced), "spark-a")


def seen(**parts: Any) -> Seen:
    """What a collector sends, with nothing but these parts."""
    return Seen.model_validate({"clock_s": 0.0, "python": (3, 12, 3), "is_root": True, **parts})


def line(finding: Finding) -> str:
    """As a person reads it."""
    todo = f" -> {finding.todo}" if finding.todo else ""
    return f"{finding.level} {finding.host} {finding.check}: {finding.saw}{todo}"


def lines(found: Any) -> list[str]:
    return [line(one) for one in found]
