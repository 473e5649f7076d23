"""What Python runs when it starts, in the children of a program under `tritune run`.

Stands before the `sitecustomize` that a machine may have, and runs that too. Whatever goes wrong
with tritune here, the process goes on without it.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from types import ModuleType


def _enable(torch: ModuleType) -> Callable[[], None]:
    with contextlib.suppress(Exception):
        from tritune.integrations import enable_all

        return enable_all().disable
    return lambda: None


def _run_other() -> None:
    """Run the `sitecustomize` that Python would have found without this one."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


# Children find it in the environment; this process has no use for it any more.
sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__)]
with contextlib.suppress(Exception):
    from tritune.integrations.import_hook import when_imported

    when_imported("torch", _enable)
_run_other()
