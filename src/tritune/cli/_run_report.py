"""Print the line at the end of `tritune run`: what was tuned, what failed, what was left alone."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence

from tritune import env
from tritune.tuning.autotune.run_log import (
    ATTENTION,
    GENERATE,
    RECORDED,
    ROUTED,
    SKIPPED,
    STORED,
    TUNED,
    UNTUNED,
    Event,
    read,
)

_WORDS = {
    TUNED: "tuned",
    STORED: "answered from the store",
    RECORDED: "written down for tritune tune --recorded",
    UNTUNED: "not tuned",
}


def report_at_exit(autotune: bool, integrations: bool) -> None:
    """Begin the log of this process and its children, and print the line when this process ends.

    The line comes after all that the program prints.
    """
    file, path = tempfile.mkstemp(prefix="tritune-run-", suffix=".log")
    os.close(file)
    os.environ[env.RUN_LOG.name] = path
    owner = os.getpid()

    def print_report() -> None:
        if os.getpid() != owner:
            return  # a fork
        # Whatever goes wrong, the program has ended as it did.
        with contextlib.suppress(OSError, ValueError):
            line = report(read(path), autotune, integrations)
            os.unlink(path)
            print(f"tritune: {line}", file=sys.stderr)

    atexit.register(print_report)


def report(events: Sequence[Event], autotune: bool = True, integrations: bool = True) -> str:
    """Summarise the events in one line."""
    parts = _about_kernels(events) if autotune else []
    if integrations:
        parts += [_about_calls(ATTENTION, events) or f"{ATTENTION} was not called"]
        parts += filter(None, [_about_calls(GENERATE, events)])
    return "; ".join(parts)


def _about_kernels(events: Sequence[Event]) -> list[str]:
    problems = [event for event in events if event.outcome in _WORDS]
    kernels = {event.name for event in problems}
    counts = Counter(event.outcome for event in problems)
    parts = ["no triton.autotune kernel had anything to tune"]
    if problems:
        became = ", ".join(
            f"{counts[outcome]} {_WORDS[outcome]}" for outcome in _WORDS if counts[outcome]
        )
        parts = [f"{_number(kernels, 'kernel')}, {_number(problems, 'problem')}: {became}"]
    tried = sum(event.configs for event in problems)
    if tried:
        parts.append(f"{sum(event.failed for event in problems)} of {tried} configs failed")
    left = [e for e in events if e.outcome == SKIPPED and e.name not in (ATTENTION, GENERATE)]
    for name, why in dict.fromkeys((event.name, event.reason) for event in left):
        parts.append(f"{name} left to Triton ({why})")
    return parts


def _about_calls(name: str, events: Sequence[Event]) -> str:
    found = [event for event in events if event.name == name]
    parts = ["served"] if any(event.outcome == ROUTED for event in found) else []
    reasons = sorted({event.reason for event in found if event.outcome == SKIPPED})
    if reasons:
        parts.append(f"left alone where {' and where '.join(reasons)}")
    return f"{name} {', '.join(parts)}" if parts else ""


def _number(things: Sequence[object] | set[str], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
