"""The base class of workloads: an op with everything needed to tune it and to judge its speed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import triton

from tritune.dtypes import FLOAT_NAMES
from tritune.kernels.kernel import Kernel, Problem
from tritune.targets.probes import COPY, READ
from tritune.targets.roofline import Bound, PeakRates
from tritune.workloads.inputs import Maker, reference_dtype
from tritune.workloads.problems.parse import ProblemError, parsed, types_of, wrong_values
from tritune.workloads.reference.compared import Part, every_nth

#: Elements whose reference takes a fraction of a second.
ELEMENTS = 2**23

#: The arguments of an op, by name.
Inputs = dict[str, Any]
Outputs = tuple[torch.Tensor, ...]
Vendors = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Work:
    """The least work of a call: floating-point operations, bytes of its inputs and outputs."""

    flops: float
    read_bytes: float
    written_bytes: float

    def bound(self, dtype: str, peaks: PeakRates, calls: int = 1) -> Bound:
        """Return the roofline bound of a call: compute, reading or copying.

        Caches are cold before the first of `calls`, and may hold the inputs afterwards.
        """
        moved = self.read_bytes + max(0.0, self.written_bytes - peaks.cache_bytes)
        return max(
            Bound(dtype, self.flops, peaks.flops_for(dtype)),
            Bound(READ, self.read_bytes / calls, peaks.read_bytes_per_second),
            Bound(COPY, moved / calls, peaks.moved_bytes_per_second),
            key=lambda bound: bound.seconds,
        )


class Workload(ABC):
    """An op as it is tuned. One per op; without state."""

    name: ClassVar[str]
    kernel: ClassVar[Kernel]
    #: The values of fields that are not given.
    defaults: ClassVar[Mapping[str, Any]]
    #: Fields that have the value of another one if they are not given.
    like: ClassVar[Mapping[str, str]] = {}
    #: Fields that are the same in every problem of this op, if not of its kernel.
    fixed: ClassVar[Mapping[str, Any]] = {}
    #: Fields that the op rounds up to powers of two.
    buckets: ClassVar[tuple[str, ...]] = ()
    #: Fields that have few possible values.
    allowed: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: torch's functions for which a part of the work is done beforehand: measured to be shown, not
    #: to be compared with.
    assisted: ClassVar[frozenset[str]] = frozenset()
    #: torch's functions that are worth compiling.
    compilable: ClassVar[frozenset[str]] = frozenset({"eager"})

    def problem(self, **values: Any) -> Problem:
        """Return the problem with these fields, in the bucket that the op puts it in."""
        given = {**self.defaults, **self.fixed, **values}
        like = {name: given[other] for name, other in self.like.items()}
        return self.rounded(self._checked({**like, **given}))

    def parse(self, text: str) -> Problem:
        """Return the problem of a text such as "batch=1 dtype=float16 causal=true"."""
        return self.problem(**parsed(text, types_of(self.kernel.problem), self.name))

    def exactly(self, values: Mapping[str, Any]) -> Problem:
        """Return the problem whose `fields()` are these values."""
        names = types_of(self.kernel.problem)
        problem = self._checked({name: values[name] for name in names if name in values})
        extra = {n: v for n, v in values.items() if problem.fields().get(n, None) != v}
        if extra or self.rounded(problem) != problem:
            bucket = self.rounded(problem).fields()
            changed = {n: v for n, v in values.items() if bucket.get(n, None) != v}
            raise ProblemError(
                f"{self.name}: no call has the problem with {_listed(changed)}; the nearest has "
                f"{_listed({n: bucket[n] for n in changed if n in bucket}) or 'no such field'}"
            )
        return problem

    def rounded(self, problem: Any) -> Problem:
        """Return the problem's bucket, as the op computes it."""
        up = {name: triton.next_power_of_2(getattr(problem, name)) for name in self.buckets}
        return replace(problem, **up)

    def owns(self, problem: Problem) -> bool:
        """Return whether a problem of the kernel belongs to this op."""
        return all(problem.fields()[name] == value for name, value in self.fixed.items())

    def _checked(self, values: dict[str, Any]) -> Problem:
        fixed = {name: (value,) for name, value in self.fixed.items()}
        allowed = {"dtype": FLOAT_NAMES, **self.allowed, **fixed}
        reasons = wrong_values(values, types_of(self.kernel.problem), allowed)
        if not reasons:
            problem = self.kernel.problem(**values)
            reasons = self.impossible(problem)
        if reasons:
            raise ProblemError(f"{self.name}: {'; '.join(reasons)}")
        return problem

    def impossible(self, problem: Any) -> list[str]:
        """Return why no call has such a problem."""
        return []

    def inputs(self, problem: Problem, device: torch.device | str = "cpu", seed: int = 0) -> Inputs:
        """Make arguments for which the op computes exactly this problem."""
        return self.make(problem, Maker(device, seed))

    def empty_inputs(self, problem: Problem, device: torch.device | str = "cpu") -> Inputs:
        """Make the same without values, which takes no time."""
        return self.make(problem, Maker(device, filled=False))

    @abstractmethod
    def make(self, problem: Any, maker: Maker) -> Inputs: ...

    @abstractmethod
    def run(self, inputs: Inputs) -> Outputs:
        """Call the op."""

    def written(self, inputs: Inputs) -> tuple[str, ...]:
        """Return the names of the arguments that the op overwrites."""
        return ()

    def input_bytes(self, problem: Problem) -> int:
        """Return the bytes of a problem's inputs."""
        made = self.empty_inputs(problem, "meta").values()
        return sum(value.nbytes for value in made if hasattr(value, "nbytes"))

    def part(self, inputs: Inputs) -> Part:
        """Select what is compared of each output: some rows, if its reference takes long."""
        first = next(iter(inputs.values()))
        return (every_nth(first.shape[0], first.numel() / ELEMENTS),)

    def reference(self, inputs: Inputs) -> Outputs:
        """Compute the part with more bits than the inputs have."""
        return self.define(inputs, reference_dtype(self.dtype(inputs)))

    def plain(self, inputs: Inputs) -> Outputs:
        """Compute the part by plain torch in the dtype of the inputs."""
        return self.define(inputs, self.dtype(inputs))

    @abstractmethod
    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        """Compute the part by the kernel's definition, in the arithmetic of a dtype."""

    def dtype(self, inputs: Inputs) -> torch.dtype:
        """Return the dtype of the first argument."""
        first: torch.Tensor = next(iter(inputs.values()))
        return first.dtype

    def slack_for(self, problem: Any) -> float:
        """Return how many times plain torch's error the numerical rule allows."""
        return 3.0 if problem.fields().get("softcap") else 2.0

    @abstractmethod
    def offers(self, inputs: Inputs) -> Vendors:
        """Return torch's calls for the same arguments, by name.

        "eager" is plain torch code, others are its fused functions. Weights are parameters, which
        compilers may rearrange beforehand.
        """

    @abstractmethod
    def work(self, problem: Any) -> Work:
        """Return the least work of the problem."""


def parameter(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight as a parameter, in the same memory."""
    return torch.nn.Parameter(weight, requires_grad=False)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
