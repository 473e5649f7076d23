"""The answer of the nearest known problem: for few problems, and for files that people review."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritune.policy.features import Fields, distance, same_kind
from tritune.space import Config

if TYPE_CHECKING:
    from tritune.store.winner import Winner

#: So many different configs are offered, should the first not be valid for the problem.
OFFERED = 4


@dataclass(frozen=True)
class Nearest:
    """Problems with their winners. The order of the problems decides between equally near ones."""

    known: Sequence[tuple[Fields, Config]]

    def ranked(self, fields: Fields) -> list[Config]:
        """Winners of problems with the same dtype and flags, the nearest first."""
        alike = [(p, config) for p, config in self.known if same_kind(p, fields)]
        alike.sort(key=lambda pair: distance(pair[0], fields))
        return list(dict.fromkeys(config for _, config in alike))[:OFFERED]

    @staticmethod
    def of(winners: Iterable[Winner]) -> Nearest | None:
        """From winners of one kernel on one device; None if there are none."""
        pairs = [(winner.task.problem, winner.config) for winner in winners]
        known = sorted(pairs, key=lambda pair: pair[0])
        return Nearest([(json.loads(text), config) for text, config in known]) if known else None

    @property
    def configs(self) -> tuple[Config, ...]:
        return tuple(dict.fromkeys(config for _, config in self.known))

    def to_json(self) -> dict[str, Any]:
        return {"known": [[dict(p), config.to_json()] for p, config in self.known]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Nearest:
        return Nearest([(dict(p), Config.from_json(config)) for p, config in data["known"]])
