"""A performance model of launches on GPUs that need not be there. It ranks candidates and names
their bottleneck; it does not replace measuring.
"""

from tritune.targets.ranking.explain import explain
from tritune.targets.ranking.model import Estimate, estimate
from tritune.targets.ranking.work import LaunchWork, Phase

__all__ = ["Estimate", "LaunchWork", "Phase", "estimate", "explain"]
