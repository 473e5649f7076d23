"""Services for worker processes that misbehave in one way each, without torch or Triton."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
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
