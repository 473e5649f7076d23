"""Why a space has no config: the constraints that cannot all hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tritune.space.config import SpaceError
from tritune.space.expression import Expression
from tritune.space.plan import Domain, Plan
from tritune.space.solver import Solver


def why_empty(
    domains: Mapping[str, Domain | Expression],
    constraints: Sequence[Expression],
    known: Mapping[str, Any],
) -> str:
    """One line that names what leaves nothing, and what it was looked at for."""
    guilty = list(constraints)
    for constraint in constraints:
        without = [other for other in guilty if other is not constraint]
        if _is_empty(domains, without, known):
            guilty = without
    blamed = [rule.purpose for rule in guilty]
    named = {name for rule in guilty for name in rule.names}
    if len(blamed) == 1:
        reason = f"{blamed[0]} leaves nothing"
    elif blamed:
        reason = f"{', '.join(blamed[:-1])} and {blamed[-1]} together leave nothing"
    else:
        empty = [name for name, values in Plan(domains, (), known).values.items() if not values]
        reason = f"{' and '.join(empty) or 'some parameter'} has no values"
        for name in empty:
            domain = domains[name]
            named |= domain.names if isinstance(domain, Expression) else set()
    facts = [f"{name}={value!r}" for name, value in known.items() if name in named]
    place = f"on {known['family']}"
    return f"the space has no config {place}{' for ' if facts else ''}{', '.join(facts)}: {reason}"


def _is_empty(
    domains: Mapping[str, Domain | Expression],
    constraints: Sequence[Expression],
    known: Mapping[str, Any],
) -> bool:
    try:
        plan = Plan(domains, constraints, known)
        return next(Solver(plan).solutions(), None) is None
    except SpaceError:
        # What was left out kept the others from values that they cannot be computed for.
        return False
