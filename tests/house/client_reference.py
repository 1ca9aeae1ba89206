"""The table of variables in docs/client.md, made of the table itself:
`python -m tests.house.client_reference`."""

from enum import StrEnum
from typing import Any

from dsparkctl.client.environment import PREFIX, TABLE


def rendered() -> str:
    rows = [
        f"| `{PREFIX}{v.name}` | {_default(v.default)} | {v.meaning.replace('|', chr(92) + '|')} |"
        for v in TABLE
    ]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def _default(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{int(value)}`"
    return f"`{value.value if isinstance(value, StrEnum) else f'{value:g}'}`"


if __name__ == "__main__":
    print(rendered())  # noqa: T201
