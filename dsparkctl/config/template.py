"""The commented `dspark.yaml` that `config init` writes; a test holds it against the model."""

from importlib.resources import files


def template() -> bytes:
    """The file's text; valid as it stands but for the paths, which a person puts in."""
    return files("dsparkctl.config").joinpath("template.yaml").read_bytes()
