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

#: What became of a kernel's problem.
TUNED, KNOWN, RECORDED, UNTUNED = "tuned", "known", "recorded", "untuned"
#: What became of calls that the integrations look at, which are these, or of a whole kernel.
SERVED, LEFT = "served", "left"
ATTENTION, GENERATE = "torch's attention", "transformers' generate"
#: Of a failure's reason, so much is printed.
_MOST_CHARACTERS = 300


@dataclass(frozen=True, eq=False)  # the hash of an object is cheap: calls of attention are many
class Event:
    """Something that a process met: a problem of a kernel, or calls that are served or left."""

    subject: str
    what: str
    configs: int = 0
    failed: int = 0
    #: Of what was left alone.
    why: str = ""


_told: set[Event] = set()


def tell(event: Event) -> None:
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


def tell_once(event: Event) -> None:
    """Add an event the first time that this process meets this very object."""
    if event not in _told:
        _told.add(event)
        tell(event)


def tell_tuned(kernel: str, configs: int, failures: Sequence[str]) -> None:
    """Tell that a problem was tuned, and at once, in a line, why configs failed if some did."""
    tell(Event(kernel, TUNED, configs, len(failures)))
    if failures and env.RUN_LOG.read() is not None:
        first = textwrap.shorten(failures[0], _MOST_CHARACTERS, placeholder=" ...")
        count = f"{len(failures)} of {configs} configs of {kernel} failed"
        print(f"tritune: {count}, the first: {first}", file=sys.stderr)


def read(path: str) -> list[Event]:
    """Return the events of all processes."""
    with open(path, encoding="utf-8") as file:
        return [Event(**json.loads(line)) for line in file]
