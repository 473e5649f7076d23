"""Check that all ranks of a distributed program use the same configs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tritune.errors import TrituneError
from tritune.policy.policy import Policy
from tritune.store.records import problem_text


class DisagreementError(TrituneError):
    """Raised when ranks would not compute the same."""


def statement(policy: Policy) -> dict[str, Any]:
    """Return a rank's mode, its reviewed file, and the answers it has given, as plain data."""
    return {
        "mode": policy.mode.name,
        "pinned": policy.source.digest(),
        "answers": {
            f"{kernel.name} {problem_text(problem.fields())}": answer.config.to_json()
            for (kernel, problem, _), answer in policy.given().items()
        },
    }


def verify_agreement(policy: Policy, group: Any = None) -> None:
    """Raise DisagreementError unless all ranks have one mode, one reviewed file, and one answer for
    every problem that several of them have met.

    A collective call: every rank of the group makes it. Without torch.distributed it does nothing.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return
    statements: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(statements, statement(policy), group=group)
    reasons = disagreements(statements)
    if reasons:
        raise DisagreementError("ranks disagree: " + "; ".join(reasons))


def disagreements(statements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return all reasons why ranks with these statements disagree with the first one."""
    reasons = [
        f"rank {rank}: {name} is {each[name]!r}, on rank 0 {statements[0][name]!r}"
        for rank, each in enumerate(statements)
        for name in ("mode", "pinned")
        if each[name] != statements[0][name]
    ]
    first: dict[str, tuple[int, Any]] = {}
    for rank, each in enumerate(statements):
        for problem, config in each["answers"].items():
            other, expected = first.setdefault(problem, (rank, config))
            if config != expected:
                reasons.append(f"{problem}: rank {rank} uses {config}, rank {other} {expected}")
    return reasons
