"""The problem of a call of an autotuned kernel: what can change the winner."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from tritune.dtypes import dtype_name
from tritune.errors import TrituneError
from tritune.tuning.autotune.triton_configs import plain

#: Names of arguments, or a function of arguments by name that returns fields by name.
ProblemSpec: TypeAlias = "Sequence[str] | Callable[..., Mapping[str, Any]]"


class ProblemReader:
    """Reads the problem off a call's arguments. The dtypes always belong to it."""

    def __init__(
        self, arg_names: Sequence[str], key: Sequence[str], problem: ProblemSpec | None
    ) -> None:
        self._arg_names = frozenset(arg_names)
        self._function = problem if callable(problem) else None
        self._names = key if problem is None or callable(problem) else problem
        unknown = [name for name in self._names if name not in self._arg_names]
        if unknown and problem is not None:
            raise TrituneError(
                f"problem names {', '.join(unknown)}, which the kernel does not take: "
                f"its arguments are {', '.join(arg_names)}"
            )

    def cache_key(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the key of a winner in this process: Triton's, where the user has not said
        otherwise.
        """
        key: list[Any]
        if self._function is None:
            key = [named[name] for name in self._names if name in named]
        else:
            key = [*self._declared(named).items()]
        arg_names = self._arg_names
        for name, value in named.items():
            if name in arg_names and hasattr(value, "dtype"):
                key.append(str(value.dtype))
        return tuple(key)

    def fields(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the problem as it is stored."""
        fields: dict[str, Any] = {n: plain(value) for n, value in self._declared(named).items()}
        for name, value in self.own(named).items():
            if hasattr(value, "dtype"):
                fields[f"{name}.dtype"] = dtype_name(value.dtype)
        return fields

    def constants(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the constraints of a space may use: arguments and fields but no tensors."""
        values = {**self.own(named), **self._declared(named)}
        return {n: value for n, value in values.items() if isinstance(value, (int, float, str))}

    def own(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the kernel's own arguments, without options of the launch."""
        return {name: value for name, value in named.items() if name in self._arg_names}

    def _declared(self, named: Mapping[str, Any]) -> dict[str, Any]:
        if self._function is not None:
            return dict(call_with(self._function, self.own(named)))
        return {name: named[name] for name in self._names if name in named}


def call_with(function: Callable[..., Any], named: Mapping[str, Any]) -> Any:
    """Call a function with those of the named arguments that it takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return function(**named)
    return function(**{each.name: named[each.name] for each in parameters if each.name in named})


def device_of(named: Mapping[str, Any]) -> torch.device:
    """Return the device of the kernel: that of its first tensor."""
    for value in named.values():
        tensor = getattr(value, "base", value)  # of a tensor descriptor
        if isinstance(tensor, torch.Tensor):
            return tensor.device
    from triton.runtime import driver

    return torch.device(driver.active.get_active_torch_device())
