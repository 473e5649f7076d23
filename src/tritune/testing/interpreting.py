"""The worker process of `interpreter`: runs kernels in it until its pipe is closed."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import pickle
import sys
import traceback
import warnings
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import numpy
from triton.runtime.autotuner import Autotuner

from tritune.testing.launch import launch


def main(file: int) -> None:
    """Answer the requests that come through a pipe."""
    warnings.simplefilter("ignore")
    # Wrap-around, NaN and infinities are what tests are about.
    numpy.seterr(all="ignore")
    pipe = Connection(file)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send_bytes(pickle.dumps(_answer(pipe.recv_bytes())))


def _answer(request: bytes) -> tuple[str, Any]:
    try:
        source, grid, args, constants = pickle.loads(request)
        kernel = getattr(_module(source["module"], source["file"]), source["name"])
        while isinstance(kernel, Autotuner):  # the config is given
            kernel = kernel.fn
        return "", launch(kernel, grid, *args, **constants)
    except Exception:
        return traceback.format_exc(), None


@functools.cache
def _module(name: str, file: str | None) -> ModuleType:
    """Import a module by its name, or by its file if it is a script or cannot be found."""
    if name != "__main__":
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            if file is None:
                raise
    spec = importlib.util.spec_from_file_location(f"interpreted_{abs(hash(file))}", file or "")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(int(sys.argv[1]))
