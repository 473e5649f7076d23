"""Rejecting a config by the facts of its binary: impossible to launch, or not worth measuring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tritune.space import Config
from tritune.targets.binary import BinaryFacts
from tritune.targets.limits import Limits
from tritune.targets.occupancy import reasons_against

#: Why a candidate is dropped, in the order in which reports list them.
REASONS = ("out_of_resources", "spills", "compile_error", "timeout", "duplicate")

#: A thread that keeps more than this part of its registers' size in memory as well spills badly.
#: Winners of real tunings do spill: what is live across a loop but not used in it costs little.
SPILLED_PART = 0.5
#: The same for a config that could have more registers and chose not to: that is done for the sake
#: of more warps at once, which fewer registers give, but memory in their place does not.
CHOSEN_SPILLED_PART = 0.125
#: Columns of the memory that products of sm_100 and later accumulate in.
TENSOR_MEMORY_COLUMNS = 512
_REGISTER_BYTES = 4


class Rejection(NamedTuple):
    """Why a candidate is dropped: one of REASONS, and a text for people."""

    reason: str
    message: str


def rejection_of(
    config: Config, facts: Mapping[str, Any], limits: Limits | None
) -> Rejection | None:
    """Return why a config whose binary has these facts is dropped; None if it is worth measuring.

    Without limits, as for CPUs, everything can run.
    """
    if limits is None:
        return None
    columns = facts.get("tensor_memory_columns") or 0
    reasons = reasons_against(binary_facts(facts), facts["num_warps"], limits)
    if columns > TENSOR_MEMORY_COLUMNS:
        reasons.append(f"{columns} columns of tensor memory, allowed: {TENSOR_MEMORY_COLUMNS}")
    if reasons:
        return Rejection("out_of_resources", "; ".join(reasons))
    spilled, registers = facts.get("spills") or 0, facts.get("registers") or 0
    most = limits.registers_per_core // (facts["num_warps"] * limits.warp_size)
    budget = register_budget(config, limits)
    chosen = budget is not None and budget < min(most, limits.registers_per_thread)
    part = CHOSEN_SPILLED_PART if chosen else SPILLED_PART
    if spilled > part * _REGISTER_BYTES * registers:
        return Rejection("spills", f"{spilled} bytes of a thread, beside {registers} registers")
    return None


def binary_facts(facts: Mapping[str, Any]) -> BinaryFacts:
    """Return a build's facts as the functions of `targets/` take them."""
    return BinaryFacts(
        facts.get("registers"), facts.get("spills"), facts["shared_bytes"], facts["code_bytes"]
    )


class Spilling:
    """Configs that spill badly; with fewer registers they would spill more."""

    def __init__(self, limits: Limits | None) -> None:
        self._limits = limits
        self._budgets: dict[frozenset[Any], int] = {}

    def add(self, config: Config) -> None:
        """Note that a config spills badly."""
        rest, budget = self._budget(config)
        if budget is not None:
            self._budgets[rest] = max(budget, self._budgets.get(rest, 0))

    def implies(self, config: Config) -> bool:
        """Return whether a config spills badly because one does that may use as many registers."""
        rest, budget = self._budget(config)
        return budget is not None and budget <= self._budgets.get(rest, 0)

    def _budget(self, config: Config) -> tuple[frozenset[Any], int | None]:
        budget = register_budget(config, self._limits)
        rest = frozenset(item for item in config.values if item[0] not in BUDGET_OPTIONS)
        return rest, budget


#: The options that say nothing but how many registers a thread may have.
BUDGET_OPTIONS = ("maxnreg", "waves_per_eu")


def register_budget(config: Config, limits: Limits | None) -> int | None:
    """Return how many registers a config lets a thread have; None where it does not say."""
    if limits is None:
        return None
    most = config.get("maxnreg")
    if isinstance(most, int):
        return most
    waves = config.get("waves_per_eu")
    if not isinstance(waves, int):
        return None
    # 0 leaves it to the compiler, which takes what there is.
    of_a_scheduler = limits.registers_per_core // (limits.schedulers * limits.warp_size)
    return min(limits.registers_per_thread, of_a_scheduler // max(waves, 1))
