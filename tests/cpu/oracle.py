"""Run a kernel on the CPU backend and, in another process, in Triton's interpreter.

`launch` runs the compiled kernel on copies of its tensors and gives the copies back; `interpret`
does the same with Triton's own interpreter, which cannot live in this process because Triton
chooses at import. The worker is started at the first use and serves the whole test session.

The interpreter is not an oracle for everything: its bf16 arithmetic and `dot`, its rounding of
narrowing casts and, in Triton 3.7, its NaN rules in min, max and argmax are wrong. There the tests
compute with numpy or torch.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
#: The interpreter is slow; a worker silent for this long has hung.
ANSWER_SECONDS = 120


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with its own storage, and the same strides and offset."""
    storage = tensor.untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype)
    return copy.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return fresh(value)
    if isinstance(value, tuple):
        return tuple(_copied(item) for item in value)
    return value


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(_tensors(value))
    return found


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> list[torch.Tensor]:
    """Run `kernel` on copies of the tensors among `args`, and return the copies in order."""
    copies = [_copied(arg) for arg in args]
    kernel[grid](*copies, **constants)
    return _tensors(copies)


class _Interpreter:
    """A process started with `TRITON_INTERPRET=1` that runs kernels by module and name."""

    def __init__(self) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.requests = Connection(ours[1], readable=False)
        self.answers = Connection(theirs[0], writable=False)
        env = os.environ | {
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        }
        command = [sys.executable, "-m", "tests.cpu.interpreter", str(ours[0]), str(theirs[1])]
        self.process = subprocess.Popen(command, env=env, pass_fds=(ours[0], theirs[1]))
        os.close(ours[0])
        os.close(theirs[1])

    def run(self, module: str, name: str, grid: tuple[int, ...], args: Any, constants: Any) -> Any:
        # Plain pickle: multiprocessing's own would move torch storages into shared memory.
        self.requests.send_bytes(pickle.dumps((module, name, grid, args, constants)))
        if not self.answers.poll(ANSWER_SECONDS):
            raise TimeoutError(f"the interpreter did not finish {module}.{name}")
        return pickle.loads(self.answers.recv_bytes())

    def close(self) -> None:
        self.requests.close()
        self.process.wait(timeout=10)


_worker: _Interpreter | None = None


def interpret(
    kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any
) -> list[torch.Tensor]:
    """What `launch` would give if Triton's interpreter ran the kernel."""
    global _worker
    if _worker is None:
        _worker = _Interpreter()
        atexit.register(_worker.close)
    function = kernel.fn
    error, tensors = _worker.run(function.__module__, function.__name__, grid, args, constants)
    if error:
        raise RuntimeError(f"Triton's interpreter failed in {function.__name__}:\n{error}")
    return tensors
