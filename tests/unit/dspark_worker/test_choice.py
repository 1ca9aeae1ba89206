"""Which drafter serves, and what is said of it; torch is reached for only when asked."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dspark_worker.choice import choose_drafter
from dspark_worker.scripted import ScriptedDrafter
from dsparkctl.checkpoint.errors import CheckpointError
from dsparkctl.checkpoint.files import find_files
from dsparkctl.checkpoint.model_config import read_model_config
from dsparkctl.config.worker import WorkerSettings

GOLDEN = Path(__file__).parents[2] / "golden" / "drafter" / "a"
CONFIG = read_model_config(find_files(GOLDEN))


def settings(**given: Any) -> WorkerSettings:
    return WorkerSettings(checkpoint=GOLDEN, identity_from_files=True, **given)


def test_scripted_has_no_device_of_its_own() -> None:
    chosen = choose_drafter(settings(drafter="scripted"), CONFIG)
    assert isinstance(chosen.drafter, ScriptedDrafter)
    assert (chosen.device, chosen.dtype, chosen.kv_quant) == ("cpu", "none", "none")
    assert chosen.gpu_mem_bytes() == 0


@pytest.mark.parametrize(("given", "dtype"), [(None, "float32"), ("bfloat16", "bfloat16")])
def test_torch_on_the_cpu_computes_in_float32_unless_told_otherwise(
    given: str | None, dtype: str
) -> None:
    chosen = choose_drafter(settings(dtype=given), CONFIG)
    assert (chosen.drafter.backend, chosen.device, chosen.dtype) == ("torch", "cpu", dtype)
    # auto: v4_record_64 needs groups of 64, which heads of 32 have not.
    assert chosen.kv_quant == "none"


@pytest.mark.parametrize(("drafter", "module"), [("torch", "torch"), ("scripted", "numpy")])
def test_a_missing_package_is_one_line_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, drafter: str, module: str
) -> None:
    for name in [n for n in sys.modules if n.startswith("dspark_worker.")]:
        if name.startswith(("dspark_worker.model", "dspark_worker.scripted")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        CheckpointError, match=rf"needs {module}: pip install 'dsparkctl\[worker\]'"
    ):
        choose_drafter(settings(drafter=drafter), CONFIG)


def test_the_scripted_worker_never_reaches_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import dspark_worker.__main__, dspark_worker.scripted, dspark_worker.serve\n"
        "print('ok')"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr
