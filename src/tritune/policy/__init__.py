"""Which config to use, in microseconds: exact, learned, default. Nothing here measures."""

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
