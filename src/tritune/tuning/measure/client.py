"""The client of the measuring process: it verifies and times configs, and may die of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from tritune.space import Config
from tritune.tuning.case import VENDOR, CaseSpec, Entry
from tritune.tuning.measure.measurer import Timing
from tritune.tuning.measure.race import Race
from tritune.tuning.measure.statistics import Round
from tritune.tuning.workers.failures import Failure
from tritune.tuning.workers.worker import Death, Worker, WorkerError

#: A race in which other processes keep too many samples from being taken is given so many times
#: the rounds that it needs at least, but no more.
PATIENCE = 3
#: Making inputs and working out what is right may take this long.
_OPENING_SECONDS = 600.0


class MeasurementClient:
    """Has configs of a case measured in a process. One that kills it loses its own trial only.

    `default` is the config whose results the others must agree with, for a case that does not know
    what to expect.
    """

    def __init__(
        self,
        spec: CaseSpec,
        timeout_seconds: float = 60.0,
        memory_bytes: int | None = 4 << 30,
        default: Config | None = None,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._default = default
        self._folder = tempfile.TemporaryDirectory(prefix="tritune-bench-")
        self._worker = Worker(
            "tritune.tuning.measure.measurer:Measurer",
            self._arguments(spec),
            memory_bytes=memory_bytes,
            start_seconds=_OPENING_SECONDS,
        )
        #: How many kernels the measuring process has compiled, instead of finding them.
        self.compiles = 0
        #: How many samples were thrown away because other processes disturbed them.
        self.disturbed = 0
        #: Why entries have failed, in `verify` or in `time`.
        self.failures: dict[Entry, Failure] = {}
        self._expecting = False
        #: What has run in the present process, and what was running when one died.
        self._ran: set[Entry] = set()
        self._suspects: set[Entry] = set()

    def __enter__(self) -> MeasurementClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def switch_to(self, spec: CaseSpec, default: Config | None = None) -> None:
        """Measure another case from now on, in the same process if no config misbehaved there."""
        if self.failures:
            self._renew()
        self.failures.clear()
        self._suspects.clear()
        self._expecting, self._default = False, default
        arguments = self._arguments(spec)
        Path(arguments["expected_path"]).unlink(missing_ok=True)
        self._worker.switch_to(arguments)

    def _arguments(self, spec: CaseSpec) -> dict[str, Any]:
        return {**spec.to_json(), "expected_path": str(Path(self._folder.name) / "expected.pt")}

    def close(self) -> None:
        """End the process and forget what it had worked out."""
        self._worker.close()
        self._folder.cleanup()

    def vendors(self) -> list[str]:
        """Return the names of what the vendor's library offers for this case."""
        names = self._worker.call("vendors", {}, _OPENING_SECONDS)
        if isinstance(names, Death):
            raise WorkerError(f"the vendor's functions cannot be listed: {names.message}")
        return list(names)

    def verify(self, config: Config) -> Failure | None:
        """Run a config on guarded memory; return why its results are wrong, or None."""
        self._expect()
        while True:
            self._ran.add(config)
            answer = self._worker.call("verify", {"config": config}, self._timeout_seconds)
            if answer is None:
                self.compiles += self._worker.call("compiles", {}, self._timeout_seconds)
                return None
            if not isinstance(answer, Death):
                self.failures[config] = answer
                if answer.tainted:
                    self._renew()
                return self.failures[config]
            if self._blame(config, answer):
                return self.failures[config]

    def time(
        self,
        entries: Sequence[Entry],
        rounds: int,
        samples_per_round: int = 3,
        keep: Collection[Entry] = (),
        budget_seconds: float | None = None,
        least_rounds: int = 1,
        seed: int = 0,
        two_processes: bool = False,
    ) -> dict[Entry, list[Round]]:
        """Race the entries: for each its rounds, of each round its samples in milliseconds.

        The n-th round of one entry is the n-th of all, so rounds can be compared in pairs; who
        left early has fewer, and a round is empty for an entry if other processes disturbed all its
        samples. Entries that failed are missing: see `failures`. Any two of `keep` have at least
        `least_rounds` in common, whatever the budget, if the machine is ever quiet enough.

        With `two_processes` the second half is measured in a new one: where things lie in memory
        is a process's luck, and doubles the time of some short calls.
        """
        for entry in entries:
            if isinstance(entry, str) and not entry.startswith(VENDOR):
                raise WorkerError(f"{entry!r} cannot race: neither a config nor {VENDOR}NAME")
        race = Race(entries, keep, seed, leads=lambda entry: isinstance(entry, Config))
        started = time.monotonic()
        most = PATIENCE * least_rounds
        while race.held < max(rounds, most):
            spent = time.monotonic() - started
            late = budget_seconds is not None and spent > budget_seconds
            due = late or race.held >= rounds
            if due and (race.paired_rounds() >= least_rounds or race.held >= most):
                break
            if race.held >= PATIENCE and race.unmeasured():
                break
            half = race.held >= rounds / 2
            half = half or (budget_seconds is not None and spent > budget_seconds / 2)
            if two_processes and half:
                two_processes = False
                self._renew()
            left = race.order(race.held)
            while left:  # as many processes as that takes
                left = self._part_of_round(race, left, samples_per_round)
            race.end_round()
        return race.rounds

    def _part_of_round(self, race: Race[Entry], order: list[Entry], samples: int) -> list[Entry]:
        """Let entries take their turns until all have or the process is lost: who is left."""
        left = list(order)

        def note(report: Timing | Failure) -> None:
            entry = left.pop(0)
            self._ran.add(entry)
            if isinstance(report, Timing):
                race.add(entry, report.times_ms)
                self.disturbed += report.disturbed
            else:
                self.failures[entry] = report
                race.fail(entry)

        requests = [(entry, race.ceiling_ms(entry)) for entry in order]
        arguments = {"entries": requests, "samples": samples}
        answer = self._worker.call("round", arguments, self._timeout_seconds, note)
        if answer is False:
            self._renew()
        elif isinstance(answer, Death) and left:
            # Turns are taken in order, so whoever is first of those left was running.
            self._ran.add(left[0])
            if self._blame(left[0], answer):
                race.fail(left.pop(0))
        return left

    def _expect(self) -> None:
        """Have it worked out, once, what is right."""
        if self._expecting:
            return
        answer = self._worker.call("expect", {"default": self._default}, _OPENING_SECONDS)
        if isinstance(answer, Death) and self._default is not None:
            # The default config ended the process. Its own verification will tell how.
            answer = self._worker.call("expect", {"default": None}, _OPENING_SECONDS)
        if isinstance(answer, Death):
            raise WorkerError(f"the expected results cannot be worked out: {answer.message}")
        self._expecting = True

    def _blame(self, entry: Entry, death: Death) -> bool:
        """Return whether the entry is to blame that the process died while it ran.

        Others may have overwritten its memory before, so it gets a second chance, in a new process.
        """
        alone = self._ran <= {entry}
        self._renew()
        if death.reason != "timeout" and not alone and entry not in self._suspects:
            self._suspects.add(entry)
            return False
        self.failures[entry] = Failure(death.reason, death.message)
        return True

    def _renew(self) -> None:
        self._worker.close()
        self._ran.clear()
