"""Assertions for tests of Triton kernels, tritune's own and any other.

The numerical rule, memory that catches stray reads and writes, Triton's interpreter as a second
opinion, and configs that misbehave on purpose. docs/testing.md shows each at work.
"""

from __future__ import annotations

from tritune.testing.faults import FAULTS, faulty
from tritune.testing.interpreter import assert_matches_interpreter, interpret
from tritune.testing.launch import fresh, launch
from tritune.testing.memory import around, assert_contained, surrounded
from tritune.testing.rule import assert_agrees, assert_same_bits, assert_within_rule

__all__ = [
    "FAULTS",
    "around",
    "assert_agrees",
    "assert_contained",
    "assert_matches_interpreter",
    "assert_same_bits",
    "assert_within_rule",
    "faulty",
    "fresh",
    "interpret",
    "launch",
    "surrounded",
]
