"""The service inside a building worker: compiles configs of one case, launches nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tritune.space import Config
from tritune.tuning.case import CaseSpec
from tritune.tuning.compile.binaries import digest_of, facts_of
from tritune.tuning.compile.compiles import compile_count
from tritune.tuning.compile.warm_up import warm_up
from tritune.tuning.workers.failures import failure_of_compiler


class Builder:
    """Opens the case once and compiles what it is asked for."""

    def __init__(
        self, factory: str, arguments: Mapping[str, Any], report: Callable[[Any], None]
    ) -> None:
        self._compiles = compile_count()
        warm_up(launching=False)
        self._case = CaseSpec(factory, arguments).open()

    def build(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Compile one config: its digest and facts, or why it cannot be compiled."""
        point = Config.of(**config)
        start = time.perf_counter()
        try:
            launches = self._case.compile(point)
            result: dict[str, Any] = {
                "binary": digest_of(point, launches),
                "facts": facts_of(launches),
            }
        except Exception as error:
            failure = failure_of_compiler(error)
            result = {
                "failure": failure.reason,
                "message": failure.message,
                "tainted": failure.tainted,
            }
        seconds = time.perf_counter() - start
        return {**result, "seconds": seconds, "compiles": self._compiles.taken()}
