"""What a workload is: an op with everything that is needed to tune it and to judge its speed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tritune.kernels.kernel import Kernel, Problem
from tritune.targets.probes import COPY, READ
from tritune.targets.roofline import Bound, Limits
from tritune.workloads.inputs import Maker, wide
from tritune.workloads.problems.parse import ProblemError, parsed, types_of, wrong_values
from tritune.workloads.reference.compared import Part

#: The arguments of an op, by name.
Inputs = dict[str, Any]
Outputs = tuple[torch.Tensor, ...]
Vendors = dict[str, Callable[[], Any]]

FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Work:
    """What a call cannot do without: operations on floats, and bytes of its inputs and outputs."""

    flops: float
    read_bytes: float
    written_bytes: float

    def bound(self, dtype: str, limits: Limits, calls: int = 1) -> Bound:
        """What keeps a call of this dtype from being faster; its inputs are in no cache before the
        first of so many calls, and may be in one afterwards.
        """
        moved = self.read_bytes + max(0.0, self.written_bytes - limits.cache_bytes)
        return max(
            Bound(dtype, self.flops, limits.flops_for(dtype)),
            Bound(READ, self.read_bytes / calls, limits.read_bytes_per_second),
            Bound(COPY, moved / calls, limits.moved_bytes_per_second),
            key=lambda bound: bound.seconds,
        )


class Workload(ABC):
    """An op as it is tuned. One per op; without state."""

    name: ClassVar[str]
    kernel: ClassVar[Kernel]
    #: What a problem is like unless it is said otherwise.
    defaults: ClassVar[Mapping[str, Any]]
    #: Fields that are the same in every problem of this op, if not of its kernel.
    fixed: ClassVar[Mapping[str, Any]] = {}
    #: Fields that have few possible values.
    allowed: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    #: Of what torch offers, that for which somebody has done a part of the work beforehand. It is
    #: measured to be shown, not to be compared with.
    assisted: ClassVar[frozenset[str]] = frozenset()
    #: Of what torch offers, that which is worth handing to a compiler.
    compilable: ClassVar[frozenset[str]] = frozenset({"eager"})

    def problem(self, **values: Any) -> Problem:
        """The problem with these fields, in the bucket that the op would put it in."""
        return self.rounded(self._checked({**self._missing(values), **values}))

    def parse(self, text: str) -> Problem:
        """The problem that a text such as "batch=1 dtype=float16 causal=true" describes."""
        return self.problem(**parsed(text, types_of(self.kernel.problem), self.name))

    def exactly(self, values: Mapping[str, Any]) -> Problem:
        """The problem that `fields()` gave these values of."""
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

    @abstractmethod
    def rounded(self, problem: Any) -> Problem:
        """The problem's bucket, as the op works it out."""

    def owns(self, problem: Problem) -> bool:
        """Whether a problem of the kernel is one of this op."""
        return all(problem.fields()[name] == value for name, value in self.fixed.items())

    def _missing(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.defaults, **self.fixed}

    def _checked(self, values: dict[str, Any]) -> Problem:
        fixed = {name: (value,) for name, value in self.fixed.items()}
        allowed = {"dtype": FLOATS, **self.allowed, **fixed}
        reasons = wrong_values(values, types_of(self.kernel.problem), allowed)
        if not reasons:
            problem = self.kernel.problem(**values)
            reasons = self.impossible(problem)
        if reasons:
            raise ProblemError(f"{self.name}: {'; '.join(reasons)}")
        return problem

    def impossible(self, problem: Any) -> list[str]:
        """Why no call has such a problem."""
        return []

    def inputs(self, problem: Problem, device: torch.device | str = "cpu", seed: int = 0) -> Inputs:
        """Arguments for the op of which it computes exactly this problem."""
        return self.make(problem, Maker(device, seed))

    def empty_inputs(self, problem: Problem, device: torch.device | str = "cpu") -> Inputs:
        """The same in form only, for the price of the memory's addresses."""
        return self.make(problem, Maker(device, filled=False))

    @abstractmethod
    def make(self, problem: Any, maker: Maker) -> Inputs: ...

    @abstractmethod
    def run(self, inputs: Inputs) -> Outputs:
        """Call the op."""

    def written(self, inputs: Inputs) -> tuple[str, ...]:
        """The arguments that the op overwrites."""
        return ()

    def input_bytes(self, problem: Problem) -> int:
        """The memory of a problem's inputs."""
        made = self.empty_inputs(problem, "meta").values()
        return sum(value.nbytes for value in made if hasattr(value, "nbytes"))

    def part(self, inputs: Inputs) -> Part:
        """What of each output is compared: all of it, unless computing the reference takes long."""
        return ()

    def reference(self, inputs: Inputs) -> Outputs:
        """The part's true values, computed with more bits than the inputs have."""
        return self.define(inputs, wide(self.dtype(inputs)))

    def plain(self, inputs: Inputs) -> Outputs:
        """The part as plain torch computes it in the dtype of the inputs."""
        return self.define(inputs, self.dtype(inputs))

    @abstractmethod
    def define(self, inputs: Inputs, dtype: torch.dtype) -> Outputs:
        """The part's values by the kernel's definition, in the arithmetic of a dtype."""

    def dtype(self, inputs: Inputs) -> torch.dtype:
        """That of the first argument."""
        first: torch.Tensor = next(iter(inputs.values()))
        return first.dtype

    def slack_for(self, problem: Any) -> float:
        """Return how many times plain torch's error the numerical rule allows."""
        return 3.0 if problem.fields().get("softcap") else 2.0

    @abstractmethod
    def offers(self, inputs: Inputs) -> Vendors:
        """What torch has for the same arguments, by name; each call gives the outputs.

        "eager" is plain torch code, others are its fused functions. What a model keeps is given
        as a parameter, which compilers may rearrange beforehand.
        """

    @abstractmethod
    def work(self, problem: Any) -> Work:
        """What the problem's inputs take at least."""


def parameter(weight: torch.Tensor) -> torch.Tensor:
    """A weight as a model keeps it, in the same memory."""
    return torch.nn.Parameter(weight, requires_grad=False)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
