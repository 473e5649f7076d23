"""A command in a terminal, whose Ctrl-C reaches it and every process of its group."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time

COMMAND = [sys.executable, "-m", "tritune.cli.main"]
_INTERRUPT = b"\x03"
#: For a machine that is busy; nothing waits so long.
_SECONDS = 240


def interrupted(*arguments: str, after: str, times: int = 1) -> tuple[int, str]:
    """Run `tritune` with these arguments and press Ctrl-C, so many times, once what it shows
    matches a pattern; returns its exit status and all that was shown.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="200")
        os.execv(COMMAND[0], [*COMMAND, *arguments])
    shown, left, deadline = b"", times, time.monotonic() + _SECONDS
    while True:
        if left and (left < times or re.search(after.encode(), shown)):
            os.write(terminal, _INTERRUPT)
            left -= 1
        if not select.select([terminal], [], [], 0.05)[0]:
            if time.monotonic() > deadline:
                os.kill(pid, 9)
            continue
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # how Linux says that nobody writes to it any more
            break
        shown += chunk
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))
    return status, text.replace("\r\n", "\n")
