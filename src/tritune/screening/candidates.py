"""Which configs are screened, and which of them are compiled in a row."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tritune.kernels.kernel import Kernel
from tritune.screening.verdict import BUDGET_OPTIONS, register_budget
from tritune.space import Config, Points
from tritune.targets.limits import Limits

#: The most configs that a worker gets at once: few enough that all have something to do at the end.
GROUP_SIZE = 24


def candidates(points: Points, count: int | None, default: Config, seed: int = 0) -> list[Config]:
    """All points, or `count` drawn evenly; the default config is always one of them.

    Of a config that is drawn, those come too that differ only in how many registers a thread may
    have: to compile them as well takes a fraction of the time.
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
    """The config and the points that differ from it in their register budget only."""
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
    """Configs with much in common together, those with the most registers first among their like.

    The groups themselves come in no order, so that the pace of some tells of the rest.
    """
    constants = {name for function in kernel.functions for name in function.arg_names}

    def sizes(config: Config) -> str:
        """Constants of the code but for its flags, which often make no difference in the end."""
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
    """What a config says beside its flags and how many registers a thread may have."""
    named = (item for item in sorted(config.values) if item[0] not in BUDGET_OPTIONS)
    return repr([item for item in named if not isinstance(item[1], bool)])


def _chunks(ordered: Sequence[Config]) -> list[list[Config]]:
    """Parts of about GROUP_SIZE; configs that may share a text stay together, up to twice that."""
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
