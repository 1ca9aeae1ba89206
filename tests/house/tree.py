"""The README's tree, made of the modules' own first sentences: `python -m tests.house.tree`."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

PACKAGES = ("dsparkctl", "worker/dspark_worker")

_NAME_COLUMNS = 28


def rendered() -> str:
    """Both packages, a line a module: its name, and what its docstring says first."""
    return "\n".join(line for package in PACKAGES for line in _folder(ROOT / package, package, 0))


def _folder(folder: Path, shown: str, depth: int) -> list[str]:
    lines = [_line(f"{shown}/", folder / "__init__.py", depth)]
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.is_dir() and (path / "__init__.py").exists():
            lines += _folder(path, path.name, depth + 1)
        elif path.suffix == ".py" and path.name != "__init__.py":
            lines.append(_line(path.name, path, depth + 1))
    return lines


def _line(name: str, module: Path, depth: int) -> str:
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    first = re.split(r"(?<=[.?])\s", " ".join(text.split("\n\n")[0].split()))[0]
    return f"{'  ' * depth + name:<{_NAME_COLUMNS}} {first.rstrip('.:;')}"


if __name__ == "__main__":
    print(rendered())  # noqa: T201 -- this program's purpose
