"""What runs in the worker processes of these tests instead of a compiler."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Moody:
    """A config's `mood` says what compiling it does to the process."""

    def __init__(self, report: Callable[[Any], None]) -> None:
        self._report = report

    def screen(self, configs: Sequence[Mapping[str, Any]]) -> None:
        for number, config in enumerate(configs):
            self._report({"config": number})
            if config["mood"] == "abort":
                os.abort()
            if config["mood"] == "hang":
                time.sleep(3600)
            self._report({"config": number, "binary": str(os.getpid()), "seconds": 0.0})
