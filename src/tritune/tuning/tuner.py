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
import math
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tritune.space import Config, Points
from tritune.store import Store
from tritune.store.records import UNDECIDED, Run, Samples, Task, Trial
from tritune.store.winner import PAIRED_ROUNDS, Winner
from tritune.tuning.case import VENDOR, CaseSpec, Entry
from tritune.tuning.compile.binaries import signature_of
from tritune.tuning.compile.builder import BuildResult
from tritune.tuning.compile.pool import CompilePool
from tritune.tuning.effort import Effort
from tritune.tuning.measure.client import Bench
from tritune.tuning.measure.race import paired_rounds
from tritune.tuning.measure.statistics import Round, median, pooled
from tritune.tuning.search import DEFAULT_STRATEGY, STRATEGIES, Prior
from tritune.tuning.workers.crew import Crew
from tritune.tuning.workers.device_lock import device_lock
from tritune.tuning.workers.failures import Failure

#: Less than this is no improvement that is worth going on for.
IMPROVEMENT = 0.99
#: The shoot-out gets at most this share of a budget.
FINAL_SHARE = 0.25
#: Shorter calls meet in two processes at the end: what one's memory layout does to them is luck.
SHORT_MS = 2.0
#: How long a build that nobody needs any more may take before its process is killed.
LAST_BUILD_SECONDS = 5.0


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after every batch."""

    trials: int
    most_trials: int
    failures: Mapping[str, int]
    best_ms: float | None
    default_ms: float | None
    config: Config | None
    stage: str
    #: In the stage "waiting": the process that measures on the device, if that is known.
    holder: int | None = None


@dataclass(frozen=True)
class Outcome:
    task: Task
    winner: Winner | None
    trials: int
    #: Trials that this run added; the rest was known.
    new_trials: int
    failures: Mapping[str, int]
    vendor: str | None
    vendor_ms: float | None
    seconds: float
    #: Kernels that were compiled; what was found in Triton's cache does not count.
    compiles: int = 0
    #: Whether other processes kept it from being decided: the default stays, and the next run tries
    #: again.
    busy: bool = False
    #: Samples that were thrown away because other processes disturbed them.
    disturbed: int = 0

    @property
    def known(self) -> bool:
        """Return whether nothing had to be measured."""
        return self.new_trials == 0 and not self.busy


@dataclass(frozen=True)
class Job:
    """Everything about one question that the pipeline has to know."""

    task: Task
    spec: CaseSpec
    points: Points
    default: Config
    target: str
    prior: Sequence[Prior] = ()
    #: What the hardware would need at least, if that is known.
    limit_ms: float | None = None
    #: What torch calls the device that is measured on.
    device: str = "cpu"


@dataclass(frozen=True)
class Settings:
    effort: Effort
    strategy: str = DEFAULT_STRATEGY
    budget_seconds: float = math.inf
    jobs: int = 2
    seed: int = 0
    build_timeout_seconds: float = 120.0
    run_timeout_seconds: float = 60.0
    memory_bytes: int = 4 << 30
    #: Whether the vendor's library is timed beside the finalists.
    vendors: bool = True
    #: Whether to wait for another process that measures on the device, or raise DeviceTakenError.
    wait: bool = True


def begin_run(store: Store, command: str, environment: Mapping[str, Any]) -> str:
    """Note in the store that a run begins; its id."""
    run = Run(uuid.uuid4().hex, command, environment, _now())
    store.begin_run(run)
    return run.id


def tune_case(
    job: Job,
    store: Store,
    run: str,
    settings: Settings,
    watch: Callable[[Progress], None] = lambda progress: None,
    crew: Crew | None = None,
) -> Outcome:
    """Answer one task; what the store knows of it already is not measured again.

    Who tunes several tasks in a row spares each the start of its processes with a `Crew`.
    """
    started = time.monotonic()

    def begin() -> _Tuning:
        deadline = time.monotonic() + settings.budget_seconds
        return _Tuning(job, store, run, settings, deadline, watch)

    tuning = begin()
    if not tuning.answered():
        with device_lock(job.device, wait=settings.wait, waiting=tuning.wait_for):
            if store.trials(job.task) != tuning.trials:  # another process has gone on meanwhile
                tuning = begin()
            if not tuning.answered():
                with nullcontext(crew) if crew is not None else Crew(settings) as workers:
                    tuning.use(*workers.turn_to(job.spec, job.default))
    return _outcome(job, store, tuning, started)


class _Tuning:
    """One run over one task: the state of search, workers and results."""

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
        strategy = STRATEGIES[settings.strategy]
        self.strategy = strategy(job.points, random.Random(settings.seed), job.prior)
        self.most_trials = self.effort.trials_in(job.points.size())
        #: What each config takes, in units in which the machine's moods cancel out; None: failed.
        self.results: dict[Config, float | None] = {}
        self.binaries: dict[str, Config] = {}
        self.failures: Counter[str] = Counter()
        self.new_trials = self.compiles = 0
        self.rounds = 0
        self.since_improvement = 0
        self.best: Config | None = None
        #: Configs whose race other processes have disturbed too much: the next run tries again.
        self.unmeasured: set[Config] = set()
        self.busy = False
        self.disturbed = 0
        self.trials = store.trials(job.task)
        # Others may have been tried for another list of configs.
        self.known = _originals_first([t for t in self.trials if t.config in job.points])
        for trial in self.known:
            self._learn(trial)
        self.pool: CompilePool
        self.bench: Bench

    def answered(self) -> bool:
        """Return whether the store knows the end of this search: a shoot-out, and nothing left to
        try.
        """
        finals = any(s.stage == "final" for trial in self.known for s in trial.samples)
        searched = len(self.known) >= self.most_trials or self._hopeless()
        return bool(self.known) and searched and (finals or self.best is None)

    def use(self, pool: CompilePool, bench: Bench) -> None:
        """Search with these workers, and find out who has won."""
        self.pool, self.bench = pool, bench
        compiles, disturbed = bench.compiles, bench.disturbed
        self.search()
        self.shoot_out()
        self.compiles += bench.compiles - compiles
        self.disturbed += bench.disturbed - disturbed

    def wait_for(self, holder: int | None) -> None:
        """Tell the watcher that another process measures on the device."""
        self._report("waiting", holder)

    def search(self) -> None:
        """Batch after batch until the budget, the space or the hope is used up."""
        batch = [] if self._hopeless() else self._next_batch()
        self.pool.submit(batch)
        while batch:
            built = [self.pool.result() for _ in batch]
            # The next batch is chosen before this one is measured, so that it compiles meanwhile.
            following = self._next_batch(pending=len(batch))
            self.pool.submit(following)
            self._judge(sorted(built, key=lambda result: batch.index(result.config)))
            self._report("search")
            if self._enough():
                self._end_builds()
                break
            batch = following

    def _end_builds(self) -> None:
        """Let the compilers come to an end, unless one takes long: a killed one starts anew."""
        self.pool.drop_waiting()
        try:
            while self.pool.outstanding:
                self._keep_build(self.pool.result(timeout_seconds=LAST_BUILD_SECONDS))
        except TimeoutError:
            self.pool.cancel()

    def shoot_out(self) -> None:
        """Race the best configs against the default, and the vendor beside them.

        Where other processes disturbed most of it, or left too few rounds in which any two of them
        were measured, it decides nothing, and the next run holds another.
        """
        default = self.job.default
        seconds = min(self.effort.final_seconds, FINAL_SHARE * self.settings.budget_seconds)
        finalists = self._finalists(seconds)
        if not finalists:
            return
        self._report("final")
        entries: list[Entry] = [*finalists]
        if self.settings.vendors:
            entries += [VENDOR + name for name in self.bench.vendors()]
        # The vendor's functions leave when they are clearly slower; finalists stay to the end.
        times, believed = self._timed(
            entries,
            self.effort.final_rounds,
            keep=finalists,
            budget_seconds=seconds,
            least_rounds=PAIRED_ROUNDS,
            two_processes=(self.results[finalists[0]] or 0.0) < SHORT_MS,
        )
        paired = paired_rounds([times[each] for each in finalists if each in times])
        decided = believed and paired >= PAIRED_ROUNDS
        self.busy = not decided
        found: dict[Config, list[Samples]] = {}
        for entry, rounds in times.items():
            stage = "final" if decided else UNDECIDED
            owner, stage = (default, entry) if isinstance(entry, str) else (entry, stage)
            if owner in self.results:
                found.setdefault(owner, []).extend(self._samples(stage, rounds, 0))
        self.store.add_race(self.job.task, found)

    def _finalists(self, seconds: float) -> list[Config]:
        """Return the default and the best configs: as many as can meet often enough in the time to
        tell them apart, and one at least.
        """
        ranked = sorted((ms, c.key, c) for c, ms in self.results.items() if ms is not None)
        default = self.job.default
        left_ms = seconds * 1000 / (PAIRED_ROUNDS * self._samples_per_round())
        left_ms -= self.results.get(default) or 0.0
        finalists: list[Config] = []
        for ms, _, config in ranked[: self.effort.finalists]:
            if config != default:
                left_ms -= ms
                if left_ms < 0 and finalists:
                    break
                finalists.append(config)
        return finalists + [default] * (self.results.get(default) is not None)

    def _next_batch(self, pending: int = 0) -> list[Config]:
        left = self.most_trials - len(self.results) - len(self.unmeasured) - pending
        count = min(self.effort.batch, left)
        if count <= 0 or time.monotonic() > self.deadline:
            return []
        # The default comes first, whatever the strategy would begin with.
        default = self.job.default
        first = [] if default in self.results or pending else [default]
        asked = self.strategy.ask(count - len(first))
        return first + [config for config in asked if config != default]

    def _judge(self, built: Sequence[BuildResult]) -> None:
        """Take a compiled batch through verification and a race; commit each outcome."""
        racing: dict[str, BuildResult] = {}
        twins: list[BuildResult] = []
        for result in built:
            self._keep_build(result)
            if result.failure:
                self._refuse(result, result.failure)
            elif result.binary in racing or result.binary in self.binaries:
                twins.append(result)
            elif self._verified(result):
                racing[result.binary] = result
        if racing:
            self._race({result.config: result for result in racing.values()})
        orphans = []
        for result in twins:
            original = self.binaries.get(result.binary)
            if original is None:
                orphans.append(result)
            else:
                self._commit(self._trial(result, duplicate_of=original.key))
        # Whose original failed in the race has to show for itself.
        if orphans and not self.busy:
            self._judge(orphans)

    def _verified(self, result: BuildResult) -> bool:
        failure = self.bench.verify(result.config)
        if failure is not None:
            self._refuse(result, failure)
        return failure is None

    def _race(self, racing: Mapping[Config, BuildResult]) -> None:
        incumbent = self.best
        entries: list[Entry] = [*racing, *([incumbent] if incumbent is not None else [])]
        self.pool.pause()
        try:
            times, believed = self._timed(
                entries, self.effort.rounds, keep=[incumbent] if incumbent else []
            )
        finally:
            self.pool.resume()
        measured = {config for config, rounds in times.items() if pooled(rounds)}
        # Without what the others are compared with, there is nothing to learn from their times.
        needed = self.job.default if incumbent is None else incumbent
        if not believed or (needed in times and needed not in measured):
            measured.clear()
        pace = 1.0
        if incumbent in measured:
            before = self.results[incumbent]
            assert before is not None
            pace = before / median(times[incumbent])
            samples = self._samples("search", times[incumbent], self.rounds)
            self.store.add_samples(self.job.task, incumbent, *samples)
        for config, result in racing.items():
            if config not in times:
                self._refuse(result, self.bench.failures[config])
            elif config in measured:
                samples = self._samples("search", times[config], self.rounds)
                self._commit(self._trial(result, samples=samples), median(times[config]) * pace)
            else:
                self.unmeasured.add(config)
        self.busy = bool(times) and not measured
        self.rounds += self.effort.rounds

    def _timed(
        self, entries: Sequence[Entry], rounds: int, **options: Any
    ) -> tuple[dict[Entry, list[Round]], bool]:
        """Return a race, and whether to believe it: others disturbed no more samples than they
        left.
        """
        before = self.bench.disturbed
        times = self.bench.time(entries, rounds, self._samples_per_round(), **options)
        disturbed = self.bench.disturbed - before
        return times, disturbed <= sum(len(pooled(each)) for each in times.values())

    def _samples_per_round(self) -> int:
        """Return a long call tells as much as several short ones."""
        best = 10.0 if self.best is None else self.results[self.best]
        assert best is not None
        return 3 if best < 5.0 else 2 if best < 50.0 else 1

    def _samples(self, stage: str, rounds: Sequence[Round], first: int) -> tuple[Samples, ...]:
        """Return what is stored of a race, its rounds counted from the first.

        Of one that decides nothing, the empty rounds too: they say that there was a race.
        """
        return tuple(
            Samples(self.run, stage, number, tuple(ms))
            for number, ms in enumerate(rounds, first)
            if ms or stage == UNDECIDED
        )

    def _trial(self, result: BuildResult, **outcome: Any) -> Trial:
        return Trial(
            self.job.task,
            result.config,
            self.run,
            _now(),
            default=result.config == self.job.default,
            binary=result.binary,
            **outcome,
        )

    def _keep_build(self, result: BuildResult) -> None:
        task = self.job.task
        self.compiles += result.compiles
        signature = signature_of(self.job.spec)
        build = result.stored(task.kernel, task.identity, self.job.target, signature)
        self.store.add_build(build)

    def _refuse(self, result: BuildResult, failure: Failure) -> None:
        self._commit(self._trial(result, failure=failure.reason, message=failure.message))

    def _commit(self, trial: Trial, ms: float | None = None) -> None:
        self.store.add_trial(trial)
        self.new_trials += 1
        self._learn(trial, ms)

    def _learn(self, trial: Trial, ms: float | None = None) -> None:
        """Remember an outcome, and tell the strategy."""
        if trial.failure:
            self.failures[trial.failure] += 1
        elif trial.duplicate_of is not None:
            twins = (c for c in self.results if c.key == trial.duplicate_of)
            ms = next((self.results[c] for c in twins), None)
        elif ms is None:
            ms = median([s.times_ms for s in trial.samples if s.stage in ("search", "final")])
        if ms is not None and trial.binary and trial.duplicate_of is None:
            self.binaries[trial.binary] = trial.config
        self.results[trial.config] = ms
        self.strategy.tell(trial.config, ms)
        best = None if self.best is None else self.results[self.best]
        if ms is not None and (best is None or ms < best):
            improved = best is None or ms < IMPROVEMENT * best
            self.since_improvement = 0 if improved else self.since_improvement + 1
            self.best = trial.config
        else:
            self.since_improvement += 1

    def _enough(self) -> bool:
        return self.busy or time.monotonic() > self.deadline or self._hopeless()

    def _hopeless(self) -> bool:
        """Return whether more trials would hardly find anything better."""
        best = None if self.best is None else self.results[self.best]
        return self.since_improvement >= self.effort.patience_near(self.job.limit_ms, best)

    def _report(self, stage: str, holder: int | None = None) -> None:
        best = None if self.best is None else self.results[self.best]
        default = self.results.get(self.job.default)
        self.watch(
            Progress(
                len(self.results), self.most_trials, dict(self.failures), best, default, self.best,
                stage, holder,
            )
        )  # fmt: skip


def _originals_first(trials: Sequence[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: (trial.duplicate_of is not None, trial.when))


def _outcome(job: Job, store: Store, tuning: _Tuning, started: float) -> Outcome:
    trials = store.trials(job.task)
    vendors: dict[str, list[Sequence[float]]] = {}
    for trial in trials:
        for samples in trial.samples:
            if samples.stage.startswith(VENDOR):
                vendors.setdefault(samples.stage.removeprefix(VENDOR), []).append(samples.times_ms)
    fastest = min(((median(times), name) for name, times in vendors.items()), default=None)
    return Outcome(
        job.task,
        store.winner(job.task),
        len(trials),
        tuning.new_trials,
        dict(Counter(trial.failure for trial in trials if trial.failure)),
        fastest and fastest[1],
        fastest and fastest[0],
        time.monotonic() - started,
        tuning.compiles,
        tuning.busy,
        tuning.disturbed,
    )


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
