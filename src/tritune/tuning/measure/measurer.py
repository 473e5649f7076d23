"""The service inside the measuring worker: verifies and times configs of one case."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tritune.errors import TrituneError
from tritune.space import Config
from tritune.tuning.case import CaseSpec, Expected
from tritune.tuning.compile.compiles import compile_count
from tritune.tuning.compile.warm_up import warm_up
from tritune.tuning.measure.guard import NAN_BYTE
from tritune.tuning.measure.timing import LONG_MS, CpuStopwatch, Flush, Stopwatch, stopwatch
from tritune.tuning.measure.verify import guarded_run, judge_vendor, outputs_of, verify
from tritune.tuning.workers.child import without_memory_limit
from tritune.tuning.workers.failures import Failure, failure_of

#: How long one turn's disturbed samples are repeated.
REPEATING_SECONDS = 0.25


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
        self._stopwatches: dict[str, Stopwatch] = {}
        self._calls = 1
        if self._expected_path.exists():  # another process died after it had worked that out
            self.expect(None)

    def vendors(self) -> list[str]:
        """Return the names of what the vendor offers."""
        return list(self._case.vendors())

    def compiles(self) -> int:
        """Return how many kernels were compiled since this was last asked."""
        return self._compiles.taken()

    def expect(self, default: Mapping[str, Any] | None) -> None:
        """Make ready to verify: work out what is right, or read what was worked out before."""
        with without_memory_limit():
            if not self._expected_path.exists():
                _write(self._expected_path, self._work_out(default))
            known = torch.load(self._expected_path, weights_only=True)
        self._sample = known.pop("sample")
        self._expected = Expected(**known) if known["reference"] else None

    def _work_out(self, default: Mapping[str, Any] | None) -> dict[str, Any]:
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

    def _default_outputs(self, default: Mapping[str, Any] | None) -> list[torch.Tensor]:
        if default is None:
            return []
        try:
            outputs = guarded_run(self._case, Config.of(**default), NAN_BYTE)
        except Exception:  # its own verification will tell
            return []
        return [] if isinstance(outputs, Failure) else outputs

    def verify(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return why a config must not be used; None if it may."""
        self._stopwatches.clear()
        point = Config.of(**config)
        try:
            failure = verify(self._case, point, self._expected, self._sample)
        except Exception as error:
            failure = failure_of(error)
        return None if failure is None else vars(failure)

    def round(self, entries: Sequence[Mapping[str, Any]], samples: int) -> None:
        """Time entries in turn; the report says for each when it begins, what it took, and how
        many samples were thrown away because other processes disturbed them.

        An entry has a "config" or a "vendor", and a "ceiling_ms" above which one sample is enough.
        """
        for number, entry in enumerate(entries):
            self._report({"entry": number})
            try:
                times, disturbed = self._samples(entry, samples)
            except Exception as error:
                failure = failure_of(error)
                self._report({"entry": number, "failure": vars(failure)})
                if failure.tainted:
                    return
            else:
                self._report({"entry": number, "times_ms": times, "disturbed": disturbed})

    def _samples(self, entry: Mapping[str, Any], samples: int) -> tuple[list[float], int]:
        """Take undisturbed samples, fewer where they are not to be had in time or take too long;
        return them and how many were disturbed.
        """
        watch = self._stopwatch(entry)
        ceiling = entry.get("ceiling_ms")
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
                if ceiling is not None and times[0] > ceiling:
                    break
        return times, disturbed

    def _stopwatch(self, entry: Mapping[str, Any]) -> Stopwatch:
        name = json.dumps([entry.get("config"), entry.get("vendor")])
        if name not in self._stopwatches:
            case = self._case
            if "vendor" in entry:
                call = case.vendors()[entry["vendor"]]
                case.restore()
                reason = judge_vendor(outputs_of(call), self._expected, self._sample)
                if reason is not None:
                    raise TrituneError(f"{entry['vendor']} gives wrong results: {reason}")
            else:
                call = partial(case.run, Config.of(**entry["config"]))
            self._stopwatches[name] = stopwatch(case.device, call, case.restore, self._flush)
            # The shortest call decides for all: see `Stopwatch.calls`.
            clocks = [w for w in self._stopwatches.values() if isinstance(w, CpuStopwatch)]
            self._calls = max([self._calls, *(clock.calls for clock in clocks)])
            for clock in clocks:
                clock.calls = self._calls
        return self._stopwatches[name]


def _write(path: Path, known: dict[str, Any]) -> None:
    """Whole or not at all: the process may be killed meanwhile."""
    part = path.with_suffix(".part")
    torch.save(known, part)
    os.replace(part, path)
