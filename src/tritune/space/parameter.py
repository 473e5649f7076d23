"""Parameters: names with the values that they can take, and the families where they exist."""

from __future__ import annotations

import functools
import keyword
from collections.abc import Iterable
from dataclasses import dataclass

from tritune.space.config import SpaceError, Value, check_value, distinct
from tritune.space.expression import FUNCTIONS, Expression, integers, powers_of_two

FAMILIES = ("cuda", "hip", "cpu")

#: Names that every expression may use for the target.
PLACE_NAMES = ("family", "arch")


@dataclass(frozen=True)
class Parameter:
    """A name and its values on the families where it exists.

    The values are a tuple; or an expression that gives one and may name other parameters, fields of
    the problem, `family` and `arch`: "powers_of_two(16, columns)", or
    "(1, 2, 3, 4) if BLOCK_K < 128 and arch >= 80 else (1, 2)".
    """

    name: str
    values: tuple[Value, ...] | str
    families: tuple[str, ...] = FAMILIES

    @staticmethod
    def powers_of_two(
        name: str, low: int | str, high: int | str, families: tuple[str, ...] = FAMILIES
    ) -> Parameter:
        """Take powers of two from `low` to `high`; a bound may be an expression."""
        if isinstance(low, int) and isinstance(high, int):
            return Parameter(name, powers_of_two(low, high), families)
        return Parameter(name, f"powers_of_two({low}, {high})", families)

    @staticmethod
    def integers(
        name: str,
        low: int | str,
        high: int | str,
        step: int = 1,
        families: tuple[str, ...] = FAMILIES,
    ) -> Parameter:
        """Take whole numbers from `low` to `high`, included; a bound may be an expression."""
        if isinstance(low, int) and isinstance(high, int):
            return Parameter(name, integers(low, high, step), families)
        return Parameter(name, f"integers({low}, {high}, {step})", families)

    @staticmethod
    def choice(
        name: str, values: Iterable[Value], families: tuple[str, ...] = FAMILIES
    ) -> Parameter:
        """Take one of the values."""
        return Parameter(name, tuple(values), families)

    @staticmethod
    def boolean(name: str, families: tuple[str, ...] = FAMILIES) -> Parameter:
        """Take False or True."""
        return Parameter(name, (False, True), families)

    def __post_init__(self) -> None:
        name = self.name
        if not name.isidentifier() or keyword.iskeyword(name):
            raise SpaceError(f"{name!r} cannot be the name of a parameter: it is no Python name")
        if name in FUNCTIONS or name in PLACE_NAMES:
            raise SpaceError(f"{name} cannot be the name of a parameter: it means something else")
        unknown = set(self.families) - set(FAMILIES)
        if unknown:
            raise SpaceError(f"parameter {name}: {sorted(unknown)} are none of {FAMILIES}")
        if isinstance(self.values, str):
            _ = self.domain
            return
        object.__setattr__(self, "values", tuple(self.values))
        if not self.values:
            raise SpaceError(f"parameter {name} has no values")
        for value in self.values:
            check_value(name, value)
        if len(distinct(self.values)) < len(self.values):
            raise SpaceError(f"parameter {name} has a value twice: {self.values}")

    @functools.cached_property
    def domain(self) -> tuple[Value, ...] | Expression:
        """Return the values, or the expression that computes them."""
        if isinstance(self.values, str):
            return Expression.parse(self.values, f"the domain of {self.name}, {self.values!r},")
        return self.values

    def __reduce__(self) -> tuple[object, ...]:
        # Compiled code cannot be pickled; it is compiled again from the text.
        return Parameter, (self.name, self.values, self.families)
