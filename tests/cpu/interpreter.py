"""The worker of `oracle.interpret`: runs kernels in the interpreter until its pipe is closed."""

from __future__ import annotations

import importlib
import pickle
import sys
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

import numpy

from tests.cpu.oracle import launch


def _answer(request: bytes) -> tuple[str, Any]:
    module, name, grid, args, constants = pickle.loads(request)
    try:
        kernel = getattr(importlib.import_module(module), name)
        return "", launch(kernel, grid, *args, **constants)
    except Exception:
        return traceback.format_exc(), None


def main() -> None:
    warnings.simplefilter("ignore")
    # Wrap-around, NaN and infinities are what the tests are about.
    numpy.seterr(all="ignore")
    requests = Connection(int(sys.argv[1]), writable=False)
    answers = Connection(int(sys.argv[2]), readable=False)
    while True:
        try:
            request = requests.recv_bytes()
        except EOFError:
            return
        answers.send_bytes(pickle.dumps(_answer(request)))


if __name__ == "__main__":
    main()
