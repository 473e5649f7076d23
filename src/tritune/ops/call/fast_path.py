"""The steps of a call, as a function that takes them again with other tensors.

The function is written as code, as a kernel's launcher is: a line for each step, and nothing that
asks what kind of step it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tritune.ops.call import allocation
from tritune.ops.call.launch import Converted, Emptied, Launched, Steps

Tensors = tuple[torch.Tensor, ...]

#: What Triton takes for aligned, in bytes.
ALIGNED = 16

_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
#: `torch.empty_strided`, by a shorter way; None where another torch does not have it.
_empty_on_cpu: Any = getattr(_guards, "_empty_strided_cpu", None)


def replay(steps: Steps, inputs: Tensors, outputs: Tensors) -> Callable[..., Tensors] | None:
    """From inputs to new outputs by the same steps; None if they cannot be taken again."""
    script = _Script(inputs, outputs)
    if not all(script.add(step) for step in steps.taken):
        return None
    again = script.function()
    device = steps.question[2]
    return again if device.type == "cpu" else _on(device, again)


class _Script:
    """Lines of code in which tensors have names by their places: inputs, outputs, what is made."""

    def __init__(self, inputs: Tensors, outputs: Tensors) -> None:
        self._places = [tensor.data_ptr() for tensor in inputs]
        self._given, self._made = len(inputs), len(outputs)
        self._lines: list[str] = []
        #: What the lines speak of beside tensors.
        self._known: dict[str, Any] = {}
        for tensor in outputs:
            self._make(tensor, _emptying(tensor))

    def function(self) -> Callable[..., Tensors]:
        given = ", ".join(map(_name, range(self._given)))
        made = "".join(f"{_name(self._given + number)}, " for number in range(self._made))
        lines = [f"def again({given}):", *self._lines, f"return ({made})"]
        exec(compile("\n    ".join(lines), "<a call made again>", "exec"), self._known)
        again: Callable[..., Tensors] = self._known["again"]
        return again

    def add(self, step: Emptied | Converted | Launched) -> bool:
        """Take a step in; False if it cannot be."""
        if isinstance(step, Launched):
            return self._launch(step)
        if isinstance(step, Emptied):
            self._make(step.tensor, _emptying(step.tensor))
            return True
        if step.source.data_ptr() not in self._places:
            return False
        dtype = self._knowing(step.tensor.dtype)
        self._make(step.tensor, f"{self._name_of(step.source)}.to({dtype})")
        return True

    def _make(self, tensor: torch.Tensor, made: str | Callable[[], torch.Tensor]) -> None:
        """A line that makes a tensor like this one."""
        code = made if isinstance(made, str) else f"{self._knowing(made)}()"
        self._lines.append(f"{_name(len(self._places))} = {code}")
        self._places.append(tensor.data_ptr())

    def _knowing(self, thing: Any) -> str:
        name = f"known{len(self._known)}"
        self._known[name] = thing
        return name

    def _name_of(self, tensor: torch.Tensor) -> str:
        return _name(self._places.index(tensor.data_ptr()))

    def _launch(self, step: Launched) -> bool:
        # Which tensor is which must be plain from their addresses. Empty ones have none, and what
        # is no tensor (a descriptor) has more than that.
        places = self._places
        if len(set(places)) < len(places) or 0 in places:
            return False
        used = [tensor for tensor in step.tensors if tensor is not None]
        if not all(isinstance(tensor, torch.Tensor) for tensor in used):
            return False
        if any(t.data_ptr() not in places or t.data_ptr() % ALIGNED for t in used):
            return False
        launch_at = _prepared(step, len(used))
        if launch_at is not None:
            addresses = ", ".join(f"{self._name_of(tensor)}.data_ptr()" for tensor in used)
            self._lines.append(f"{self._knowing(launch_at)}({addresses})")
        else:
            run, rest = self._knowing(step.compiled[step.grid]), self._knowing(step.rest)
            tensors = [None if t is None else self._name_of(t) for t in step.tensors]
            self._lines.append(f"{run}({', '.join(map(str, tensors))}, *{rest})")
        return True


def _prepared(step: Launched, tensors: int) -> Callable[..., None] | None:
    """Return a launch that takes addresses, where the backend's launcher can prepare one."""
    prepare = getattr(step.compiled.run, "prepared", None)
    if prepare is None:
        return None
    launch: Callable[..., None] | None = prepare(
        step.compiled, step.grid, (*step.tensors, *step.rest), tensors
    )
    return launch


def _name(place: int) -> str:
    return f"tensor{place}"


def _emptying(like: torch.Tensor) -> Callable[[], torch.Tensor]:
    """What makes room for such a tensor."""
    size, stride, dtype, device = tuple(like.shape), like.stride(), like.dtype, like.device
    if allocation.is_large(like):
        return lambda: allocation.in_large_pages(torch.empty_strided(size, stride, dtype=dtype))
    if device.type == "cpu" and _empty_on_cpu is not None:
        return functools.partial(_empty_on_cpu, size, stride, dtype)
    return lambda: torch.empty_strided(size, stride, dtype=dtype, device=device)


def _on(device: torch.device, run: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """Triton launches on the current GPU, which need not be the one that the tensors are on."""

    def there(*inputs: torch.Tensor) -> Tensors:
        if torch.cuda.current_device() == device.index:
            return run(*inputs)
        with torch.cuda.device(device):
            return run(*inputs)

    return there
