"""A case whose configs can do everything that a config must not: `FAULT` says what."""

import itertools

import torch
import triton
import triton.language as tl

from tritune.space import Config
from tritune.testing.faults import abort, allocate_without_end, fail, loop_for_ever, segfault
from tritune.tuning.case import CaseSpec, Expected, Launch

SIZE = 1000

#: A factory that is imported by worker processes.
SPEC = CaseSpec("tests.tuning.faulty:open_case")


@triton.jit
def double_kernel(x_ptr, out_ptr, size, REPEAT: tl.constexpr, FAULT: tl.constexpr):
    """`out = 2 * x`, or something else."""
    tl.static_assert(FAULT != "does not compile", "this config is not meant to compile")
    offsets = tl.program_id(0) * 256 + tl.arange(0, 256)
    x = tl.load(x_ptr + offsets, mask=offsets < size)
    if FAULT == "loops for ever":
        while tl.load(x_ptr, volatile=True) < 10.0:
            x += 1.0
    if FAULT == "changes its input":
        tl.store(x_ptr + offsets, x + 1.0, mask=offsets < size)
    result = 2.0 * x
    if FAULT == "wrong":
        result += 0.01
    for _ in range(REPEAT - 1):
        result += 2.0 * tl.load(x_ptr + offsets, mask=offsets < size, volatile=True) - 2.0 * x
    end = size
    if FAULT == "writes outside":
        end = size + 8
    if FAULT == "writes too little":
        end = size - 8
    tl.store(out_ptr + offsets, result, mask=offsets < end)


class FaultyCase:
    """Doubles a vector. The larger REPEAT, the longer it takes."""

    device = torch.device("cpu")
    repeatable = True

    def __init__(self, knows: bool, log: str) -> None:
        self._x = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
        self._knows = knows
        self._log = log
        self._runs = itertools.count()
        self._undermined = False

    def compile(self, config: Config) -> list[Launch]:
        values = config.as_kwargs()
        fault = values["FAULT"]
        if fault == "aborts the compiler":
            abort()
        if fault == "hangs the compiler":
            loop_for_ever()
        if fault == "compiles without end":
            allocate_without_end()
        if fault == "compiles too large":
            raise triton.OutOfResources(1 << 20, 1 << 16, "shared memory")
        grid = (triton.cdiv(SIZE, 256), 1, 1)
        out = torch.empty_like(self._x)
        return [Launch(double_kernel.warmup(self._x, out, SIZE, **values, grid=grid), grid)]

    def run(self, config: Config) -> list[torch.Tensor]:
        values = config.as_kwargs()
        fault = values["FAULT"]
        if fault == "segfaults" or (self._undermined and fault == "none"):
            segfault()
        if fault == "allocates without end":
            allocate_without_end()
        if fault == "raises":
            fail()
        if fault == "segfaults when timed" and next(self._runs) >= 2:
            segfault()
        self._undermined = fault == "undermines the process"
        out = torch.empty_like(self._x)
        double_kernel[(triton.cdiv(SIZE, 256),)](self._x, out, SIZE, **values)
        if fault == "differs each time" and next(self._runs) % 2:
            out = torch.nextafter(out, out + 1.0)
        return [out]

    def restore(self) -> None:
        """Nothing is overwritten that should be."""

    def read_only(self) -> list[torch.Tensor]:
        return [self._x]

    def expected(self) -> Expected | None:
        if not self._knows:
            return None
        if self._log:
            with open(self._log, "a") as log:
                log.write("worked out\n")
        return Expected([2.0 * self._x.double()], [2.0 * self._x])

    def vendors(self) -> dict[str, object]:
        return {"torch": lambda: self._x * 2.0, "wrong": lambda: self._x * 2.1}


def open_case(knows: bool = True, log: str = "") -> FaultyCase:
    """A case that knows what is right, or not; `log` is a file to note when it is asked."""
    return FaultyCase(knows, log)


def config(fault: str = "none", repeat: int = 1) -> Config:
    return Config.of(REPEAT=repeat, FAULT=fault)
