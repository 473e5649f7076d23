"""In which order parameters are decided, so that little has to be remembered on the way."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

#: With more parameters than this tied together, not every one of them is tried as the first.
_STARTS = 12


def decision_order(
    sizes: Mapping[str, int],
    scopes: Sequence[frozenset[str]],
    needs: Mapping[str, frozenset[str]],
) -> list[str]:
    """Parameters in an order that keeps few of them open.

    `sizes` has the number of values of each; a scope is a set of parameters that some constraint
    ties together; `needs` says whose values have to be decided before a parameter's own.
    A parameter is open while it is decided and a scope that it belongs to is not. What an order
    costs is the number of ways in which the open ones can be decided, over all places.
    """
    ordered: list[str] = []
    for group in _tied_together(sizes, scopes):
        search = _Order(group, sizes, scopes, needs)
        # In the order given: that of a set differs between processes, and so would the points.
        starts = [name for name in sizes if name in group and not needs.get(name)]
        tried = (search.from_start(first) for first in starts[:_STARTS])
        ordered += min(tried, key=lambda found: found[0])[1]
    return ordered


def _tied_together(names: Iterable[str], scopes: Iterable[Collection[str]]) -> list[list[str]]:
    """The parameters in groups that no scope connects; those tied to nothing come last."""
    group_of = {name: [name] for name in names}
    for scope in scopes:
        first, *others = scope
        for other in others:
            target, source = group_of[first], group_of[other]
            if target is not source:
                target += source
                group_of.update(dict.fromkeys(source, target))
    groups = {id(group): group for group in group_of.values()}
    return sorted(groups.values(), key=lambda group: len(group) == 1)


class _Order:
    """Greedy orders of one group: whatever leaves the fewest ways open comes next."""

    def __init__(
        self,
        group: Sequence[str],
        sizes: Mapping[str, int],
        scopes: Sequence[frozenset[str]],
        needs: Mapping[str, frozenset[str]],
    ) -> None:
        place = {name: index for index, name in enumerate(sizes)}
        self._group = sorted(group, key=lambda name: place[name])
        self._bits = {name: 1 << index for index, name in enumerate(self._group)}
        self._logs = {name: math.log(max(sizes[name], 1)) for name in self._group}
        mine = [scope for scope in scopes if scope & self._bits.keys()]
        self._scopes = [self._mask(scope) for scope in mine]
        self._needs = {name: self._mask(needs.get(name, frozenset())) for name in self._group}

    def _mask(self, names: Iterable[str]) -> int:
        return sum(self._bits[name] for name in names)

    def from_start(self, first: str) -> tuple[float, list[str]]:
        """The order that begins with `first`, and its cost."""
        order = [first]
        decided = self._bits[first]
        width = self._open_width(decided)
        cost = math.exp(self._logs[first])
        while len(order) < len(self._group):
            ready = [
                name
                for name in self._group
                if not decided & self._bits[name] and self._needs[name] & ~decided == 0
            ]
            widths = {name: self._open_width(decided | self._bits[name]) for name in ready}
            chosen = min(ready, key=widths.__getitem__)
            cost += math.exp(min(width + self._logs[chosen], 700.0))
            decided |= self._bits[chosen]
            width = widths[chosen]
            order.append(chosen)
        return cost, order

    def _open_width(self, decided: int) -> float:
        """The logarithm of how many ways the open parameters can be decided."""
        remembered = 0
        for scope in self._scopes:
            if scope & ~decided:
                remembered |= scope & decided
        return sum(self._logs[name] for name, bit in self._bits.items() if remembered & bit)
