"""The folder in which a call is sent to workers: kernel, arguments, and the launch of each config.

Its files are pickles, so reading them runs code. They are trusted because this user's own
processes have written them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tritune.space import Config
from tritune.tuning.autotune.call_memory import CallMemory, TensorFiles
from tritune.tuning.autotune.digest import code_digest
from tritune.tuning.autotune.launches import CallArguments, DecoratedKernel, LaunchArguments
from tritune.tuning.autotune.pickling import TransferError, dumps, loads
from tritune.tuning.case import CaseSpec

KERNEL_FILE, CALL_FILE = "kernel.pickle", "call.pickle"
#: Stands for the kernel where the call refers to it.
_KERNEL = "kernel"


@dataclass(frozen=True)
class Hooks:
    """Functions to run around a launch: the decorator's own hooks, and those of configs."""

    before: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None
    of_config: Mapping[Config, Callable[..., Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class TunableCall:
    """Everything about a call that its workers have to know."""

    kernel: DecoratedKernel
    arguments: CallArguments
    device: torch.device
    default: Config
    #: The launch of each config; None where there are too many to list, and workers derive them.
    launches: Mapping[Config, LaunchArguments] | None
    hooks: Hooks = field(default_factory=Hooks)
    #: Arguments that hold zeros before every run.
    reset_to_zero: Sequence[str] = ()
    #: What arguments should hold afterwards, by name, or in order for all that are written.
    expected: Mapping[str, torch.Tensor] | Sequence[torch.Tensor] | None = None


@dataclass(frozen=True)
class WrittenCase:
    """A call in a folder, as the tuner takes it."""

    spec: CaseSpec
    #: What the arguments need of a worker's memory.
    nbytes: int


def write_case(folder: str, call: TunableCall) -> WrittenCase:
    """Write a call to a folder; TransferError where something of it cannot be sent."""
    tensors, function = TensorFiles(), call.kernel.function

    def tensor_id(value: Any) -> int | None:
        return tensors.add(value) if isinstance(value, torch.Tensor) else None

    def persistent_id(value: Any) -> int | str | None:
        return _KERNEL if value is function else tensor_id(value)

    if call.launches is not None:
        # The program has applied heuristics and grid; they may refer to what cannot be sent.
        arguments = replace(call.arguments, grid=())
        call = replace(call, kernel=DecoratedKernel(function), arguments=arguments)
    kernel = dumps((function, code_digest(function)), tensor_id)
    rest = dumps(call, persistent_id)
    _check_size(tensors.nbytes, call.device)
    path = Path(folder)
    (path / KERNEL_FILE).write_bytes(kernel)
    (path / CALL_FILE).write_bytes(rest)
    tensors.write(path)
    return case_in(folder, tensors.nbytes)


def case_in(folder: str, nbytes: int) -> WrittenCase:
    """Return the case in a folder, whose arguments need so much memory."""
    spec = CaseSpec("tritune.tuning.autotune.call_case:open_case", {"folder": folder})
    return WrittenCase(spec, nbytes)


def read_kernel(folder: Path, memory: CallMemory) -> Any:
    """Return the kernel in a folder; TransferError where it is not what was written."""
    kernel, digest = loads((folder / KERNEL_FILE).read_bytes(), memory.tensor)
    if code_digest(kernel) != digest:
        raise TransferError(
            f"the copy of {kernel.__name__} is not the original: its source, or something that it "
            "uses, is another here"
        )
    return kernel


def read_call(folder: Path, kernel: Any, tensor: Callable[[int], Any]) -> TunableCall:
    """Return the call in a folder, with `tensor(number)` in the place of its tensors."""

    def load(reference: Any) -> Any:
        return kernel if reference == _KERNEL else tensor(reference)

    call: TunableCall = loads((folder / CALL_FILE).read_bytes(), load)
    return call


def _check_size(nbytes: int, device: torch.device) -> None:
    """Raise TransferError unless the arguments fit thrice: in files, in a worker, to restore."""
    free = free_bytes(device)
    if 3 * nbytes > free:
        raise TransferError(
            f"its arguments are {nbytes / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free"
        )


def free_bytes(device: torch.device) -> int:
    """Return how much memory of a device is free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
