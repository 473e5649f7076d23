"""Digests of PTX and of AMD's binaries of tritune's kernels, with their default configs.

They depend on the versions of Triton and of its assemblers, so they are compared on the pinned
Triton only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import triton

from tests.golden import hashes
from tritune.screening.capture import absent_device, launches_of
from tritune.screening.staged import FOR_DEBUGGERS, Compiled, StagedCompiler
from tritune.targets.binary.same_code import code_digest
from tritune.targets.target import Target
from tritune.workloads.catalog import workload_named

TARGETS = tuple(map(Target.parse, ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942", "hip:gfx1100")))

#: An op, fields of a problem, and how many of the targets it is compiled for: large kernels take
#: seconds.
PROBLEMS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("rms_norm", {"rows": 1024, "columns": 4096, "dtype": "bfloat16"}, 5),
    ("add_rms_norm", {"rows": 64, "columns": 4096, "dtype": "float16"}, 5),
    ("silu_mul", {"rows": 1024, "columns": 4096, "dtype": "float16"}, 5),
    ("gelu_mul", {"rows": 64, "columns": 4096, "dtype": "float32"}, 5),
    ("rope", {"dtype": "bfloat16"}, 5),
    ("linear", {"rows": 1, "dtype": "bfloat16"}, 3),
    ("linear", {"rows": 512, "dtype": "float16"}, 3),
    ("linear_quantized", {"rows": 1, "bits": 8, "dtype": "float16"}, 2),
    ("linear_quantized", {"rows": 256, "bits": 4, "dtype": "bfloat16"}, 2),
    ("attention", {"queries": 1024, "dtype": "bfloat16"}, 2),
    ("attention", {"queries": 1, "keys": 4096, "dtype": "float16"}, 2),
    ("attention_varlen", {"dtype": "float16"}, 1),
    ("paged_attention", {"dtype": "bfloat16"}, 2),
)


def pinned() -> bool:
    """Return whether the stored digests are those of the installed Triton."""
    return hashes.read(hashes.BINARIES)[0] == triton.__version__


def jobs() -> dict[str, tuple[str, Mapping[str, Any], list[Target]]]:
    """Return what is compiled, by name."""
    found = {}
    for number, (op, fields, count) in enumerate(PROBLEMS):
        name = " ".join([op, *(str(value) for value in fields.values())])
        chosen = [TARGETS[(number + step) % len(TARGETS)] for step in range(count)]
        found[name] = op, fields, chosen
    return found


def summary(op: str, fields: Mapping[str, Any], target: Target) -> str:
    """Return the digests of the kernels that a call compiles."""
    workload = workload_named(op)
    problem = workload.problem(**fields)
    config = workload.kernel.default(problem, target.family, target.arch)
    compiler, inputs = StagedCompiler(target), workload.empty_inputs(problem)
    with absent_device(target):
        compiled = [compiler.compile(source) for source in launches_of(workload, inputs, config)]
    return " ".join(map(_digest, compiled))


def _digest(compiled: Compiled) -> str:
    ptx = compiled.asm.get("ptx")
    if ptx is None:
        return code_digest(compiled.kernel)[:16]
    # Not the binary: ptxas does not always make the same of the same text.
    lines = FOR_DEBUGGERS["cubin"].sub("", ptx).splitlines()
    text = "\n".join(line for line in lines if line.strip())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def summaries() -> hashes.Summaries:
    return {
        name: {str(target): summary(op, fields, target) for target in targets}
        for name, (op, fields, targets) in jobs().items()
    }
