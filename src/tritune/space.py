"""What can be tuned about a kernel: named parameters with domains, and constraints between them.

A parameter may exist on some device families only; its domain may differ between them. Constraints
are Python expressions over the parameters, the fields of the problem, and `family` and `arch`; they
are applied as soon as all their names are known, so that whole subtrees of the product are never
visited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, TypeAlias

from tritune.errors import TrituneError

Value: TypeAlias = "int | float | bool | str"

FAMILIES = ("cuda", "hip", "cpu")


class SpaceError(TrituneError):
    """A space or a config that does not make sense."""


@dataclass(frozen=True)
class Config:
    """One point of a space: what a kernel is compiled with."""

    values: tuple[tuple[str, Value], ...]

    @staticmethod
    def of(**values: Value) -> Config:
        return Config(tuple(values.items()))

    def __getitem__(self, name: str) -> Value:
        return dict(self.values)[name]

    def as_kwargs(self) -> dict[str, Value]:
        """Keyword arguments of a launch: constexprs and compile options alike."""
        return dict(self.values)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)


@dataclass(frozen=True)
class Parameter:
    """A name and its values on the families where it exists."""

    name: str
    values: tuple[Value, ...]
    families: tuple[str, ...] = FAMILIES

    def __post_init__(self) -> None:
        if not self.values:
            raise SpaceError(f"parameter {self.name} has no values")
        unknown = set(self.families) - set(FAMILIES)
        if unknown:
            raise SpaceError(f"parameter {self.name}: {sorted(unknown)} are none of {FAMILIES}")


@dataclass(frozen=True)
class Space:
    parameters: tuple[Parameter, ...]
    constraints: tuple[str, ...] = ()
    _compiled: dict[str, CodeType] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for text in self.constraints:
            try:
                self._compiled[text] = compile(text, "<constraint>", "eval")
            except SyntaxError as error:
                raise SpaceError(f"constraint {text!r} is not an expression: {error.msg}") from None

    def parameters_on(self, family: str) -> tuple[Parameter, ...]:
        """The parameters that exist on a family, in the order they were declared."""
        found = tuple(p for p in self.parameters if family in p.families)
        names = [p.name for p in found]
        if len(set(names)) != len(names):
            raise SpaceError(f"a parameter is declared twice for {family}: {names}")
        return found

    def configs(
        self, family: str, arch: int | str = 0, problem: Mapping[str, Any] | None = None
    ) -> Iterator[Config]:
        """Every valid config, lazily, in the order of the declared values."""
        parameters = self.parameters_on(family)
        known: dict[str, Any] = {**(problem or {}), "family": family, "arch": arch}
        order = [p.name for p in parameters]
        due = self._schedule(known, order)
        if all(self._holds(text, known) for text in due[0]):
            yield from self._descend(parameters, due, known, 0)

    def size(
        self, family: str, arch: int | str = 0, problem: Mapping[str, Any] | None = None
    ) -> int:
        return sum(1 for _ in self.configs(family, arch, problem))

    def check(
        self,
        config: Config,
        family: str,
        arch: int | str = 0,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        """Raise SpaceError with every reason why the config is not a point of the space."""
        parameters = {p.name: p for p in self.parameters_on(family)}
        values = config.as_kwargs()
        reasons = [
            f"{name} does not exist on {family}" for name in values if name not in parameters
        ]
        for name, parameter in parameters.items():
            if name not in values:
                reasons.append(f"{name} is missing")
            elif values[name] not in parameter.values:
                reasons.append(f"{name}={values[name]} is none of {parameter.values}")
        if not reasons:
            known = {**(problem or {}), **values, "family": family, "arch": arch}
            due = self._schedule(known, [])[0]
            reasons = [f"{text} does not hold" for text in due if not self._holds(text, known)]
        if reasons:
            raise SpaceError(f"not a config of this space ({config}): " + "; ".join(reasons))

    def _schedule(self, known: Mapping[str, Any], order: list[str]) -> list[list[str]]:
        """After which parameter each constraint can be decided; constraints on absent ones drop
        out.
        """
        places = {name: place + 1 for place, name in enumerate(order)}
        everywhere = {p.name for p in self.parameters}
        due: list[list[str]] = [[] for _ in range(len(order) + 1)]
        for text, code in self._compiled.items():
            names = set(code.co_names) - {"min", "max", "abs"}
            missing = names - set(known) - set(places)
            if missing - everywhere:
                raise SpaceError(
                    f"constraint {text!r} names unknown {sorted(missing - everywhere)}"
                )
            if not missing:
                due[max((places.get(name, 0) for name in names), default=0)].append(text)
        return due

    def _holds(self, text: str, known: Mapping[str, Any]) -> bool:
        helpers = {"__builtins__": {"min": min, "max": max, "abs": abs}}
        return bool(eval(self._compiled[text], helpers, dict(known)))

    def _descend(
        self,
        parameters: tuple[Parameter, ...],
        due: list[list[str]],
        known: dict[str, Any],
        depth: int,
    ) -> Iterator[Config]:
        if depth == len(parameters):
            yield Config(tuple((p.name, known[p.name]) for p in parameters))
            return
        name = parameters[depth].name
        for value in parameters[depth].values:
            known[name] = value
            if all(self._holds(text, known) for text in due[depth + 1]):
                yield from self._descend(parameters, due, known, depth + 1)
        del known[name]
