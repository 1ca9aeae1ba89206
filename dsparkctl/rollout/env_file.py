"""The client's variables as a file (§10, R40): what systemd, docker and a shell all read alike.

Decides the variables and their text from `dspark.yaml`, and reads such a file back. Pure. Values
hold no blank, quote or dollar, so that the three readers cannot differ.
"""

import re
from collections.abc import Mapping
from typing import Final

from dsparkctl.config.fleet import Fleet
from dsparkctl.config.policy import PolicySettings
from dsparkctl.rollout.render import RenderError

PREFIX: Final = "VLLM_DSPARK_REMOTE_"
_HEAD: Final = """\
# Written by dsparkctl from the operator's dspark.yaml; a deploy replaces it.
# systemd: EnvironmentFile=   docker: --env-file   a shell: set -a; . this file; set +a
"""
_LINE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:/?=@%+\[\]-]*")
_NAMES: Final = {"asynchronous": "ASYNC"}
"""Keys of the policy section whose variable is called otherwise."""


def variables(fleet: Fleet, identity: str, markov: str | None) -> dict[str, str]:
    """Name to text; digests are hex. RenderError when the file does not say where to dial."""
    endpoint = fleet.engine_endpoint()
    if endpoint is None:
        raise RenderError(
            "links: missing; expected a link whose host is rank 0's (engine.ranks[0])"
        )
    found = {"ENDPOINT": str(endpoint), "IDENTITY": identity}
    if markov is not None:
        found["MARKOV_IDENTITY"] = markov
    for key in PolicySettings.model_fields:
        value = getattr(fleet.policy, key)
        if value is not None:
            found[variable_of(key)] = _text(value)
    return {PREFIX + name: _checked(name, text) for name, text in found.items()}


def variable_of(key: str) -> str:
    """The variable, without its prefix, of a key of the policy section."""
    return _NAMES.get(key, key.upper())


def write(values: Mapping[str, str]) -> bytes:
    """The file."""
    return (_HEAD + "".join(f"{name}={text}\n" for name, text in values.items())).encode()


def read(text: str) -> dict[str, str]:
    """The variables of a file that `write` or a person wrote; other lines are passed over."""
    found = (_LINE.fullmatch(line.strip().removeprefix("export ")) for line in text.splitlines())
    return {line[1]: line[2].strip("'\"") for line in found if line is not None}


def _text(value: object) -> str:
    match value:
        case bool():
            return str(int(value))
        case float():
            return f"{value:.9f}".rstrip("0").rstrip(".")
        case _:
            return str(value)


def _checked(name: str, text: str) -> str:
    if not _PLAIN.fullmatch(text):
        raise RenderError(f"{PREFIX}{name}: {text!a}: expected no blank, quote or dollar")
    return text
