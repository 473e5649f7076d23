"""Capturing the launches of an op for a target that is not here, before Triton compiles them."""

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


class CapturedLaunch(NamedTuple):
    """A launch that was not compiled: the input of Triton's compiler, and the host's part."""

    ast: ASTSource
    #: The backend's options, parsed.
    options: Any
    grid: tuple[int, ...]
    scalars: tuple[int | float | bool | str, ...]


class _AbsentDevice:
    """A driver of Triton for a device of which only the architecture is known."""

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
    """Return the target as Triton describes it."""
    lanes = 1 if target.family == "cpu" else limits_of(target).warp_size
    return GPUTarget(target.family, target.arch, lanes)


@contextmanager
def absent_device(target: Target) -> Iterator[None]:
    """Have Triton and the ops take the target for their device. Nothing can be launched."""
    before = driver.active
    driver.set_active(_AbsentDevice(triton_target(target)))
    try:
        with assumed_target(target):
            yield
    finally:
        driver.set_active(before)


def launches_of(workload: Workload, inputs: Inputs, config: Config) -> Sequence[CapturedLaunch]:
    """Return the launches of an op's call with these inputs and this config, in order."""
    with captured_launches() as found, forced(workload.kernel, config):
        workload.run(inputs)
    return found


@contextmanager
def captured_launches() -> Iterator[list[CapturedLaunch]]:
    """Have Triton's launches do nothing but append to the list that this gives."""
    found: list[CapturedLaunch] = []
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
        found.append(CapturedLaunch(ast, options, tuple(grid), scalars_of(self, args, kwargs)))

    JITFunction.run, JITFunction._do_compile = catch, compile_nothing
    try:
        yield found
    finally:
        JITFunction.run, JITFunction._do_compile = run, do_compile
