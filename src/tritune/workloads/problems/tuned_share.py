"""Count the problems of a model that are tuned on a device, and describe the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
#: By op and dtype: the number of tuned problems, and of all.
Counts = Mapping[tuple[str, str], tuple[int, int]]


def count_tuned(
    model: Model, store: Store, device: torch.device, ops: Sequence[str] | None = None
) -> Counts:
    """Count the problems of a server with this model: prompts and decoding, 1 to 8,192 rows."""
    silicon = detect(device)
    found = {}
    for dtype in DTYPES:
        problems = problems_of(model, ops, "full", dtype, device)
        for op in dict.fromkeys(op for op, _ in problems):
            kernel = WORKLOADS[op].kernel
            version = identity(kernel, silicon.target)
            winners = store.winners(kernel.name, version, silicon.fingerprint)
            known = {winner.task.problem for winner in winners}
            texts = [problem_text(problem.fields()) for name, problem in problems if name == op]
            found[op, dtype] = sum(text in known for text in texts), len(texts)
    return found


def describe_untuned(model: Model, counts: Counts) -> str:
    """Describe in a sentence which problems are not tuned; return nothing if all are."""
    by_op: dict[str, tuple[int, int]] = {}
    for (op, _), (tuned, problems) in counts.items():
        before = by_op.get(op, (0, 0))
        by_op[op] = before[0] + tuned, before[1] + problems
    left = [f"{op} {n - tuned} of {n}" for op, (tuned, n) in by_op.items() if tuned < n]
    if not left:
        return ""
    tuned, problems = (sum(each) for each in zip(*by_op.values(), strict=True))
    dtypes = " and ".join(dict.fromkeys(dtype for _, dtype in counts))
    return (
        f"{tuned} of the {problems} problems of a server with {model.name} (one "
        f"row to thousands, prompts and decoding, {dtypes}) are tuned; the others run with "
        f"their default configs: {', '.join(left)}"
    )
