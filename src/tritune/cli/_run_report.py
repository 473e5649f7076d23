"""The line at the end of `tritune run`: what was tuned, what failed, what was left alone."""

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
    KNOWN,
    LEFT,
    RECORDED,
    SERVED,
    TUNED,
    UNTUNED,
    Event,
    read,
)

_WORDS = {
    TUNED: "tuned",
    KNOWN: "answered from the store",
    RECORDED: "written down for tritune tune --recorded",
    UNTUNED: "not tuned",
}


def report_at_exit(autotune: bool, integrations: bool) -> None:
    """Begin the log of this process and those that it starts, and have the line printed when it
    ends, after all that the program prints.
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
    """What the events come to, in one line."""
    parts = _about_kernels(events) if autotune else []
    if integrations:
        parts += [_about_calls(ATTENTION, events) or f"{ATTENTION} was not called"]
        parts += filter(None, [_about_calls(GENERATE, events)])
    return "; ".join(parts)


def _about_kernels(events: Sequence[Event]) -> list[str]:
    problems = [event for event in events if event.what in _WORDS]
    kernels = {event.subject for event in problems}
    counts = Counter(event.what for event in problems)
    parts = ["no triton.autotune kernel had anything to tune"]
    if problems:
        became = ", ".join(f"{counts[what]} {_WORDS[what]}" for what in _WORDS if counts[what])
        parts = [f"{_number(kernels, 'kernel')}, {_number(problems, 'problem')}: {became}"]
    tried = sum(event.configs for event in problems)
    if tried:
        parts.append(f"{sum(event.failed for event in problems)} of {tried} configs failed")
    left = [e for e in events if e.what == LEFT and e.subject not in (ATTENTION, GENERATE)]
    for name, why in dict.fromkeys((event.subject, event.why) for event in left):
        parts.append(f"{name} left to Triton ({why})")
    return parts


def _about_calls(subject: str, events: Sequence[Event]) -> str:
    found = [event for event in events if event.subject == subject]
    parts = ["served"] if any(event.what == SERVED for event in found) else []
    reasons = sorted({event.why for event in found if event.what == LEFT})
    if reasons:
        parts.append(f"left alone where {' and where '.join(reasons)}")
    return f"{subject} {', '.join(parts)}" if parts else ""


def _number(things: Sequence[object] | set[str], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
