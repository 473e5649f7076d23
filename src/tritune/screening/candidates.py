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
    by_constants: defaultdict[str, list[Config]] = defaultdict(list)
    for config in configs:
        key = [item for item in sorted(config.values) if item[0] in constants]
        by_constants[repr(key)].append(config)

    def order(config: Config) -> tuple[str, int, str]:
        rest = [item for item in sorted(config.values) if item[0] not in BUDGET_OPTIONS]
        return repr(rest), -(register_budget(config, limits) or 0), config.key

    found: list[list[Config]] = []
    for members in by_constants.values():
        found += _chunks(sorted(members, key=order))
    random.Random(seed).shuffle(found)
    return found


def _chunks(ordered: Sequence[Config]) -> list[list[Config]]:
    """Parts of about GROUP_SIZE; configs that share a text stay together."""
    found: list[list[Config]] = [[]]
    last: object = None
    for config in ordered:
        rest = frozenset(item for item in config.values if item[0] not in BUDGET_OPTIONS)
        if len(found[-1]) >= GROUP_SIZE and rest != last:
            found.append([])
        found[-1].append(config)
        last = rest
    return found
