"""A service that takes the place of a compiler in the worker processes of these tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from tritune.space import Config
from tritune.tuning.compile.builder import BuildResult
from tritune.tuning.workers.failures import Failure


class Moody:
    """A config's `mood` says what compiling it does to the process."""

    def __init__(self, report: Callable[[Any], None]) -> None:
        self._report = report

    def build(self, configs: Sequence[Config]) -> bool:
        for config in configs:
            if config["mood"] == "abort":
                os.abort()
            if config["mood"] == "hang":
                time.sleep(3600)
            if config["mood"] == "taint":
                failure = Failure("out_of_resources", "", tainted=True)
                self._report(BuildResult(config, failure=failure))
                return False
            self._report(BuildResult(config, binary=str(os.getpid())))
            if config["mood"] == "die after the report":
                os.abort()
        return True
