"""Pages of the site that live elsewhere in the repository, so that nothing is written twice."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

TOP = Path(__file__).parents[1]
PAGES = {
    "contract.md": "dsparkctl/contract/CONTRACT.md",
    "architecture.md": "ARCHITECTURE.md",
    "benchmarks.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
}
PICTURES = {"transport.svg": "benchmarks/transport.svg"}
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them."""
    for page, source in PAGES.items():
        text = _LINK.sub(_relinked, (TOP / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    for picture, source in PICTURES.items():
        files.append(File.generated(config, picture, content=(TOP / source).read_bytes()))
    return files


def _relinked(found: re.Match[str]) -> str:
    """A link to a page of the site stays one; what the site does not hold is named only."""
    text, target = found[1], found[2]
    for page, source in PAGES.items():
        if target.endswith(Path(source).name) and target.endswith(source.rpartition("/")[2]):
            return f"[{text}]({page})"
    name = target.rpartition("/")[2]
    inside = (TOP / "docs" / name.partition("#")[0]).is_file() or name in PICTURES
    return f"[{text}]({name})" if inside else text
