"""Run kernels in Triton's interpreter, in a process of its own, and compare.

Triton chooses when it is imported whether it interprets, so one process cannot do both.

The interpreter is not right about everything. Its bf16 arithmetic and `dot`, its rounding of
narrowing casts and, in Triton 3.7, its NaN rules in min, max and argmax are wrong: compute with
numpy or torch there.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from multiprocessing import Pipe
from typing import Any

import torch

from tritune.errors import TrituneError
from tritune.testing.launch import launch
from tritune.testing.rule import assert_agrees

#: The interpreter is slow; a worker silent for this long has hung.
ANSWER_SECONDS = 120


class InterpreterError(TrituneError):
    """Triton's interpreter cannot run a kernel."""


def assert_matches_interpreter(
    kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any
) -> list[torch.Tensor]:
    """Fail unless kernel and interpreter agree up to the order of sums; return the results."""
    found = launch(kernel, grid, *args, **constants)
    interpreted = interpret(kernel, grid, *args, **constants)
    for out, expected in zip(found, interpreted, strict=True):
        assert_agrees(out.cpu(), expected)
    return found


def interpret(
    kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any
) -> list[torch.Tensor]:
    """Return what `launch` would, from a run of the kernel in Triton's interpreter.

    The kernel is imported there by its name, so it has to be at the top of a module or script.
    """
    global _worker
    if _worker is None:
        _worker = _Interpreter()
        atexit.register(_worker.close)
    inner = kernel
    while not hasattr(inner, "__globals__"):
        inner = inner.fn
    source = {
        "module": inner.__module__,
        "file": inner.__globals__.get("__file__"),
        "name": inner.__name__,
    }
    error, tensors = _worker.run((source, grid, [_on_cpu(arg) for arg in args], constants))
    if error:
        raise InterpreterError(f"Triton's interpreter failed in {inner.__name__}:\n{error}")
    return list(tensors)


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value


class _Interpreter:
    """A process started with `TRITON_INTERPRET=1`, which serves until this one ends."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        environment = {
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]),
        }
        file = theirs.fileno()
        command = [sys.executable, "-m", "tritune.testing.interpreting", str(file)]
        self._process = subprocess.Popen(command, env=environment, pass_fds=[file])
        theirs.close()

    def run(self, request: Any) -> Any:
        # Plain pickle: multiprocessing's own would move torch storages into shared memory.
        self._pipe.send_bytes(pickle.dumps(request))
        if not self._pipe.poll(ANSWER_SECONDS):
            raise InterpreterError(f"the interpreter did not finish {request[0]['name']}")
        return pickle.loads(self._pipe.recv_bytes())

    def close(self) -> None:
        self._pipe.close()
        self._process.wait(timeout=10)


_worker: _Interpreter | None = None
