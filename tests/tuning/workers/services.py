"""Services for worker processes that misbehave in one way each, without torch or Triton."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


class Troublemaker:
    """Does what it is asked, which may be its end."""

    def __init__(self, greeting: str, report: Callable[[Any], None]) -> None:
        self.greeting = greeting
        self.report = report

    def greet(self, name: str) -> str:
        return f"{self.greeting} {name}"

    def count(self, steps: int) -> int:
        for step in range(steps):
            self.report(step)
        return steps

    def whereabouts(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "path": sys.path, "group": os.getpgrp()}

    def shout(self, text: str) -> str:
        print(text)
        os.write(1, text.encode())
        return "shouted"

    def refuse(self) -> None:
        raise ValueError("not today")

    def segfault(self) -> None:
        self.report("the step before the end")
        ctypes.string_at(0)

    def exit(self, status: int) -> None:
        os.write(2, b"what was on my mind\n")
        os._exit(status)

    def exit_within_a_message(self, heir: bool) -> None:
        """Leave a process behind, perhaps, that has the pipe too."""
        self.report("the message before it")
        if heir and not os.fork():
            time.sleep(1000)
        os.write(int(sys.argv[1]), b"\0\0")
        os._exit(3)

    def send_much(self, count: int) -> bytes:
        self.report(b"a" * count)
        return b"b" * count

    def loop_for_ever(self) -> None:
        self.report("the step that never ends")
        re.match(r"(a+)+$", "a" * 64 + "b")

    def start_another_and_loop(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        self.report(child.pid)
        self.loop_for_ever()

    def allocate(self, count: int) -> int:
        return len(bytearray(count))


class Unmakeable:
    def __init__(self, report: Callable[[Any], None]) -> None:
        raise RuntimeError("the inputs are nowhere to be found")
