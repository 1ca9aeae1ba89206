"""Names beside the numbers of a message's JSON: codes and flags that a person wants to read (§9).

Decides only which key each name stands under. They are all at the top, so that the nested dicts
hold nothing but the wire's own fields.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from dsparkctl.contract import codes
from dsparkctl.contract.codes import EntryStatus, FrameStatus, Op, PayloadKind, SampleMode


def name_of(names: type[IntEnum], value: int) -> str | None:
    """The code's name, or None for a number that is no code."""
    return names(value).name if value in names.__members__.values() else None


def flag_names(value: int, names: Mapping[str, int]) -> list[str]:
    """The names of the bits that are set; a bit without a name is left out."""
    return [name for name, bit in names.items() if value & bit]


def unknown_flags(field: str, value: int, names: Mapping[str, int]) -> list[str]:
    """At most one line: which bits of `field` the contract does not name."""
    unknown = value & ~sum(names.values())
    return [f"{field} has unknown bits 0x{unknown:x} (R27)"] if unknown else []


def names_in(form: Mapping[str, Any]) -> dict[str, Any]:
    """The extra keys of a decoded message; an unknown code is null."""
    header = form["header"]
    found: dict[str, Any] = {
        "op_name": name_of(Op, header["op"]),
        "status_name": name_of(FrameStatus, header["status"]),
    }
    if "hello" in form:
        hello = form["hello"]
        found["payload_kind_name"] = name_of(PayloadKind, hello["payload_kind"])
        found["sample_mode_name"] = name_of(SampleMode, hello["sample_mode"])
    if "hello_reply" in form:
        capabilities = form["hello_reply"]["capabilities"]
        found["capabilities_names"] = flag_names(capabilities, codes.CAPABILITY_NAMES)
    if "step_header" in form:
        flags = form["step_header"]["step_flags"]
        found["step_flags_names"] = flag_names(flags, codes.STEP_FLAG_NAMES)
        found["req_flags_names"] = [
            flag_names(entry["req_flags"], codes.REQ_FLAG_NAMES) for entry in form["entries"]
        ]
    if "reply_header" in form:
        flags = form["reply_header"]["reply_flags"]
        found["reply_flags_names"] = flag_names(flags, codes.REPLY_FLAG_NAMES)
        found["req_status_names"] = [name_of(EntryStatus, s["status"]) for s in form["req_status"]]
    return found
