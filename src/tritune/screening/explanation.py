"""What became of one config, in words."""

from __future__ import annotations

from tritune.screening.ranking import estimate_of
from tritune.screening.screen import Screened
from tritune.screening.service import known_limits
from tritune.screening.verdict import binary_facts
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
    """The verdict on a config, what its binary needs, and what the model expects of it."""
    subject, build = screened.subject, screened.builds[config]
    verdict, limits = screened.verdicts[config], known_limits(subject.target)
    lines = [f"{subject.target} {subject.workload.name}: {config}"]
    if verdict.reason is None:
        lines.append("worth measuring")
    else:
        lines.append(f"dropped, {verdict.reason}: {verdict.message}")
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
        guess = estimate_of(subject, config, facts, limits)
        if guess is not None:
            lines.append(explain(guess))
    return "\n".join(lines)
