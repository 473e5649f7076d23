"""Triton's configs as points, and points as Triton's configs.

A point has numbers and text only, so that it can be stored and compared; a `triton.Config` may hold
any constant, and a hook.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import triton

from tritune.space import Config, Listed, Points, Space, Value
from tritune.targets.target import Target

_FIELDS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


#: The program works out the launches of up to this many points; of more, the workers do.
MOST_LISTED = 2048


@dataclass(frozen=True)
class Candidates:
    """The configs that a call can choose from, as points; the default is one of them."""

    points: Points
    default: Config
    #: Triton's own, where there are any.
    listed: Mapping[Config, triton.Config]

    def triton_config(self, point: Config) -> triton.Config:
        return self.listed.get(point) or config_of(point)

    def kwargs(self) -> dict[Config, dict[str, Any]] | None:
        """Return what each point adds to a launch; None where there are too many to list."""
        if self.points.size() > MOST_LISTED:
            return None
        return {point: self.triton_config(point).all_kwargs() for point in self.points.configs()}

    def hooks(self) -> dict[Config, Callable[..., Any]]:
        return {point: config.pre_hook for point, config in self.listed.items() if config.pre_hook}


def candidates_of_list(configs: Sequence[triton.Config]) -> Candidates:
    """Return exactly these configs; the first is the default."""
    listed = points_of(configs)
    return Candidates(Listed(listed), next(iter(listed)), listed)


def candidates_of_space(
    space: Space, target: Target, fields: Mapping[str, Any], configs: Sequence[triton.Config]
) -> Candidates:
    """Return the points of a space; the default is the first of the configs that is one of them."""
    points = space.on(target.family, target.arch, fields)
    listed = {point: config for point, config in points_of(configs).items() if point in points}
    default = next(iter(listed), None) or next(points.configs())
    return Candidates(points, default, listed)


def points_of(configs: Iterable[triton.Config]) -> dict[Config, triton.Config]:
    """Map points to their configs, in order; equal configs count once."""
    found: dict[Config, triton.Config] = {}
    for number, config in enumerate(configs):
        point = _point(config)
        if found.get(point, config) != config:
            # They differ in what a point does not show.
            point = Config.of(**point.as_kwargs(), pre_hook=str(plain(config.pre_hook)))
        if found.get(point, config) != config:
            point = Config.of(**point.as_kwargs(), variant=number)
        found[point] = config
    return found


def config_of(point: Config) -> triton.Config:
    """Return Triton's config for a point of a space."""
    values = point.as_kwargs()
    fields = {name: values.pop(name) for name in _FIELDS if name in values}
    return triton.Config(values, **fields)


def plain(value: Any) -> Value:
    """Return a value as a number or as text, the same in every process."""
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if type(value) in (bool, int, str) or (type(value) is float and value - value == 0):
        return value
    if isinstance(value, (tuple, list)):
        return json.dumps([plain(each) for each in value])
    if isinstance(value, Mapping):
        return json.dumps({str(name): plain(each) for name, each in value.items()})
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return _ADDRESS.sub("", str(value))


def _point(config: triton.Config) -> Config:
    return Config.of(**{name: plain(value) for name, value in config.all_kwargs().items()})
