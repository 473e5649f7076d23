"""Spaces of configs: parameters with domains, and constraints between them.

Nothing here knows how a kernel is compiled, run or timed.
"""

from tritune.space.bound import BoundSpace
from tritune.space.config import Config, SpaceError, Value
from tritune.space.listed import Listed
from tritune.space.parameter import FAMILIES, Parameter
from tritune.space.points import Points
from tritune.space.space import Space

__all__ = [
    "FAMILIES",
    "BoundSpace",
    "Config",
    "Listed",
    "Parameter",
    "Points",
    "Space",
    "SpaceError",
    "Value",
]
