"""Ctrl-C: a command says what it has done and ends with the exit status of an interrupt."""

from __future__ import annotations

import signal

#: The exit status, as shells have it.
STATUS = 130


class Interrupted(Exception):
    """The user has interrupted a command that has nothing to say about it."""


def ignore_interrupts() -> None:
    """Ignore further interrupts, so that what was done can be said."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
