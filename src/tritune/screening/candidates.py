"""Choosing the configs to screen, and grouping those that compile faster in a row."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tritune.kernels.kernel import Kernel
from tritune.screening.rejection import BUDGET_OPTIONS, register_budget
from tritune.space import Config, Points
from tritune.targets.limits import Limits

#: The most configs that a worker gets at once: few enough that all have something to do at the end.
GROUP_SIZE = 24


def candidates(points: Points, count: int | None, default: Config, seed: int = 0) -> list[Config]:
    """Return all points, or `count` drawn evenly; the default config is always one of them.

    Configs that differ from a drawn one in the register budget only come too: to compile them as
    well takes a fraction of the time.
    """
    if count is None or count >= points.size():
        return list(dict.fromkeys([default, *points.configs()]))
    found = {default: None}
    for config in points.sample(count, random.Random(seed)):
        if len(found) >= count:
            break
        found.update(dict.fromkeys(family(config, points)))
    return list(found)[: max(count, 1)]


def family(config: Config, points: Points) -> list[Config]:
    """Return the config and the points that differ from it in their register budget only."""
    found = [config]
    for name in BUDGET_OPTIONS:
        if name in config:
            others = (
                Config.of(**{**config.as_kwargs(), name: value})
                for value in points.parameters.get(name, ())
            )
            found += [other for other in others if other != config and other in points]
    return found


def groups(
    configs: Iterable[Config], kernel: Kernel, limits: Limits | None, seed: int = 0
) -> list[list[Config]]:
    """Return groups of configs with much in common, those with the most registers first.

    The groups themselves come in no order, so that the pace of some tells of the rest.
    """
    constants = {name for function in kernel.functions for name in function.arg_names}

    def sizes(config: Config) -> str:
        """Return the constants of the code but its flags, which often change nothing in the end."""
        named = (item for item in sorted(config.values) if item[0] in constants)
        return repr([item for item in named if not isinstance(item[1], bool)])

    def order(config: Config) -> tuple[str, str, int, str]:
        # Of equal budgets the one that asks for nothing is first: the texts of others can be made
        # from its text, but not always the other way round.
        asked = [config[name] for name in BUDGET_OPTIONS if name in config]
        flags = [item for item in sorted(config.values) if isinstance(item[1], bool)]
        budget = register_budget(config, limits) or 0
        return _options(config), repr(flags), -budget, repr(asked)

    by_sizes: defaultdict[str, list[Config]] = defaultdict(list)
    for config in configs:
        by_sizes[sizes(config)].append(config)
    found: list[list[Config]] = []
    for members in by_sizes.values():
        found += _chunks(sorted(members, key=order))
    random.Random(seed).shuffle(found)
    return found


def _options(config: Config) -> str:
    """Return a config without its flags and its register budget."""
    named = (item for item in sorted(config.values) if item[0] not in BUDGET_OPTIONS)
    return repr([item for item in named if not isinstance(item[1], bool)])


def _chunks(ordered: Sequence[Config]) -> list[list[Config]]:
    """Split into groups of about GROUP_SIZE, up to twice that for configs that may share a text."""
    found: list[list[Config]] = [[]]
    options: object = None
    rest: object = None
    for config in ordered:
        mine = _options(config)
        own = frozenset(item for item in config.values if item[0] not in BUDGET_OPTIONS)
        size = len(found[-1])
        if (size >= GROUP_SIZE and mine != options) or (size >= 2 * GROUP_SIZE and own != rest):
            found.append([])
        found[-1].append(config)
        options, rest = mine, own
    return found
