"""The workloads by name."""

from __future__ import annotations

from tritune.errors import TrituneError, unknown
from tritune.kernels.kernel import Problem
from tritune.workloads.attention import Attention
from tritune.workloads.attention_varlen import AttentionVarlen
from tritune.workloads.gated import GeluMul, SiluMul
from tritune.workloads.linear import Linear, LinearQuantized
from tritune.workloads.paged_attention import PagedAttention
from tritune.workloads.rms_norm import AddRmsNorm, RmsNorm
from tritune.workloads.rope import Rope
from tritune.workloads.workload import Workload

#: In the order of their importance to a model's speed.
WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Attention(),
        PagedAttention(),
        Linear(),
        LinearQuantized(),
        AttentionVarlen(),
        AddRmsNorm(),
        RmsNorm(),
        SiluMul(),
        GeluMul(),
        Rope(),
    )
}


def workload_named(name: str) -> Workload:
    """Return the workload of this name."""
    if name not in WORKLOADS:
        raise TrituneError(unknown("op", name, WORKLOADS))
    return WORKLOADS[name]


def workload_of(kernel: str, problem: Problem) -> Workload:
    """Return the workload that a kernel's problem belongs to: several ops may share a kernel."""
    for workload in WORKLOADS.values():
        if workload.kernel.name == kernel and workload.owns(problem):
            return workload
    raise TrituneError(f"no op has the problem {problem} of the kernel {kernel!r}")
