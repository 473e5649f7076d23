"""What becomes of a command that the user interrupts: it says what it did, and ends."""

from __future__ import annotations

import signal

#: The exit status, as shells have it.
STATUS = 130


class Interrupted(Exception):
    """The user has interrupted a command that has nothing to say about it."""


def finish_in_peace() -> None:
    """Ignore further interrupts: all that is left is to say what was done and to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
