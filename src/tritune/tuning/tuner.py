"""The tuner: from a case and its space to a winner, one batch of configs after the other.

A batch goes through the pipeline: the strategy proposes, worker processes compile, duplicates of a
known binary are put aside, each new binary is verified, and what is left races against the best so
far. Every outcome is committed to the store before the next batch is judged, so a run that is
killed loses at most what it was doing, and resuming begins with what the store knows. At the end
the best configs meet the default once more, in more rounds; the store's rule decides from those.

While a batch is verified and measured, the next one is compiled. Where the device is the CPU that
compiles, the compilers are stopped while the clock runs.

One process at a time does this on a device. What other processes disturb all the same is repeated,
and if it stays so, nothing is decided: the default stays, and the next run goes on.
"""

from __future__ import annotations

import datetime
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from tritune.space import Config
from tritune.store import Store
from tritune.store.decide_winner import PAIRED_ROUNDS
from tritune.store.records import UNDECIDED, Run, Samples, Trial
from tritune.tuning.case import VENDOR, Entry
from tritune.tuning.compile.binaries import signature_of
from tritune.tuning.compile.builder import BuildResult
from tritune.tuning.compile.pool import CompilePool
from tritune.tuning.job import Job, Outcome, Progress, Settings
from tritune.tuning.measure.client import MeasurementClient
from tritune.tuning.measure.race import paired_rounds
from tritune.tuning.measure.statistics import Round, median, pooled
from tritune.tuning.state import SearchState
from tritune.tuning.workers.device_lock import device_lock
from tritune.tuning.workers.failures import Failure
from tritune.tuning.workers.kept_workers import Workers

#: The shoot-out gets at most this share of a budget.
FINAL_SHARE = 0.25
#: Shorter calls meet in two processes at the end: what one's memory layout does to them is luck.
SHORT_MS = 2.0
#: How long a build that nobody needs any more may take before its process is killed.
LAST_BUILD_SECONDS = 5.0


def begin_run(store: Store, command: str, environment: Mapping[str, Any]) -> str:
    """Note in the store that a run begins; return its id."""
    run = Run(uuid.uuid4().hex, command, environment, _now())
    store.begin_run(run)
    return run.id


def tune_case(
    job: Job,
    store: Store,
    run: str,
    settings: Settings,
    watch: Callable[[Progress], None] = lambda progress: None,
    workers: Workers | None = None,
) -> Outcome:
    """Tune one task; what the store knows of it already is not measured again.

    To tune several tasks with the same processes, give the `Workers`.
    """
    started = time.monotonic()

    def begin() -> _Tuning:
        deadline = time.monotonic() + settings.budget_seconds
        return _Tuning(job, store, run, settings, deadline, watch)

    tuning = begin()
    if not tuning.finished():
        with device_lock(job.device, wait=settings.wait, waiting=tuning.wait_for):
            if store.trials(job.task) != tuning.trials:  # another process has gone on meanwhile
                tuning = begin()
            if not tuning.finished():
                with nullcontext(workers) if workers is not None else Workers(settings) as used:
                    tuning.use(*used.switch_to(job.spec, job.default))
    return tuning.outcome(time.monotonic() - started)


class _Tuning:
    """One run over one task."""

    def __init__(
        self,
        job: Job,
        store: Store,
        run: str,
        settings: Settings,
        deadline: float,
        watch: Callable[[Progress], None],
    ) -> None:
        self.job, self.store, self.run, self.settings = job, store, run, settings
        self.deadline, self.watch = deadline, watch
        self.effort = settings.effort
        self.most_trials = self.effort.trials_in(job.points.size())
        self.new_trials = self.compiles = self.disturbed = 0
        self.rounds = 0
        #: Configs whose race other processes have disturbed too much: the next run tries again.
        self.unmeasured: set[Config] = set()
        self.busy = False
        self.state = SearchState(job, settings)
        self.trials = store.trials(job.task)
        # Others may have been tried for another list of configs.
        self.known = _originals_first([t for t in self.trials if t.config in job.points])
        for trial in self.known:
            self.state.add(trial)
        self.pool: CompilePool
        self.client: MeasurementClient

    def finished(self) -> bool:
        """Return whether the store has the end of this search: nothing left to try, and a shoot-out
        unless no config works.
        """
        finals = any(s.stage == "final" for trial in self.known for s in trial.samples)
        searched = len(self.known) >= self.most_trials or self.state.out_of_patience()
        return bool(self.known) and searched and (finals or self.state.best is None)

    def use(self, pool: CompilePool, client: MeasurementClient) -> None:
        """Search with these workers, and find the winner."""
        self.pool, self.client = pool, client
        compiles, disturbed = client.compiles, client.disturbed
        self._search()
        self._shoot_out()
        self.compiles += client.compiles - compiles
        self.disturbed = client.disturbed - disturbed

    def wait_for(self, holder: int | None) -> None:
        """Tell the watcher that another process measures on the device."""
        self._report("waiting", holder)

    def outcome(self, seconds: float) -> Outcome:
        trials = self.store.trials(self.job.task)
        vendors: dict[str, list[Sequence[float]]] = {}
        for samples in (samples for trial in trials for samples in trial.samples):
            if samples.stage.startswith(VENDOR):
                vendors.setdefault(samples.stage.removeprefix(VENDOR), []).append(samples.times_ms)
        vendor_ms, vendor = min(
            ((median(times), name) for name, times in vendors.items()), default=(None, None)
        )
        return Outcome(
            self.job.task,
            self.store.winner(self.job.task),
            len(trials),
            self.new_trials,
            dict(Counter(trial.failure for trial in trials if trial.failure)),
            vendor,
            vendor_ms,
            seconds,
            self.compiles,
            self.busy,
            self.disturbed,
        )

    def _search(self) -> None:
        """Try batch after batch until the budget, the space or the patience is used up."""
        batch = [] if self.state.out_of_patience() else self._next_batch()
        self.pool.submit(batch)
        while batch:
            built = [self.pool.result() for _ in batch]
            # The next batch is chosen before this one is measured, so that it compiles meanwhile.
            following = self._next_batch(pending=len(batch))
            self.pool.submit(following)
            self._judge(sorted(built, key=lambda result: batch.index(result.config)))
            self._report("search")
            if self.busy or time.monotonic() > self.deadline or self.state.out_of_patience():
                self._end_builds()
                break
            batch = following

    def _next_batch(self, pending: int = 0) -> list[Config]:
        tried = len(self.state.results) + len(self.unmeasured) + pending
        count = min(self.effort.batch, self.most_trials - tried)
        if count <= 0 or time.monotonic() > self.deadline:
            return []
        # The default comes first, whatever the strategy would begin with.
        default = self.job.default
        first = [] if default in self.state.results or pending else [default]
        asked = self.state.strategy.ask(count - len(first))
        return first + [config for config in asked if config != default]

    def _end_builds(self) -> None:
        """Let the compilers come to an end, unless one takes long: a killed one starts anew."""
        self.pool.drop_waiting()
        try:
            while self.pool.outstanding:
                self._keep_build(self.pool.result(timeout_seconds=LAST_BUILD_SECONDS))
        except TimeoutError:
            self.pool.cancel()

    def _judge(self, built: Sequence[BuildResult]) -> None:
        """Take a compiled batch through verification and a race; commit each outcome."""
        racing: dict[str, BuildResult] = {}
        twins: list[BuildResult] = []
        for result in built:
            self._keep_build(result)
            if result.failure is not None:
                self._refuse(result, result.failure)
            elif result.binary in racing or result.binary in self.state.binaries:
                twins.append(result)
            elif failure := self.client.verify(result.config):
                self._refuse(result, failure)
            else:
                racing[result.binary] = result
        if racing:
            self._race({result.config: result for result in racing.values()})
        orphans = []
        for result in twins:
            original = self.state.binaries.get(result.binary)
            if original is None:
                orphans.append(result)
            else:
                self._commit(self._trial(result, duplicate_of=original.key))
        # Whose original failed in the race has to show for itself.
        if orphans and not self.busy:
            self._judge(orphans)

    def _race(self, racing: Mapping[Config, BuildResult]) -> None:
        incumbent = self.state.best
        kept = [] if incumbent is None else [incumbent]
        self.pool.pause()
        try:
            times, believed = self._timed([*racing, *kept], self.effort.rounds, keep=kept)
        finally:
            self.pool.resume()
        measured = {config for config, rounds in times.items() if pooled(rounds)}
        # Without what the others are compared with, there is nothing to learn from their times.
        needed = self.job.default if incumbent is None else incumbent
        if not believed or (needed in times and needed not in measured):
            measured.clear()
        # Times are corrected for drift: the incumbent is their common reference.
        pace = 1.0
        if incumbent in measured:
            assert incumbent is not None and self.state.best_ms is not None
            pace = self.state.best_ms / median(times[incumbent])
            samples = self._samples("search", times[incumbent], self.rounds)
            self.store.add_samples(self.job.task, incumbent, *samples)
        for config, result in racing.items():
            if config not in times:
                self._refuse(result, self.client.failures[config])
            elif config in measured:
                samples = self._samples("search", times[config], self.rounds)
                self._commit(self._trial(result, samples=samples), median(times[config]) * pace)
            else:
                self.unmeasured.add(config)
        self.busy = bool(times) and not measured
        self.rounds += self.effort.rounds

    def _shoot_out(self) -> None:
        """Race the best configs against the default, and the vendor beside them.

        Where other processes disturbed most of it, or left too few rounds in which any two of them
        were measured, it decides nothing, and the next run holds another.
        """
        default, results = self.job.default, self.state.results
        seconds = min(self.effort.final_seconds, FINAL_SHARE * self.settings.budget_seconds)
        finalists = self.state.finalists(
            seconds * 1000 / (PAIRED_ROUNDS * self.state.samples_per_round())
        )
        if not finalists:
            return
        self._report("final")
        entries: list[Entry] = [*finalists]
        if self.settings.vendors:
            entries += [VENDOR + name for name in self.client.vendors()]
        # The vendor's functions leave when they are clearly slower; finalists stay to the end.
        times, believed = self._timed(
            entries,
            self.effort.final_rounds,
            keep=finalists,
            budget_seconds=seconds,
            least_rounds=PAIRED_ROUNDS,
            two_processes=(results[finalists[0]] or 0.0) < SHORT_MS,
        )
        paired = paired_rounds([times[each] for each in finalists if each in times])
        self.busy = not (believed and paired >= PAIRED_ROUNDS)
        found: dict[Config, list[Samples]] = {}
        for entry, rounds in times.items():
            stage = UNDECIDED if self.busy else "final"
            owner, stage = (default, entry) if isinstance(entry, str) else (entry, stage)
            if owner in results:
                found.setdefault(owner, []).extend(self._samples(stage, rounds, 0))
        self.store.add_race(self.job.task, found)

    def _timed(
        self, entries: Sequence[Entry], rounds: int, **options: Any
    ) -> tuple[dict[Entry, list[Round]], bool]:
        """Return the times of a race, and whether to believe it: others disturbed no more samples
        than they left.
        """
        before = self.client.disturbed
        times = self.client.time(entries, rounds, self.state.samples_per_round(), **options)
        disturbed = self.client.disturbed - before
        return times, disturbed <= sum(len(pooled(each)) for each in times.values())

    def _samples(self, stage: str, rounds: Sequence[Round], first: int) -> tuple[Samples, ...]:
        """Return what is stored of a race, its rounds counted from the first.

        Of one that decides nothing, the empty rounds too: they say that there was a race.
        """
        return tuple(
            Samples(self.run, stage, number, tuple(ms))
            for number, ms in enumerate(rounds, first)
            if ms or stage == UNDECIDED
        )

    def _keep_build(self, result: BuildResult) -> None:
        task = self.job.task
        self.compiles += result.compiles
        signature = signature_of(self.job.spec)
        build = result.stored(task.kernel, task.identity, self.job.target, signature)
        self.store.add_build(build)

    def _trial(self, result: BuildResult, **outcome: Any) -> Trial:
        config, default = result.config, result.config == self.job.default
        return Trial(
            self.job.task, config, self.run, _now(),
            default=default, binary=result.binary, **outcome,
        )  # fmt: skip

    def _refuse(self, result: BuildResult, failure: Failure) -> None:
        self._commit(self._trial(result, failure=failure.reason, message=failure.message))

    def _commit(self, trial: Trial, ms: float | None = None) -> None:
        self.store.add_trial(trial)
        self.new_trials += 1
        self.state.add(trial, ms)

    def _report(self, stage: str, holder: int | None = None) -> None:
        state = self.state
        self.watch(
            Progress(
                len(state.results), self.most_trials, dict(state.failures), state.best_ms,
                state.results.get(self.job.default), state.best, stage, holder,
            )
        )  # fmt: skip


def _originals_first(trials: Sequence[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: (trial.duplicate_of is not None, trial.when))


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
