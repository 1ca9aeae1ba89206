"""Which files of a folder are the checkpoint.

`config.json`, `inference_config.json` and `exl3_moe_plan.json` where present, and the shards:
`model*.safetensors`, or, where a `*.safetensors.index.json` stands beside them, exactly those its
weight_map names. Every other file of the folder is ignored, by the loader and by the identity
(§6.7) alike, so that a README beside the weights changes nothing.
"""

from dataclasses import dataclass
from pathlib import Path

from dsparkctl.checkpoint.errors import wrong
from dsparkctl.checkpoint.strict_json import read_json_object

MAX_SHARDS = 4096

SETTINGS = ("config.json", "inference_config.json", "exl3_moe_plan.json")


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The files of one checkpoint; a file that is absent is None."""

    directory: Path
    config: Path | None
    inference_config: Path | None
    exl3_plan: Path | None
    shards: tuple[Path, ...]
    """Sorted by name, at least one."""

    @property
    def sources(self) -> tuple[Path, ...]:
        """Every file that is read for tensors or configuration: what the identity covers (§6.7)."""
        settings = (self.config, self.inference_config, self.exl3_plan)
        return tuple(path for path in settings if path is not None) + self.shards


def find_files(directory: Path) -> CheckpointFiles:
    """The checkpoint in `directory`; `CheckpointError` when there is none or a shard is missing."""
    try:
        entries = {path.name: path for path in directory.iterdir()}
    except OSError as error:
        raise wrong(directory, f"is no readable folder ({error.strerror or error})") from None
    for name, path in entries.items():
        # Passing over a pipe or a dangling link would quietly make another checkpoint of it.
        if (name in SETTINGS or is_shard(name)) and not path.is_file():
            raise wrong(path, "is not a regular file")
    names = {name: path for name, path in entries.items() if path.is_file()}
    if not names.keys() & {"config.json", "inference_config.json"}:
        raise wrong(directory, "holds neither config.json nor inference_config.json")
    indexes = sorted(name for name in names if name.endswith(".safetensors.index.json"))
    if len(indexes) > 1:
        raise wrong(directory, f"holds more than one index: {', '.join(indexes)}; keep one")
    if indexes:
        shards = _named_by_index(names[indexes[0]], names)
    else:
        shards = sorted(filter(is_shard, names))
    if not shards:
        raise wrong(directory, "holds no model*.safetensors")
    if len(shards) > MAX_SHARDS:
        raise wrong(directory, f"holds {len(shards)} shards, more than {MAX_SHARDS}")
    return CheckpointFiles(
        directory=directory,
        config=names.get("config.json"),
        inference_config=names.get("inference_config.json"),
        exl3_plan=names.get("exl3_moe_plan.json"),
        shards=tuple(names[name] for name in shards),
    )


def is_shard(name: str) -> bool:
    """Whether a file of this name holds tensors, where no index says otherwise."""
    return name.startswith("model") and name.endswith(".safetensors")


def _named_by_index(index: Path, names: dict[str, Path]) -> list[str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise wrong(index, "must map tensor names to shard names", at="weight_map")
    for tensor, shard in weight_map.items():
        if (
            not isinstance(shard, str)
            or not shard.endswith(".safetensors")
            or not shard.isprintable()
            or "/" in shard
            or "\\" in shard
        ):
            raise wrong(
                index,
                f"{ascii(tensor)[:120]} is said to lie in {ascii(shard)[:120]}:"
                " a shard is named by its plain file name",
                at="weight_map",
            )
        if shard not in names:
            raise wrong(index, f"names {shard}, which is not in the folder", at="weight_map")
    return sorted(set(weight_map.values()))
