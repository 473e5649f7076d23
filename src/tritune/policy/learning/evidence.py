"""Decide whether a config that won for other problems may be used for one never measured.

A tuned config is often the worst choice a little further away: the best tile for one row computes
one row at a time for a thousand. So a config is used for a problem that was not tuned only if
measurements on both sides of it say that it beats the config that the call would have otherwise,
the kernel's default for that very problem. Everything else runs with the default.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tritune.policy.learning.measured import Halves, Measured, Valid
from tritune.policy.nearest import Fields, is_size, nearest_configs, same_kind
from tritune.space import Config

#: A near problem's sizes are at most so many times as large or as small.
NEAR = 2
#: By which share of the default's time a config must have been faster: more than the noise.
MARGIN = 0.03


@dataclass(frozen=True)
class Evidence:
    """The times of the winners and the defaults for each known problem: from one half of the
    samples and from the other, because the best of many noisy times is too good to be true.
    """

    times_ms: Sequence[tuple[Fields, Mapping[Config, Halves]]]

    @staticmethod
    def of(rows: Sequence[Measured]) -> Evidence:
        """Collect what is known of the winners and of all defaults."""
        wanted = {config for row in rows for config in (row.fastest(1)[0], row.default) if config}
        listed = sorted(wanted, key=lambda config: config.key)
        return Evidence(
            [(row.problem, {c: row.halves(c) for c in listed if c in row.times_ms}) for row in rows]
        )

    @functools.cached_property
    def winners(self) -> Sequence[tuple[Fields, Config]]:
        """Return the known problems, each with the fastest config; none where all failed."""
        found = []
        for problem, times in self.times_ms:
            ran = [config for config, halves in times.items() if math.isfinite(sum(halves))]
            if ran:
                found.append((problem, min(ran, key=lambda c: (sum(times[c]), c.key))))
        return found

    def nearest(self, fields: Fields) -> list[Config]:
        """Return the winners of the nearest problems."""
        return nearest_configs(self.winners, fields)

    def answer(self, fields: Fields, default: Config, valid: Valid) -> Config | None:
        """Return the first winner of a near problem that measurements speak for; None where the
        default is the winner of a nearer one, or there is none.
        """
        for config in self.nearest(fields):
            if config == default:
                return None
            if valid(config, fields) and self.supports(fields, config, default):
                return config
        return None

    def supports(self, fields: Fields, config: Config, default: Config) -> bool:
        """Return whether a config beat this default by more than the noise for every near problem
        where both were measured, and the problem's sizes lie between those of such problems.
        """
        near = [
            (problem, times)
            for problem, times in self.times_ms
            if config in times and default in times and is_near(problem, fields)
        ]
        if not near or not all(_beats(times[config], times[default]) for _, times in near):
            return False
        problems = [problem for problem, _ in near]
        sizes = {name: float(value) for name, value in fields.items() if is_size(value)}
        return all(
            min(float(p[name]) for p in problems) <= size <= max(float(p[name]) for p in problems)
            for name, size in sizes.items()
        )

    def to_json(self) -> list[Any]:
        return [
            [dict(problem), [[config.to_json(), _finite(ms)] for config, ms in times.items()]]
            for problem, times in self.times_ms
        ]

    @staticmethod
    def from_json(data: Sequence[Any]) -> Evidence:
        return Evidence(
            [
                (dict(problem), {Config.from_json(c): _halves(ms) for c, ms in times})
                for problem, times in data
            ]
        )


def is_near(one: Fields, other: Fields) -> bool:
    """Return whether two problems differ in sizes only, and in those by a factor of two at most.

    Tiles are powers of two, so a size that is none (2560 columns beside 2048) may be another
    regime altogether: unless both are powers of two, sizes must be equal.
    """
    return same_kind(one, other) and all(
        value == other[name] or _doubles(value, other[name]) for name, value in one.items()
    )


def _doubles(one: Any, other: Any) -> bool:
    if not (_is_power_of_two(one) and _is_power_of_two(other)):
        return False
    return bool(max(one, other) <= NEAR * min(one, other))


def _is_power_of_two(value: Any) -> bool:
    return is_size(value) and value == int(value) > 0 and int(value) & (int(value) - 1) == 0


def _beats(config: Halves, default: Halves) -> bool:
    return all(a <= (1 - MARGIN) * b for a, b in zip(config, default, strict=True))


def _finite(ms: Halves) -> list[float] | None:
    """Return the times as JSON; None for a config that failed."""
    return list(ms) if math.isfinite(sum(ms)) else None


def _halves(ms: Sequence[float] | None) -> Halves:
    if ms is None:
        return math.inf, math.inf
    first, second = ms
    return float(first), float(second)
