"""Cases of ops, which the tuner compiles, verifies and measures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree
from triton.runtime.jit import JITFunction

from tritune.kernels.kernel import Problem
from tritune.policy import forced
from tritune.space import Config
from tritune.tuning.case import Expected, Launch
from tritune.tuning.measure.verify import outputs_of
from tritune.workloads.catalog import workload_named
from tritune.workloads.libraries.library import assisted, takes_long, usable, vendors
from tritune.workloads.workload import Inputs, Workload


def open_case(
    workload: str, problem: Mapping[str, Any], device: str = "cpu", seed: int = 0
) -> OpCase:
    """Open the case of an op for a problem, given by its fields; equal in every process."""
    found = workload_named(workload)
    return OpCase(found, found.exactly(problem), torch.device(device), seed)


class OpCase:
    """An op with inputs for one problem.

    `run` and `expected` give the part of the outputs that `Workload.part` selects: all of small
    outputs, evenly spaced rows, heads or columns of large ones.
    """

    repeatable = True

    def __init__(
        self, workload: Workload, problem: Problem, device: torch.device, seed: int = 0
    ) -> None:
        self.workload = workload
        self.problem = problem
        self.device = device
        self._seed = seed

    @functools.cached_property
    def _inputs(self) -> Inputs:
        return self.workload.inputs(self.problem, self.device, self._seed)

    @functools.cached_property
    def _empty_inputs(self) -> Inputs:
        return self.workload.empty_inputs(self.problem, self.device)

    @functools.cached_property
    def _originals(self) -> dict[str, torch.Tensor]:
        """Copy the inputs that the op overwrites; must be called before it does."""
        return {name: self._inputs[name].clone() for name in self.workload.written(self._inputs)}

    @functools.cached_property
    def _part(self) -> Any:
        part = self.workload.part(self._inputs)
        # Slices that take everything would cost time in every run.
        return part if any(each.step not in (None, 1) for each in part) else None

    def compile(self, config: Config) -> Sequence[Launch]:
        """Compile what `run` would launch, for inputs without values, which cost no time."""
        with forced(self.workload.kernel, config), compiling() as launches:
            self.workload.run(self._empty_inputs)
        return launches

    def run(self, config: Config) -> Sequence[torch.Tensor]:
        """Call the op with this config."""
        _ = self._originals
        with forced(self.workload.kernel, config):
            outputs = self.workload.run(self._inputs)
        return self.compared(outputs)

    def compared(self, outputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the part of the op's outputs that is compared with the expected one."""
        part = self._part
        return outputs if part is None else [output[part] for output in outputs]

    @property
    def inputs(self) -> Inputs:
        """Return the arguments of the op."""
        _ = self._originals
        return self._inputs

    def restore(self) -> None:
        """Restore the inputs that the op has overwritten."""
        for name, original in self._originals.items():
            self._inputs[name].copy_(original)

    def read_only(self) -> Sequence[torch.Tensor]:
        """Return the inputs that the op must not change."""
        kept = {n: value for n, value in self._inputs.items() if n not in self._originals}
        # Quantized weights are several tensors.
        return [each for each in pytree.tree_leaves(kept) if isinstance(each, torch.Tensor)]

    def expected(self) -> Expected:
        """Compute the same part of the outputs by the kernel's definition."""
        self.restore()
        workload, inputs = self.workload, self._inputs
        return Expected(
            workload.reference(inputs), workload.plain(inputs), workload.slack_for(self.problem)
        )

    def vendors(self) -> Mapping[str, Callable[[], Any]]:
        """Return the calls of all installed libraries for the same inputs."""
        return self._vendors

    @functools.cached_property
    def _vendors(self) -> Mapping[str, Callable[[], Any]]:
        self.restore()
        found, _ = vendors(self.workload, self._inputs, usable(self.device))
        return {
            name: functools.partial(self._outputs_of, call)
            for name, call in found.items()
            if not assisted(self.workload, name) and not takes_long(name)
        }

    def _outputs_of(self, call: Callable[[], Any]) -> Sequence[torch.Tensor]:
        return self.compared(outputs_of(call))


@contextmanager
def compiling() -> Iterator[list[Launch]]:
    """Let Triton's launches compile only, and collect what they compile."""
    launches: list[Launch] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        launches.append(Launch(compiled, tuple(grid), scalars_of(self, args, kwargs)))
        return compiled

    JITFunction.run = compile_only
    try:
        yield launches
    finally:
        JITFunction.run = run


def scalars_of(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[int | float | bool | str, ...]:
    """Return the numbers among a launch's arguments that are no constants of the binary."""
    named = {**dict(zip((p.name for p in function.params), args, strict=False)), **kwargs}
    constant = {p.name for p in function.params if p.is_constexpr}
    passed = [named.get(p.name) for p in function.params if p.name not in constant]
    leaves = pytree.tree_leaves(passed)
    return tuple(each for each in leaves if isinstance(each, int | float | str))
