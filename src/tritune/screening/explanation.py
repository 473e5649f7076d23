"""The screening of one config, in words."""

from __future__ import annotations

from tritune.screening.ranking import estimate_of
from tritune.screening.rejection import binary_facts
from tritune.screening.screen import Screened
from tritune.screening.service import known_limits
from tritune.space import Config
from tritune.targets.occupancy import occupancy
from tritune.targets.ranking import explain

_UNITS = {
    "code_bytes": "bytes of code",
    "shared_bytes": "bytes of shared memory",
    "num_warps": "warps per block",
    "registers": "registers per thread",
    "spills": "bytes spilled per thread",
    "tensor_memory_columns": "columns of tensor memory",
}


def explanation(screened: Screened, config: Config) -> str:
    """Return whether a config is dropped, what its binary needs, and the model's estimate."""
    task, build = screened.task, screened.builds[config]
    rejection, limits = screened.rejections[config], known_limits(task.target)
    lines = [f"{task.target} {task.workload.name}: {config}"]
    if rejection is None:
        lines.append("worth measuring")
    else:
        lines.append(f"dropped, {rejection.reason}: {rejection.message}")
    if build.binary:
        facts = build.facts
        words = [f"{facts[name]} {unit}" for name, unit in _UNITS.items() if facts.get(name)]
        lines.append(f"binary: {', '.join(words)}")
        if limits is not None:
            fit = occupancy(binary_facts(facts), facts["num_warps"], limits)
            lines.append(
                f"occupancy: {fit.blocks_per_core} blocks per core, {fit.fraction:.0%} of its "
                f"warps, limited by {fit.limited_by}"
            )
        guess = estimate_of(task, config, facts, limits)
        if guess is not None:
            lines.append(explain(guess))
    return "\n".join(lines)
