"""The log of a program under `tritune run`: its processes write events, `tritune run` prints them.

Each process adds lines to one file, whose path the environment hands on. That reaches children
however they were started, and however they end.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tritune import env

#: Outcomes of a problem of a kernel.
TUNED, STORED, RECORDED, UNTUNED = "tuned", "stored", "recorded", "untuned"
#: Outcomes of calls of the functions below, and of a kernel that is left to Triton.
ROUTED, SKIPPED = "routed", "skipped"
ATTENTION, GENERATE = "torch's attention", "transformers' generate"
#: A failure's message is printed up to this length.
_MOST_CHARACTERS = 300


@dataclass(frozen=True, eq=False)  # the hash of an object is cheap: calls of attention are many
class Event:
    """The outcome for a problem of a kernel, or for calls that tritune can compute."""

    #: A kernel, or ATTENTION or GENERATE.
    name: str
    outcome: str
    configs: int = 0
    failed: int = 0
    #: Why it was skipped.
    reason: str = ""


_logged: set[Event] = set()


def log(event: Event) -> None:
    """Add an event to the log; does nothing in a program that `tritune run` did not start."""
    path = env.RUN_LOG.read()
    if path is None:
        return
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, json.dumps(asdict(event)).encode() + b"\n")
        finally:
            os.close(file)


def log_once(event: Event) -> None:
    """Add an event the first time that this process meets this very object."""
    if event not in _logged:
        _logged.add(event)
        log(event)


def log_tuned(kernel: str, configs: int, failures: Sequence[str]) -> None:
    """Log that a problem was tuned; print a line if configs failed, with the first message."""
    log(Event(kernel, TUNED, configs, len(failures)))
    if failures and env.RUN_LOG.read() is not None:
        first = textwrap.shorten(failures[0], _MOST_CHARACTERS, placeholder=" ...")
        count = f"{len(failures)} of {configs} configs of {kernel} failed"
        print(f"tritune: {count}, the first: {first}", file=sys.stderr)


def read(path: str) -> list[Event]:
    """Return the events of all processes."""
    with open(path, encoding="utf-8") as file:
        return [Event(**json.loads(line)) for line in file]
