"""YAML to plain values, with the line of each: what a good error message needs.

Decides which YAML a configuration may use (one document of plain scalars, lists and mappings) and
bounds it. Refuses to know any key.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import yaml

MAX_NODES: Final = 10_000
"""Values of one file, each use of an alias counted anew: what an alias bomb runs into."""
MAX_DEPTH: Final = 8

_PLAIN_TAGS: Final = {
    f"tag:yaml.org,2002:{kind}"
    for kind in ("null", "bool", "int", "float", "str", "timestamp", "binary")
}

Key = tuple[str | int, ...]
"""Where a value stands: keys and list indexes from the top."""


class YamlError(Exception):
    """YAML that cannot be read as plain values; `line` counts from 1."""

    def __init__(self, line: int, key: Key, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.key = key
        self.reason = reason


@dataclass(slots=True)
class Document:
    """One YAML document: its value (lists as tuples) and the line of every key and list item."""

    value: Any = None
    lines: dict[Key, int] = field(default_factory=dict)

    def line(self, key: Key) -> int:
        """The line of `key`, or of the nearest part of it that stands in the file."""
        while key not in self.lines and key:
            key = key[:-1]
        return self.lines.get(key, 1)


def read_yaml(text: str) -> Document:
    """The one document in `text`, or YamlError."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return Document()
        reading = _Reading(loader)
        return Document(reading.value(node, ()), reading.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(line, (), f"not YAML: {said}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(line, (), f"not YAML: {error.reason}") from None
    except RecursionError:
        raise YamlError(1, (), f"nested deeper than {MAX_DEPTH} levels") from None


class _Reading:
    """Walks the node tree once, an alias as often as it is used."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self._n_nodes = 0
        self.lines: dict[Key, int] = {}

    def value(self, node: yaml.Node, key: Key) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(key, line)
        self._n_nodes += 1
        if self._n_nodes > MAX_NODES:
            raise YamlError(line, key, f"more than {MAX_NODES} values, aliases counted in full")
        if len(key) > MAX_DEPTH:
            raise YamlError(line, key, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self.value(item, (*key, i)) for i, item in enumerate(node.value))
        return self._scalar(node, key)

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name_node, value_node in node.value:
            line = name_node.start_mark.line + 1
            name = name_node.value if isinstance(name_node, yaml.ScalarNode) else None
            if not isinstance(name, str):
                raise YamlError(line, key, "expected a plain word for a key")
            if name in found:
                first = self.lines[(*key, name)]
                raise YamlError(line, (*key, name), f"stands twice, first in line {first}")
            self.lines[(*key, name)] = line
            found[name] = self.value(value_node, (*key, name))
        return found

    def _scalar(self, node: yaml.Node, key: Key) -> Any:
        line = node.start_mark.line + 1
        if node.tag not in _PLAIN_TAGS:
            raise YamlError(
                line, key, f"not YAML: tag {ascii(node.tag)[:80]} is not for plain values"
            )
        try:
            value: object = self._loader.construct_object(node)
        except (ValueError, OverflowError, LookupError, AttributeError, TypeError):
            # What the tag promised is not what the text holds: 2020-13-45, !!bool maybe
            text = ascii(node.value)[:80]
            raise YamlError(line, key, f"not YAML: {text} is no {node.tag[18:]}") from None
        return value
