"""The fast path: a trace of a call, compiled to a function that repeats it with other tensors.

The function is generated as source, like a kernel's launcher: one line for each step, and no
decisions when it runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tritune.ops.call import allocation
from tritune.ops.call.trace import Conversion, KernelLaunch, Scratch, Trace

Tensors = tuple[torch.Tensor, ...]

#: The alignment in bytes that Triton specializes for.
ALIGNED = 16

_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
#: A faster `torch.empty_strided`; None where another torch does not have it.
_empty_on_cpu: Any = getattr(_guards, "_empty_strided_cpu", None)


def compile_replay(
    trace: Trace, inputs: Tensors, outputs: Tensors
) -> Callable[..., Tensors] | None:
    """Return a function from inputs to new outputs; None if the trace cannot be repeated."""
    source = _ReplaySource(inputs, outputs)
    if not all(source.add(step) for step in trace.steps):
        return None
    replay = source.compiled()
    device = trace.key[2]
    return replay if device.type == "cpu" else _on_device(device, replay)


class _ReplaySource:
    """Lines of code in which tensors are numbered: inputs, outputs, what is made on the way."""

    def __init__(self, inputs: Tensors, outputs: Tensors) -> None:
        self._addresses = [tensor.data_ptr() for tensor in inputs]
        self._inputs, self._outputs = len(inputs), len(outputs)
        self._lines: list[str] = []
        #: The objects beside tensors that the lines name.
        self._globals: dict[str, Any] = {}
        for tensor in outputs:
            self._assign(tensor, self._allocation(tensor))

    def compiled(self) -> Callable[..., Tensors]:
        inputs = ", ".join(map(_name, range(self._inputs)))
        outputs = "".join(f"{_name(self._inputs + number)}, " for number in range(self._outputs))
        lines = [f"def replay({inputs}):", *self._lines, f"return ({outputs})"]
        exec(compile("\n    ".join(lines), "<tritune fast path>", "exec"), self._globals)
        replay: Callable[..., Tensors] = self._globals["replay"]
        return replay

    def add(self, step: Scratch | Conversion | KernelLaunch) -> bool:
        """Add a step; return False if it cannot be repeated."""
        if isinstance(step, KernelLaunch):
            return self._launch(step)
        if isinstance(step, Scratch):
            self._assign(step.tensor, self._allocation(step.tensor))
            return True
        # Of inputs in the same memory, which one is converted is not known.
        if self._addresses.count(step.source.data_ptr()) != 1:
            return False
        dtype = self._global(step.tensor.dtype)
        self._assign(step.tensor, f"{self._name_of(step.source)}.to({dtype})")
        return True

    def _assign(self, tensor: torch.Tensor, expression: str) -> None:
        self._lines.append(f"{_name(len(self._addresses))} = {expression}")
        self._addresses.append(tensor.data_ptr())

    def _allocation(self, like: torch.Tensor) -> str:
        return f"{self._global(_allocator(like))}()"

    def _global(self, thing: Any) -> str:
        name = f"global{len(self._globals)}"
        self._globals[name] = thing
        return name

    def _name_of(self, tensor: torch.Tensor) -> str:
        return _name(self._addresses.index(tensor.data_ptr()))

    def _launch(self, step: KernelLaunch) -> bool:
        # Tensors are told apart by their addresses. Inputs may share one: the call cache replays
        # this only for inputs that share theirs in the same way. Empty tensors have no address, and
        # a descriptor has more than an address.
        addresses = self._addresses
        others = len(addresses) - self._inputs
        if len(set(addresses)) < len(set(addresses[: self._inputs])) + others or 0 in addresses:
            return False
        used = [tensor for tensor in step.tensors if tensor is not None]
        if not all(isinstance(tensor, torch.Tensor) for tensor in used):
            return False
        if any(t.data_ptr() not in addresses or t.data_ptr() % ALIGNED for t in used):
            return False
        launch_at = _prepared(step, len(used))
        if launch_at is not None:
            arguments = ", ".join(f"{self._name_of(tensor)}.data_ptr()" for tensor in used)
            self._lines.append(f"{self._global(launch_at)}({arguments})")
        else:
            run, rest = self._global(step.compiled[step.grid]), self._global(step.rest)
            tensors = [None if t is None else self._name_of(t) for t in step.tensors]
            self._lines.append(f"{run}({', '.join(map(str, tensors))}, *{rest})")
        return True


def _prepared(step: KernelLaunch, tensors: int) -> Callable[..., None] | None:
    """Return a launch that takes addresses, where the backend's launcher can prepare one."""
    prepare = getattr(step.compiled.run, "prepared", None)
    if prepare is None:
        return None
    launch: Callable[..., None] | None = prepare(
        step.compiled, step.grid, (*step.tensors, *step.rest), tensors
    )
    return launch


def _name(number: int) -> str:
    return f"tensor{number}"


def _allocator(like: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return a function that allocates a tensor like this one."""
    size, stride, dtype, device = tuple(like.shape), like.stride(), like.dtype, like.device
    if allocation.is_large(like):
        return lambda: allocation.in_huge_pages(torch.empty_strided(size, stride, dtype=dtype))
    if device.type == "cpu" and _empty_on_cpu is not None:
        return functools.partial(_empty_on_cpu, size, stride, dtype)
    return lambda: torch.empty_strided(size, stride, dtype=dtype, device=device)


def _on_device(device: torch.device, run: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """Wrap `run` so that this GPU is current: Triton launches on the current one."""

    def guarded(*inputs: torch.Tensor) -> Tensors:
        if torch.cuda.current_device() == device.index:
            return run(*inputs)
        with torch.cuda.device(device):
            return run(*inputs)

    return guarded
