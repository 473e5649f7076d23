"""How a space is searched: which parameter is decided when, and what is remembered of it."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritune.space.config import SpaceError, Value, check_value
from tritune.space.expression import Expression, function_of, names_in
from tritune.space.listed import in_order
from tritune.space.order import decision_order
from tritune.space.partial import RUNTIME, Partial, fold_condition, fold_value, rebuilt

Domain = tuple[Value, ...]
#: A function of the values decided so far.
OfValues = Callable[[Sequence[Any]], Any]

#: Ways to decide what a domain depends on; with more, its values are not all known beforehand.
_DOMAIN_LIMIT = 100_000


@dataclass(frozen=True)
class Update:
    """One part of the state, computed anew."""

    #: What is left of a constraint or a domain.
    left: OfValues
    #: What to put there instead where `left` fails; or raises the error, if that is one.
    otherwise: Callable[[Sequence[Any], Exception], Any]
    #: Where the state has what was left before; None if nothing of it was decided yet.
    before: int | None = None

    def __call__(self, values: Sequence[Any]) -> Any:
        try:
            return self.left(values)
        except Exception as error:
            return self.otherwise(values, error)


@dataclass(frozen=True)
class Step:
    """Deciding one parameter: where its value goes, and how the state changes."""

    place: int
    #: The parameter's values, or None where the state has them, at `domain_at`.
    domain: Domain | None
    domain_at: int
    #: Which parts of the state stay as they are.
    kept: tuple[int, ...]
    #: What is decided now, and has to hold.
    checks: tuple[Update, ...]
    #: What is still open, and follows the parts that are kept.
    updates: tuple[Update, ...]

    @property
    def is_free(self) -> bool:
        """Whether any of the parameter's values will do, and all of them lead to the same."""
        return self.domain is not None and not self.checks and not self.updates


@dataclass(frozen=True, eq=False)
class _Open:
    """A condition, or the domain of `owner`, that depends on parameters."""

    expression: Expression
    tree: ast.expr
    names: frozenset[str]
    owner: str | None = None


class Plan:
    """Domains and constraints with all that is known put in, and the steps that decide them."""

    def __init__(
        self,
        domains: Mapping[str, Domain | Expression],
        constraints: Iterable[Expression],
        known: Mapping[str, Any],
    ) -> None:
        self._known = known
        self.names = tuple(domains)
        #: False where what is known breaks a constraint by itself.
        self.possible = True
        self._domains: dict[str, Domain] = {}
        self._computed: dict[str, _Open] = {}
        for name, domain in domains.items():
            self._add_domain(name, domain)
        self._conditions: list[_Open] = []
        for constraint in constraints:
            self._add_constraint(constraint)
        #: Every value a parameter can take.
        self.values = {name: self._all_values(name, ()) for name in self.names}

    @functools.cached_property
    def steps(self) -> tuple[Step, ...]:
        needs = {name: computed.names for name, computed in self._computed.items()}
        items = [*self._conditions, *self._computed.values()]
        order = decision_order(
            {name: len(values) for name, values in self.values.items()},
            [item.names | ({item.owner} if item.owner else frozenset()) for item in items],
            needs,
        )
        steps: list[Step] = []
        layout: list[_Open] = []
        for depth, name in enumerate(order):
            step, layout = self._step(name, frozenset(order[: depth + 1]), layout, items)
            steps.append(step)
        return tuple(steps)

    def _step(
        self, name: str, decided: frozenset[str], layout: list[_Open], items: list[_Open]
    ) -> tuple[Step, list[_Open]]:
        """The step that decides `name`, and what the state is made of after it."""
        place_of = {id(item): place for place, item in enumerate(layout)}
        kept = [item for item in layout if name not in item.names and item.owner != name]
        checks: list[Update] = []
        updates: list[Update] = []
        updated: list[_Open] = []
        for item in items:
            if name not in item.names:
                continue
            update = self._update(item, decided, place_of.get(id(item)))
            if item.owner is None and item.names <= decided:
                checks.append(update)
            else:
                updates.append(update)
                updated.append(item)
        computed = self._computed.get(name)
        step = Step(
            place=self.names.index(name),
            domain=None if computed else self._domains[name],
            domain_at=place_of[id(computed)] if computed else -1,
            kept=tuple(place_of[id(item)] for item in kept),
            checks=tuple(checks),
            updates=tuple(updates),
        )
        return step, [*kept, *updated]

    def _update(self, item: _Open, decided: frozenset[str], before: int | None) -> Update:
        """What is left of an item once these parameters are decided."""
        if item.names <= decided:
            return self._exact(item, before)
        partial = Partial(decided, item.names - decided)
        tree = partial.remainder(item.tree) if item.owner else partial.decision(item.tree)
        places = [self.names.index(name) for name in item.names & decided]

        def otherwise(values: Sequence[Any], error: Exception) -> Any:
            # What failed may never be looked at, so that is no error yet. Whatever matters to the
            # rest follows from the values themselves.
            return "undecided", *[values[place] for place in places]

        return Update(self._compiled(tree), otherwise, before)

    def _exact(self, item: _Open, before: int | None = None) -> Update:
        compute = left = self._compiled(item.tree)
        if item.owner is not None:

            def left(values: Sequence[Any]) -> Any:
                return domain_values(item.expression, compute(values))

        def otherwise(values: Sequence[Any], error: Exception) -> Any:
            if isinstance(error, SpaceError):
                raise error
            decided = {name: values[self.names.index(name)] for name in item.names}
            raise item.expression.failure(error, {**self._known, **decided}) from None

        return Update(left, otherwise, before)

    def _compiled(self, tree: ast.expr) -> OfValues:
        places = {name: place for place, name in enumerate(self.names)}

        def placed(node: ast.expr) -> ast.expr:
            if isinstance(node, ast.Name) and node.id in places:
                values = ast.Name("_values", ast.Load())
                return ast.Subscript(values, ast.Constant(places[node.id]), ast.Load())
            return rebuilt(node, placed)

        return function_of(placed(tree), ("_values",), {**self._known, **RUNTIME})

    def _add_domain(self, name: str, domain: Domain | Expression) -> None:
        if isinstance(domain, tuple):
            self._domains[name] = domain
            return
        tree = fold_value(domain.tree, self._known)
        item = _Open(domain, tree, names_in(tree) - self._known.keys(), owner=name)
        if item.names:
            self._computed[name] = item
        else:
            self._domains[name] = self._exact(item)(())

    def _all_values(self, name: str, above: tuple[str, ...]) -> Domain:
        """Every value the parameter takes, whatever those that its domain depends on are."""
        if name in self._domains:
            return self._domains[name]
        if name in above:
            circle = " -> ".join([*above[above.index(name) :], name])
            raise SpaceError(f"domains depend on each other in a circle: {circle}")
        item = self._computed[name]
        needed = sorted(item.names)
        domains = [self._all_values(other, (*above, name)) for other in needed]
        if math.prod(map(len, domains)) > _DOMAIN_LIMIT:
            raise SpaceError(
                f"{item.expression.purpose} depends on too many values: "
                "let it depend on fewer parameters, and say the rest in a constraint"
            )
        compute = self._exact(item)
        values: list[Any] = [None] * len(self.names)
        found: dict[tuple[type, Value], Value] = {}
        for chosen in itertools.product(*domains):
            for other, value in zip(needed, chosen, strict=True):
                values[self.names.index(other)] = value
            # Where it cannot be computed a constraint may forbid the choice; if not, solving fails.
            with contextlib.suppress(SpaceError):
                found.update({(type(value), value): value for value in compute(values)})
        return in_order(found.values())

    def _add_constraint(self, constraint: Expression) -> None:
        tree = fold_condition(constraint.tree, self._known)
        item = _Open(constraint, tree, names_in(tree) - self._known.keys())
        if not item.names:
            self.possible &= bool(self._exact(item)(()))
            return
        (name, *others) = item.names
        if others or name in self._computed:
            self._conditions.append(item)
            return
        # A constraint on one parameter is a smaller domain.
        holds = self._exact(item)
        before = [None] * self.names.index(name)
        self._domains[name] = tuple(v for v in self._domains[name] if holds((*before, v)))


def domain_values(expression: Expression, value: Any) -> Domain:
    """A domain's values as they were computed, or SpaceError if they are no values."""
    if not isinstance(value, tuple):
        raise SpaceError(f"{expression.purpose} gives {value!r}, not a tuple of values")
    for item in value:
        check_value(expression.purpose, item)
    return tuple({(type(item), item): item for item in value}.values())
