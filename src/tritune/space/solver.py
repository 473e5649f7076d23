"""Counts, numbers and lists the solutions of constraints without visiting them one by one.

Parameters are decided in a fixed order. What the decisions so far mean for the rest is a *state*:
for everything that is still open, what is left of it (see `partial`). Different decisions often
lead to the same state, and then have equally many completions, which are counted once.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from tritune.space.config import Value, has_value
from tritune.space.plan import Domain, Plan, Step

State = tuple[Any, ...]
#: One value for each parameter, in the order of the parameters, not of the decisions.
Solution = tuple[Value, ...]

#: Decisions that are looked at before counting gives up: a few seconds of work.
COUNT_LIMIT = 1_000_000
#: Random ways down that an estimate is made of.
_PROBES = 2_000


class TooLargeError(Exception):
    """Counting would take too long; never leaves this package."""


class Solver:
    """The solutions of a plan."""

    def __init__(self, plan: Plan, limit: int = COUNT_LIMIT) -> None:
        self._plan = plan
        self._steps = plan.steps if plan.possible else ()
        #: For every state that was met, by depth: how many completions it has.
        self._counts: list[dict[State, int]] = [{} for _ in range(len(self._steps) + 1)]
        self._counts[-1][()] = 1 if plan.possible else 0
        tied = [depth for depth, step in enumerate(self._steps) if not step.is_free]
        self._free_from = max(tied, default=-1) + 1
        self._left_to_look_at = limit

    def solutions(self) -> Iterator[Solution]:
        """All of them, lazily, in a fixed order."""
        return self._solutions(0, (), self._blank())

    def count(self) -> int:
        """How many there are; TooLargeError where that would take too long to find out."""
        return self._count(0, (), self._blank())

    def solution(self, number: int) -> Solution:
        """The solution with this number, from 0 to count() - 1."""
        values = self._blank()
        state: State = ()
        for depth in range(len(self._steps)):
            for after in self._branches(depth, state, values):
                count = self._count(depth + 1, after, values)
                if number < count:
                    state = after
                    break
                number -= count
        return tuple(values)

    def estimate(self) -> int:
        """About how many there are: the mean of what random ways down suggest."""
        rng = random.Random(0)
        return max(1, round(sum(self._probe(rng) for _ in range(_PROBES)) / _PROBES))

    def draw(self, rng: random.Random) -> Solution | None:
        """Values drawn at random: each solution with the same chance, or None for no solution."""
        values = self._blank()
        state: State = ()
        for depth, step in enumerate(self._steps):
            value = rng.choice(self._plan.values[self._plan.names[step.place]])
            domain = state[step.domain_at] if step.domain is None else step.domain
            if not has_value(domain, value):
                return None
            after = self._decided(step, state, values, value)
            if after is None or self._counts[depth + 1].get(after) == 0:
                return None
            state = after
        return tuple(values)

    def any_solution(self, rng: random.Random) -> Solution:
        """A random solution, found surely but not with the same chance for each."""
        return next(self._solutions(0, (), self._blank(), rng))

    def _blank(self) -> list[Any]:
        return [None] * len(self._plan.names)

    def _branches(self, depth: int, state: State, values: list[Any]) -> Iterator[State]:
        """The states that the next decision leads to; `values` has the decision."""
        step = self._steps[depth]
        for value in state[step.domain_at] if step.domain is None else step.domain:
            after = self._decided(step, state, values, value)
            if after is not None:
                yield after

    def _decided(self, step: Step, state: State, values: list[Any], value: Value) -> State | None:
        """The state after a decision, or None where it breaks a constraint."""
        values[step.place] = value
        # Written out, not called: this is where all the time goes.
        for check in step.checks:
            if check.before is not None and state[check.before] is True:
                continue
            try:
                holds = check.left(values)
            except Exception as error:
                holds = check.otherwise(values, error)
            if not holds:
                return None
        after = [state[place] for place in step.kept]
        for update in step.updates:
            if update.before is not None and state[update.before] is True:
                after.append(True)
                continue
            try:
                left = update.left(values)
            except Exception as error:
                left = update.otherwise(values, error)
            if left is False:
                return None
            after.append(left)
        return tuple(after)

    def _count(self, depth: int, state: State, values: list[Any]) -> int:
        known = self._counts[depth].get(state)
        if known is not None:
            return known
        step = self._steps[depth]
        if step.is_free and step.domain is not None:
            after = tuple(state[place] for place in step.kept)
            count = len(step.domain) * self._count(depth + 1, after, values)
        else:
            count = 0
            for after in self._branches(depth, state, values):
                self._left_to_look_at -= 1
                if self._left_to_look_at < 0:
                    raise TooLargeError
                count += self._count(depth + 1, after, values)
        self._counts[depth][state] = count
        return count

    def _solutions(
        self, depth: int, state: State, values: list[Any], rng: random.Random | None = None
    ) -> Iterator[Solution]:
        if self._counts[depth].get(state) == 0:
            return
        if depth == self._free_from:
            yield from self._free(values, rng)
            return
        step = self._steps[depth]
        domain = _in_turn(state[step.domain_at] if step.domain is None else step.domain, rng)
        none = True
        for value in domain:
            after = self._decided(step, state, values, value)
            if after is not None:
                for found in self._solutions(depth + 1, after, values, rng):
                    none = False
                    yield found
        if none:
            # Whoever comes to this state again need not look again.
            self._counts[depth][state] = 0

    def _free(self, values: list[Any], rng: random.Random | None) -> Iterator[Solution]:
        """Solutions when all that is left to decide is tied to nothing."""
        free = self._steps[self._free_from :]
        places = [step.place for step in free]
        for chosen in itertools.product(*[_in_turn(step.domain or (), rng) for step in free]):
            for place, value in zip(places, chosen, strict=True):
                values[place] = value
            yield tuple(values)

    def _probe(self, rng: random.Random) -> int:
        """The product of how many branches there were on a random way down."""
        values = self._blank()
        state: State = ()
        ways = 1
        for depth, step in enumerate(self._steps):
            known = self._counts[depth].get(state)
            if known is not None:
                return ways * known
            domain = state[step.domain_at] if step.domain is None else step.domain
            branches = [
                (value, after)
                for value in domain
                if (after := self._decided(step, state, values, value)) is not None
                and self._counts[depth + 1].get(after) != 0
            ]
            if not branches:
                return 0
            ways *= len(branches)
            values[step.place], state = rng.choice(branches)
        return ways


def _in_turn(domain: Domain, rng: random.Random | None) -> Sequence[Value]:
    return domain if rng is None else rng.sample(domain, len(domain))
