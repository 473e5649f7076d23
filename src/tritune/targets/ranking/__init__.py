"""A model of how long a launch takes on a GPU that need not be there: it orders candidates, says
what bounds them, and never replaces a measurement.
"""

from tritune.targets.ranking.explain import explain
from tritune.targets.ranking.model import Estimate, estimate
from tritune.targets.ranking.work import LaunchWork, Phase

__all__ = ["Estimate", "LaunchWork", "Phase", "estimate", "explain"]
