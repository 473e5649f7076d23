"""Write a learned policy as a Python function that people can read, review and paste elsewhere."""

from __future__ import annotations

from tritune.policy.learning.learned import LearnedPolicy
from tritune.space import Config

_FUNCTIONS = '''

def choose(problem):
    """Return the config of the nearest problem in KNOWN, or None where none has the same dtype and
    flags.
    """
    away = [(distance(problem, known), config) for known, config in KNOWN]
    nearest, config = min(away, key=first, default=(math.inf, None))
    return config if nearest < math.inf else None


def distance(one, other):
    """Return the powers of two between the sizes of two problems."""
    if one.keys() != other.keys():
        return math.inf
    away = 0.0
    for name in sorted(one):
        a, b = one[name], other[name]
        if a == b:
            continue
        if isinstance(a, (bool, str)) or isinstance(b, (bool, str)):
            return math.inf
        away += abs(power_of_two(a) - power_of_two(b))
    return round(away, 9)


def power_of_two(size):
    return math.log2(size) if size > 0 else -1.0


def first(pair):
    return pair[0]
'''


def export_python(policy: LearnedPolicy) -> str:
    """Return the source of a module with a function `choose(problem)`.

    `problem` is a mapping with the fields of the kernel's problem; the result is a mapping of
    keyword arguments, or None for a dtype or flags that the policy has learned nothing about.
    """
    winners = policy.evidence.winners
    configs = list(dict.fromkeys(config for _, config in winners))
    lines = [
        f'"""Configs of {policy.kernel}, learned from {policy.problems} problems.',
        "",
        *policy.describe(),
        "The function has an answer for any problem; calls ask for evidence beside it.",
        f"Kernel {policy.identity}, device {policy.device}, data {policy.data}.",
        '"""',
        "",
        "import math",
        "",
        *(f"C{i} = {_literal(config)}" for i, config in enumerate(configs)),
        "",
        "KNOWN = [",
        *(f"    ({dict(fields)!r}, C{configs.index(config)})," for fields, config in winners),
        "]",
    ]
    return "\n".join(lines) + "\n" + _FUNCTIONS


def _literal(config: Config) -> str:
    return f"dict({', '.join(f'{name}={value!r}' for name, value in config.to_json().items())})"
