"""Lets vLLM's second model runner start without a GPU: Triton gets a "cpu" backend that is active.

The runner insists on Triton, whose PyPI build has no CPU backend. With TRITON_INTERPRET=1 kernels
run as Python, so the backend is never asked to compile; it only has to be there before vLLM looks.
Python imports this file at start, in every process whose PYTHONPATH names the folder.
"""

from types import SimpleNamespace

from triton.backends import backends


class _Driver:
    @staticmethod
    def is_active() -> bool:
        return True


backends["cpu"] = SimpleNamespace(driver=_Driver, compiler=None)
