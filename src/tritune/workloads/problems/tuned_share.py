"""Which of a model's problems are tuned on a device, and which run with their defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tritune.kernels.identity import identity
from tritune.store import Store
from tritune.store.records import problem_text
from tritune.targets.device import detect
from tritune.workloads.catalog import WORKLOADS
from tritune.workloads.problems.models import Model
from tritune.workloads.problems.of_model import problems_of

#: The dtypes that models are served in.
DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Coverage:
    """How many of the problems that a model has of an op were tuned, in one dtype."""

    op: str
    dtype: str
    tuned: int
    problems: int


def coverage_of(
    model: Model,
    store: Store,
    device: torch.device,
    ops: Sequence[str] | None = None,
    dtypes: Sequence[str] = DTYPES,
) -> list[Coverage]:
    """Count the problems of a server with this model: prompts and decoding, from one row to
    thousands.
    """
    silicon = detect(device)
    found = []
    for dtype in dtypes:
        asked = problems_of(model, ops, "full", dtype, device)
        for op in dict.fromkeys(op for op, _ in asked):
            kernel = WORKLOADS[op].kernel
            version = identity(kernel, silicon.target)
            winners = store.winners(kernel.name, version, silicon.fingerprint)
            known = {winner.task.problem for winner in winners}
            texts = [problem_text(problem.fields()) for name, problem in asked if name == op]
            tuned = sum(text in known for text in texts)
            found.append(Coverage(op, dtype, tuned, len(texts)))
    return found


def not_covered(model: Model, found: Sequence[Coverage]) -> str:
    """Say in a sentence what was not tuned; nothing if all was."""
    tuned, problems = Counter[str](), Counter[str]()
    for each in found:
        tuned[each.op] += each.tuned
        problems[each.op] += each.problems
    left = [f"{op} {n - tuned[op]} of {n}" for op, n in problems.items() if tuned[op] < n]
    if not left:
        return ""
    dtypes = " and ".join(dict.fromkeys(each.dtype for each in found))
    return (
        f"{tuned.total()} of the {problems.total()} problems of a server with {model.name} (one "
        f"row to thousands, prompts and decoding, {dtypes}) are tuned; the others run with "
        f"their default configs: {', '.join(left)}"
    )
