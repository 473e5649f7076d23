"""The case of a call that a program makes: its kernel and its arguments, read from a folder.

Each worker process has memory of its own. Which arguments the kernel writes is found out by running
it: memory that one config changes is what the others are compared in, and all other memory must
stay as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from triton.runtime.jit import TensorWrapper

from tritune.errors import TrituneError
from tritune.space import Config
from tritune.tuning.autotune.call_folder import TunableCall, read_call, read_kernel
from tritune.tuning.autotune.call_memory import GUARD_VALUE, CallMemory
from tritune.tuning.autotune.launches import LaunchArguments, launch_arguments
from tritune.tuning.case import Expected, Launch

#: How far a result may be from the reference, relative to the largest element: some roundings of
#: the dtype; of fp32 many more, for its sums are long.
_ROUNDINGS, _LEAST_TOLERANCE = 4, 2.0**-16
_WRITES_FILE = "writes.json"


def open_case(folder: str) -> CallCase:
    """Open the case that `call_folder.write_case` wrote."""
    return CallCase(Path(folder))


class CallCase:
    """One call with private memory. Memory is not read before it is needed."""

    # Not in general: a kernel may add up by atomics.
    repeatable = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory = CallMemory(folder)
        self._kernel = read_kernel(folder, self._memory)
        #: The call with placeholders for its tensors: enough to compile.
        self._outline = read_call(folder, self._kernel, self._memory.placeholder)
        self.device = self._outline.device
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self._derived: dict[Config, LaunchArguments] = {}

    def compile(self, config: Config) -> list[Launch]:
        """Compile for the arguments; their memory is read only if a hook might look at it."""
        call = self._call if config in self._outline.hooks.of_config else self._outline
        launch = self._launch_arguments(call, config)
        if config in call.hooks.of_config:
            call.hooks.of_config[config](self._named(launch))
        kwargs = {**call.arguments.kwargs, **launch.kwargs}
        compiled = self._kernel.run(*call.arguments.args, grid=launch.grid, warmup=True, **kwargs)
        return [Launch(compiled, launch.grid, self._scalars(launch))]

    def run(self, config: Config) -> list[torch.Tensor]:
        self._launch(config)
        return self._outputs

    def restore(self) -> None:
        # What is made once is made here, because allocations in `run` may be guarded.
        _ = self._call, self._outputs
        self._memory.restore(self._written)

    def read_only(self) -> list[torch.Tensor]:
        """Return the arguments in memory that no config may change."""
        tensors = tensors_in(list(self._arguments.values()))
        return [each for each in tensors if self._memory.region_of(each) not in self._written]

    def expected(self) -> Expected | None:
        if self._call.expected is None:
            return None
        reference, outputs = self._reference, self._outputs
        guards = [torch.full_like(each, GUARD_VALUE) for each in outputs[len(reference) :]]
        pairs = zip(reference, outputs, strict=False)
        plain = [_at_the_limit(each, output.dtype) for each, output in pairs]
        return Expected([*reference, *guards], [*plain, *guards], slack=1.0)

    def vendors(self) -> dict[str, Callable[[], Any]]:
        return {}

    def _launch(self, config: Config) -> None:
        call, hooks = self._call, self._call.hooks
        launch = self._launch_arguments(call, config)
        if config in hooks.of_config:
            hooks.of_config[config](self._named(launch))
        if hooks.before:
            hooks.before(self._named(launch))
        kwargs = {**call.arguments.kwargs, **launch.kwargs}
        self._kernel.run(*call.arguments.args, grid=launch.grid, warmup=False, **kwargs)
        if hooks.after:
            hooks.after(self._named(launch), exception=None)

    @functools.cached_property
    def _call(self) -> TunableCall:
        """The call with its tensors in this process's memory."""
        call = read_call(self._folder, self._kernel, self._memory.tensor)
        named = call.arguments.named(self._kernel.arg_names)
        for name in call.reset_to_zero:
            for tensor in tensors_in(self._argument(named, name)):
                self._memory.begin_with_zeros(tensor)
        return call

    @functools.cached_property
    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of the call by name."""
        return self._call.arguments.named(self._kernel.arg_names)

    def _named(self, launch: LaunchArguments) -> dict[str, Any]:
        """Return all arguments by name, as Triton gives them to hooks."""
        return {**self._arguments, **launch.kwargs}

    def _argument(self, named: dict[str, Any], name: str) -> Any:
        if name not in named and name not in self._kernel.arg_names:
            raise TrituneError(
                f"{self._kernel.__name__} has no argument {name}: reset_to_zero and the reference "
                f"can name {', '.join(self._kernel.arg_names)}"
            )
        return named.get(name)

    def _launch_arguments(self, call: TunableCall, config: Config) -> LaunchArguments:
        if call.launches is not None:
            return call.launches[config]
        if config not in self._derived:
            real, values = self._call, config.as_kwargs()
            self._derived[config] = launch_arguments(real.kernel, real.arguments, values)
        return self._derived[config]

    def _scalars(self, launch: LaunchArguments) -> tuple[int | float | bool | str, ...]:
        """Return the numbers that a config passes to the launch without changing the code."""
        numbers = {param.name for param in self._kernel.params if not param.is_constexpr}
        return tuple(
            value if isinstance(value, (int, float, str)) else repr(value)
            for name, value in sorted(launch.kwargs.items())
            if name in numbers
        )

    @functools.cached_property
    def _reference(self) -> list[torch.Tensor]:
        """Return what arguments should hold afterwards, as far as the user has given it."""
        expected = self._call.expected or ()
        return list(expected.values() if isinstance(expected, Mapping) else expected)

    def _tensors_named(self, names: Sequence[str]) -> list[torch.Tensor]:
        return tensors_in([self._argument(self._arguments, name) for name in names])

    @functools.cached_property
    def _outputs(self) -> list[torch.Tensor]:
        """Return what is compared after a run: what was written, and the guards around it."""
        expected = self._call.expected
        if isinstance(expected, Mapping):
            tensors = self._tensors_named(list(expected))
        else:
            everything = tensors_in(list(self._arguments.values()))
            tensors = [t for t in everything if self._memory.region_of(t) in self._written]
        if expected is not None and len(tensors) != len(self._reference):
            raise TrituneError(
                f"the reference of {self._kernel.__name__} returns {len(self._reference)} tensors "
                f"for {len(tensors)} that it writes: return a dict from argument names to tensors"
            )
        guarded = sorted({self._memory.region_of(tensor) for tensor in tensors})
        return [*tensors, *self._memory.guards(guarded)]

    @functools.cached_property
    def _written(self) -> frozenset[int]:
        """Return the memory that the kernel changes; the folder keeps it for later processes."""
        path = self._folder / _WRITES_FILE
        found = json.loads(path.read_text()) if path.exists() else {}
        if "regions" not in found:
            found["regions"] = sorted(self._changed_by_some(path, found.get("tried", 0)))
            path.write_text(json.dumps(found))
        return frozenset(found["regions"])

    def _changed_by_some(self, path: Path, tried: int) -> set[int]:
        """Return what the first config that runs changes; everything if none runs."""
        memory, expected = self._memory, self._call.expected
        declared = self._tensors_named(
            [*self._call.reset_to_zero, *(expected if isinstance(expected, Mapping) else ())]
        )
        for number, config in enumerate(self._candidates()):
            if number < tried:
                continue  # it ended the process that tried it
            path.write_text(json.dumps({"tried": number + 1}))
            try:
                self._launch(config)
                changed = memory.changed()
            except Exception:
                continue  # its own trial records why
            finally:
                memory.restore(memory.regions)
            return changed | set(map(memory.region_of, declared))
        return set(memory.regions)

    def _candidates(self) -> Iterator[Config]:
        default = self._outline.default
        yield default
        yield from (config for config in self._outline.launches or () if config != default)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in an argument of a kernel, such as that of a descriptor."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, TensorWrapper):
        return tensors_in(value.base)
    if isinstance(value, dict):
        value = list(value.values())
    elif dataclasses.is_dataclass(value):
        value = list(vars(value).values())
    if not isinstance(value, (list, tuple)):
        return []
    return [tensor for each in value for tensor in tensors_in(each)]


def _at_the_limit(reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a result that is as far from the reference as a correct one may be."""
    if not dtype.is_floating_point:
        return reference.to(dtype)
    exact = reference.double()
    largest = exact.abs().masked_fill(~exact.isfinite(), 0.0).max() if exact.numel() else 0.0
    tolerance = max(_ROUNDINGS * torch.finfo(dtype).eps, _LEAST_TOLERANCE)
    return (exact + tolerance * largest).to(dtype)
