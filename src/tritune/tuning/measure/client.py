"""Verifying and timing configs in a process that may die of it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tritune.space import Config
from tritune.tuning.case import CaseSpec
from tritune.tuning.measure.race import Race
from tritune.tuning.measure.statistics import Round
from tritune.tuning.workers.failures import Failure
from tritune.tuning.workers.process import Worker, WorkerError

#: A config, or the name of something else that races along: the vendor's function.
Entry: TypeAlias = "Config | str"
#: What entries of a race that are the vendor's begin with.
VENDOR = "vendor:"
#: A race in which other processes keep too many samples from being taken is given so many times
#: the rounds that it needs at least, but no more.
PATIENCE = 3
#: Making inputs and working out what is right may take this long.
_OPENING_SECONDS = 600.0


@dataclass(frozen=True)
class Verdict:
    """Whether a config may be used, and if not, why."""

    #: One of `tritune.store.records.FAILURES`, or None.
    failure: str | None = None
    message: str = ""


class Bench:
    """One measuring process for a case. A config that kills it loses its own trial, no other.

    `default` is the config whose results are the measure of the others, for a case that does not
    know what to expect.
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
        self._verdicts: dict[Entry, Verdict] = {}
        self._expecting = False
        #: What has run in the present process, and what was running when one died.
        self._ran: set[Entry] = set()
        self._suspects: set[Entry] = set()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def turn_to(self, spec: CaseSpec, default: Config | None = None) -> None:
        """Measure another case from now on, in the same process if no config misbehaved there."""
        if self._verdicts:
            self._renew()
        self._verdicts.clear()
        self._suspects.clear()
        self._expecting, self._default = False, default
        arguments = self._arguments(spec)
        Path(arguments["expected_path"]).unlink(missing_ok=True)
        self._worker.turn_to(arguments)

    def _arguments(self, spec: CaseSpec) -> dict[str, Any]:
        return {**spec.to_json(), "expected_path": str(Path(self._folder.name) / "expected.pt")}

    def close(self) -> None:
        """End the process and forget what it had worked out."""
        self._worker.close()
        self._folder.cleanup()

    def vendors(self) -> list[str]:
        """Return the names of what the vendor's library offers for this case."""
        names = self._worker.call("vendors", {}, _OPENING_SECONDS)
        if isinstance(names, Failure):
            raise WorkerError(f"the vendor's functions cannot be listed: {names.message}")
        return list(names)

    def failure(self, entry: Entry) -> Verdict:
        """Return why an entry failed, in `verify` or in `time`; a verdict without a failure if it
        did not.
        """
        return self._verdicts.get(entry, Verdict())

    def verify(self, config: Config) -> Verdict:
        """Run a config against what is expected of it, on guarded memory."""
        self._expect()
        while True:
            self._ran.add(config)
            arguments = {"config": config.as_kwargs()}
            answer = self._worker.call("verify", arguments, self._timeout_seconds)
            if answer is None:
                self.compiles += self._worker.call("compiles", {}, self._timeout_seconds)
                return Verdict()
            if not isinstance(answer, Failure):
                failure = Failure(**answer)
                self._convict(config, failure)
                if failure.tainted:
                    self._renew()
                return self._verdicts[config]
            if self._guilty(config, answer):
                return self._verdicts[config]

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
        samples. Entries that failed are missing: see `failure`. Any two of `keep` have at least
        `least_rounds` in common, whatever the budget, if the machine is ever quiet enough.

        With `two_processes` the second half is measured in a new one: where things lie in memory
        is a process's luck, and doubles the time of some short calls.
        """
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
        lost = False

        def note(message: dict[str, Any]) -> None:
            nonlocal lost
            entry = order[message["entry"]]
            if "times_ms" in message:
                race.add(entry, message["times_ms"])
                self.disturbed += message["disturbed"]
                left.remove(entry)
            elif "failure" in message:
                failure = Failure(**message["failure"])
                self._convict(entry, failure)
                race.fail(entry)
                left.remove(entry)
                lost = failure.tainted
            else:
                self._ran.add(entry)

        requests = [_request(entry, race.ceiling_ms(entry)) for entry in order]
        arguments = {"entries": requests, "samples": samples}
        answer = self._worker.call("round", arguments, self._timeout_seconds, note)
        if lost:
            self._renew()
        # Turns are taken in order, so whoever is first of those left was running.
        elif isinstance(answer, Failure) and left and self._guilty(left[0], answer):
            race.fail(left.pop(0))
        return left

    def _expect(self) -> None:
        """Have it worked out, once, what is right."""
        if self._expecting:
            return
        default = self._default and self._default.as_kwargs()
        answer = self._worker.call("expect", {"default": default}, _OPENING_SECONDS)
        if isinstance(answer, Failure) and default is not None:
            # The default config ended the process. Its own verification will tell how.
            answer = self._worker.call("expect", {"default": None}, _OPENING_SECONDS)
        if isinstance(answer, Failure):
            raise WorkerError(f"the expected results cannot be worked out: {answer.message}")
        self._expecting = True

    def _guilty(self, entry: Entry, failure: Failure) -> bool:
        """Return whether the entry is to blame that the process died while it ran.

        Others may have overwritten its memory before, so it gets a second chance, in a new process.
        """
        alone = self._ran <= {entry}
        self._renew()
        if failure.reason != "timeout" and not alone and entry not in self._suspects:
            self._suspects.add(entry)
            return False
        self._convict(entry, failure)
        return True

    def _convict(self, entry: Entry, failure: Failure) -> None:
        self._verdicts[entry] = Verdict(failure.reason, failure.message)

    def _renew(self) -> None:
        self._worker.close()
        self._ran.clear()


def _request(entry: Entry, ceiling_ms: float | None) -> dict[str, Any]:
    """Return an entry as the measuring process takes it."""
    if isinstance(entry, Config):
        return {"config": entry.as_kwargs(), "ceiling_ms": ceiling_ms}
    if not entry.startswith(VENDOR):
        raise WorkerError(f"{entry!r} cannot race: neither a config nor {VENDOR}NAME")
    return {"vendor": entry.removeprefix(VENDOR), "ceiling_ms": ceiling_ms}
