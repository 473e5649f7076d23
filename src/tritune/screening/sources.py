"""What an op would compile for a target that is not here: its launches, caught before Triton
compiles them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from tritune.policy import forced
from tritune.space import Config
from tritune.targets.device import assumed_target
from tritune.targets.limits import limits_of
from tritune.targets.target import Target
from tritune.workloads.case import scalars_of
from tritune.workloads.workload import Inputs, Workload


class Source(NamedTuple):
    """A launch that was not compiled: what Triton's compiler is given, and the host's part."""

    ast: ASTSource
    #: The backend's options, parsed.
    options: Any
    grid: tuple[int, ...]
    scalars: tuple[int | float | bool | str, ...]


class _AbsentDevice:
    """Triton's idea of a device of which nothing is known but its architecture."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> str:
        # Triton keeps what it knows of a function by device.
        return f"absent {self._target.backend}:{self._target.arch}"

    def get_current_stream(self, device: str) -> int:
        return 0


def triton_target(target: Target) -> GPUTarget:
    """The target in Triton's words."""
    lanes = 1 if target.family == "cpu" else limits_of(target).warp_size
    return GPUTarget(target.family, target.arch, lanes)


@contextmanager
def pretending(target: Target) -> Iterator[None]:
    """Triton and the ops take the target for the device they run on. Nothing can be launched."""
    before = driver.active
    driver.set_active(_AbsentDevice(triton_target(target)))
    try:
        with assumed_target(target):
            yield
    finally:
        driver.set_active(before)


def sources_of(workload: Workload, inputs: Inputs, config: Config) -> Sequence[Source]:
    """What a call of the op with these inputs and this config would have compiled, in order."""
    with catching() as found, forced(workload.kernel, config):
        workload.run(inputs)
    return found


@contextmanager
def catching() -> Iterator[list[Source]]:
    """Triton's launches do nothing but tell what they would have compiled."""
    found: list[Source] = []
    caught: list[tuple[ASTSource, Any]] = []
    run, do_compile = JITFunction.run, JITFunction._do_compile

    def compile_nothing(
        self: Any, key: Any, signature: Any, device: Any, constexprs: Any, options: Any, attrs: Any,
        warmup: bool,
    ) -> None:  # fmt: skip
        caught.append((ASTSource(self, signature, constexprs, attrs), options))

    def catch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        caught.clear()
        run(self, *args, grid=grid, warmup=True, **kwargs)
        [(ast, options)] = caught
        found.append(Source(ast, options, tuple(grid), scalars_of(self, args, kwargs)))

    JITFunction.run, JITFunction._do_compile = catch, compile_nothing
    try:
        yield found
    finally:
        JITFunction.run, JITFunction._do_compile = run, do_compile
