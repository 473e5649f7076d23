"""The config of a call, in microseconds: exact, learned or default. Nothing here measures or
starts a process.
"""

from tritune.policy.process import (
    answer_for,
    config_for,
    forced,
    forget,
    mode,
    refresh,
    verify_agreement,
)
from tritune.policy.serving import warm

__all__ = [
    "answer_for",
    "config_for",
    "forced",
    "forget",
    "mode",
    "refresh",
    "verify_agreement",
    "warm",
]
