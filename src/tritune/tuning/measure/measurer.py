"""The service inside the measuring worker: verifies and times configs of one case."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tritune.errors import TrituneError
from tritune.space import Config
from tritune.tuning.case import VENDOR, CaseSpec, Entry, Expected
from tritune.tuning.compile.compiles import compile_count
from tritune.tuning.compile.warm_up import warm_up
from tritune.tuning.measure.guard import NAN_BYTE
from tritune.tuning.measure.timing import LONG_MS, CpuStopwatch, Flush, Stopwatch, stopwatch
from tritune.tuning.measure.verify import guarded_run, judge_vendor, outputs_of, verify
from tritune.tuning.workers.child import without_memory_limit
from tritune.tuning.workers.failures import Failure, failure_of

#: How long one turn's disturbed samples are repeated.
REPEATING_SECONDS = 0.25


@dataclass(frozen=True)
class Timing:
    """The samples of one turn in milliseconds, and how many others were thrown away because other
    processes disturbed them.
    """

    times_ms: list[float]
    disturbed: int


class Measurer:
    """Opens the case once; what to expect of it is kept in a file that outlives this process."""

    def __init__(
        self,
        factory: str,
        arguments: Mapping[str, Any],
        expected_path: str,
        report: Callable[[Any], None],
    ) -> None:
        if "torch._dynamo" in sys.modules:
            # Compiled functions of the case before would count against this one's recompilations.
            torch.compiler.reset()
        self._compiles = compile_count()
        self._case = CaseSpec(factory, arguments).open()
        if self._case.device.type == "cuda":
            torch.cuda.set_device(self._case.device)
        warm_up(launching=True)
        self._expected_path = Path(expected_path)
        self._report = report
        self._flush = Flush(self._case.device)
        self._expected: Expected | None = None
        self._sample: Sequence[torch.Tensor] = ()
        self._stopwatches: dict[Entry, Stopwatch] = {}
        self._calls = 1
        if self._expected_path.exists():  # another process died after it had worked that out
            self.expect(None)

    def vendors(self) -> list[str]:
        """Return the names of what the vendor offers."""
        return list(self._case.vendors())

    def compiles(self) -> int:
        """Return how many kernels were compiled since this was last asked."""
        return self._compiles.taken()

    def expect(self, default: Config | None) -> None:
        """Make ready to verify: work out what is right, or read what was worked out before."""
        with without_memory_limit():
            if not self._expected_path.exists():
                _write(self._expected_path, self._work_out(default))
            known = torch.load(self._expected_path, weights_only=True)
        self._sample = known.pop("sample")
        self._expected = Expected(**known) if known["reference"] else None

    def _work_out(self, default: Config | None) -> dict[str, Any]:
        expected = self._case.expected()
        if expected is None:
            sample = self._default_outputs(default)
            return {"reference": [], "plain": [], "slack": 0.0, "sample": sample}
        return {
            "reference": list(expected.reference),
            "plain": list(expected.plain),
            "slack": expected.slack,
            "sample": [],
        }

    def _default_outputs(self, default: Config | None) -> list[torch.Tensor]:
        if default is None:
            return []
        try:
            outputs = guarded_run(self._case, default, NAN_BYTE)
        except Exception:  # its own verification will tell
            return []
        return [] if isinstance(outputs, Failure) else outputs

    def verify(self, config: Config) -> Failure | None:
        """Return why a config must not be used; None if it may."""
        self._stopwatches.clear()
        try:
            return verify(self._case, config, self._expected, self._sample)
        except Exception as error:
            return failure_of(error)

    def round(self, entries: Sequence[tuple[Entry, float | None]], samples: int) -> bool:
        """Time entries in turn and report a `Timing` or a `Failure` of each; return whether this
        process can go on.

        Each comes with the time above which one sample is enough, or None.
        """
        for entry, ceiling_ms in entries:
            try:
                self._report(self._timing(entry, ceiling_ms, samples))
            except Exception as error:
                failure = failure_of(error)
                self._report(failure)
                if failure.tainted:
                    return False
        return True

    def _timing(self, entry: Entry, ceiling_ms: float | None, samples: int) -> Timing:
        """Take undisturbed samples, fewer where they are not to be had in time or take too long."""
        watch = self._stopwatch(entry)
        times: list[float] = []
        disturbed = 0
        end = time.monotonic() + REPEATING_SECONDS
        while len(times) < samples and sum(times) < LONG_MS:
            sample = watch.sample()
            if sample.disturbed:
                disturbed += 1
                if time.monotonic() > end:
                    break
            else:
                times.append(sample.ms)
                if ceiling_ms is not None and times[0] > ceiling_ms:
                    break
        return Timing(times, disturbed)

    def _stopwatch(self, entry: Entry) -> Stopwatch:
        if entry not in self._stopwatches:
            case = self._case
            if isinstance(entry, str):
                name = entry.removeprefix(VENDOR)
                call: Callable[[], Any] = case.vendors()[name]
                case.restore()
                reason = judge_vendor(outputs_of(call), self._expected, self._sample)
                if reason is not None:
                    raise TrituneError(f"{name} gives wrong results: {reason}")
            else:
                call = partial(case.run, entry)
            self._stopwatches[entry] = stopwatch(case.device, call, case.restore, self._flush)
            # The shortest call decides for all: see `Stopwatch.calls`.
            clocks = [w for w in self._stopwatches.values() if isinstance(w, CpuStopwatch)]
            self._calls = max([self._calls, *(clock.calls for clock in clocks)])
            for clock in clocks:
                clock.calls = self._calls
        return self._stopwatches[entry]


def _write(path: Path, known: dict[str, Any]) -> None:
    """Write a file as a whole or not at all: the process may be killed meanwhile."""
    part = path.with_suffix(".part")
    torch.save(known, part)
    os.replace(part, path)
