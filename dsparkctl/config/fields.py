"""The kinds of values that `dspark.yaml` holds, and the strictness that all its sections share.

Decides how a value reads (paths, endpoints, names, addresses). Refuses to know which key holds it.
"""

import os
import re
from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
)

from dsparkctl.contract.endpoint import Endpoint, parse_endpoint

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Section(BaseModel):
    """Unknown keys are faults, and nothing is converted: what stands in the file is what counts."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def _path(value: Any, info: ValidationInfo) -> Path:
    """Relative paths are meant from the folder of the file that names them (context `folder`)."""
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("expected a path")
    folder = info.context["folder"] if info.context else Path()
    return Path(folder) / value


def _remote_path(value: Any) -> PurePosixPath:
    if isinstance(value, PurePosixPath):
        return value
    path = PurePosixPath(value) if isinstance(value, str) and value.isprintable() else None
    if path is None or not path.is_absolute() or len(path.parts) < 2 or ".." in path.parts:
        raise ValueError("expected an absolute path on the host")
    return path


def _listener(value: Any) -> Endpoint:
    if isinstance(value, Endpoint):
        return value
    if not isinstance(value, str):
        raise ValueError("expected an endpoint such as tcp://127.0.0.1:18630")
    endpoint = parse_endpoint(value)
    if endpoint.scheme != "tcp" or endpoint.bind is not None:
        raise ValueError(f"expected tcp://ADDR:PORT, which is how a worker listens, got {value}")
    return endpoint


def _data_listener(value: Any) -> Endpoint:
    endpoint = value if isinstance(value, Endpoint) else None
    if isinstance(value, str):
        endpoint = parse_endpoint(value)
    if endpoint is None or endpoint.bind is not None:
        raise ValueError(f"expected tcp://ADDR:PORT or o1tcp://ADDR:PORT, got {value}")
    if endpoint.scheme == "o1rdma" and endpoint.is_wildcard:
        raise ValueError(f"expected the address of an RDMA device, got {value}")
    return endpoint


def _http_address(value: Any) -> Endpoint:
    text = str(value) if isinstance(value, Endpoint) else f"tcp://{value}"
    endpoint = parse_endpoint(text) if isinstance(value, str | Endpoint) else None
    if endpoint is None or endpoint.scheme != "tcp" or endpoint.bind:
        raise ValueError(f"expected ADDR:PORT, got {value}")
    return endpoint


def _bare(endpoint: Endpoint) -> str:
    return str(endpoint).removeprefix("tcp://")


def _with_variables(value: Any, info: ValidationInfo) -> str:
    """`${VAR}` is replaced by the variable's value (context `env`, by itself the process's)."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("expected a text")
    given: Mapping[str, str] = (info.context or {}).get("env", os.environ)

    def value_of(found: re.Match[str]) -> str:
        if not given.get(found[1]):
            raise ValueError(f"the variable {found[1]} is not set")
        return given[found[1]]

    text = _VARIABLE.sub(value_of, value)
    if text.startswith("-") or not text.isprintable():
        raise ValueError("expected a text that does not begin with a dash")
    return text


def _address(value: Any) -> str:
    try:
        return str(IPv4Address(value if isinstance(value, str) else None))
    except ValueError:
        raise ValueError("expected an IPv4 address") from None


FilePath = Annotated[
    Path,
    PlainValidator(_path),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "description": "a path"}),
]
RemotePath = Annotated[
    PurePosixPath,
    PlainValidator(_remote_path),
    PlainSerializer(str, return_type=str),
    WithJsonSchema(
        {"type": "string", "pattern": "^/.+", "description": "an absolute path on the host"}
    ),
]
Listener = Annotated[
    Endpoint,
    PlainValidator(_listener),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^tcp://.*:[0-9]+$"}),
]
DataListener = Annotated[
    Endpoint,
    PlainValidator(_data_listener),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^(tcp|o1tcp|o1rdma)://.*:[0-9]+$"}),
]
HttpAddress = Annotated[
    Endpoint,
    PlainValidator(_http_address),
    PlainSerializer(_bare, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^.*:[0-9]+$", "description": "ADDR:PORT"}),
]
"""Where something is served over HTTP; kept as the endpoint of its socket."""
EnvText = Annotated[
    str,
    PlainValidator(_with_variables),
    WithJsonSchema({"type": "string", "minLength": 1, "description": "a text, ${VAR} allowed"}),
]
"""The only kind of value in which `${VAR}` means something."""
Address = Annotated[
    str,
    PlainValidator(_address),
    WithJsonSchema({"type": "string", "format": "ipv4", "description": "an IPv4 address"}),
]
HostName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
"""What this file calls a host."""
AccountName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")]
UnitName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,200}\.service$")
]
