"""Replaying searches on recorded spaces: the fraction of the optimum after each trial.

Nothing is compiled or measured, so that strategies can be compared in seconds, on devices that are
not here. A config that failed when it was recorded costs a trial, as it does in a real run.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context

from tritune.space import Listed
from tritune.store.formats.recorded import Recorded
from tritune.tuning.search import STRATEGIES, Prior

#: After how many trials strategies are compared.
BUDGETS = (25, 50, 100, 200)


@dataclass(frozen=True)
class ReplayJob:
    """A recorded space to replay, and the recorded spaces that a search may begin from."""

    space: Recorded
    warm: tuple[Recorded, ...] = ()


@dataclass(frozen=True)
class Curve:
    """The fraction of the optimum that was reached after each trial; 0 while nothing worked."""

    strategy: str
    place: int
    seed: int
    fractions: tuple[float, ...]


def priors_for(space: Recorded, others: Sequence[Recorded]) -> tuple[Recorded, ...]:
    """Return the spaces that were recorded with the same parameters, without the space itself."""
    return tuple(
        other
        for other in others
        if other.parameters.keys() == space.parameters.keys()
        and (other.kernel, other.device, other.name) != (space.kernel, space.device, space.name)
        and other.results != space.results
    )


def replay(
    job: ReplayJob, strategy: str, seed: int, trials: int = BUDGETS[-1]
) -> tuple[float, ...]:
    """Return the fraction of the optimum after 1, 2, ... trials, one config asked for at a time."""
    results, optimum = job.space.results, job.space.best_ms
    points, priors = Listed(results), [Prior(other.results) for other in job.warm]
    searcher = STRATEGIES[strategy](points, random.Random(seed), priors)
    best = 0.0
    fractions = []
    for _ in range(min(trials, points.size())):
        [config] = searcher.ask(1)
        ms = results[config]
        searcher.tell(config, ms)
        if ms is not None and optimum is not None:
            best = max(best, optimum / ms)
        fractions.append(best)
    return (*fractions, *[best] * (trials - len(fractions)))


def replay_all(
    jobs: Sequence[ReplayJob],
    strategies: Sequence[str],
    seeds: int,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> list[Curve]:
    """Replay every strategy on every space with every seed, on all cores.

    `watch` is called with the numbers of replays that are done, and of all.
    """
    wanted = [
        (name, place, seed)
        for name in strategies
        for place in range(len(jobs))
        for seed in range(seeds)
    ]
    curves = []
    for curve in _run(jobs, wanted):
        curves.append(curve)
        watch(len(curves), len(wanted))
    return curves


def mean_fractions(curves: Sequence[Curve]) -> list[float]:
    """Return the mean over curves after each trial."""
    columns = zip(*(curve.fractions for curve in curves), strict=True)
    return [statistics.fmean(column) for column in columns]


_Wanted = tuple[str, int, int]
_jobs: Sequence[ReplayJob] = ()


def _run(jobs: Sequence[ReplayJob], wanted: Sequence[_Wanted]) -> Iterator[Curve]:
    workers = min(len(wanted), len(os.sched_getaffinity(0)))
    if workers < 2:
        _begin(jobs)
        yield from map(_curve, wanted)
        return
    # A fresh interpreter, because a fork of a process with threads may hang.
    others = set(active_children())
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(jobs,))
    pressed: list[int] = []
    # KeyboardInterrupt may be raised while a future's lock is held, which then is never released.
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        # A terminal interrupts children too. Theirs is blocked from birth: this process decides.
        with _without_interrupts():
            futures = [pool.submit(_curve, each) for each in wanted]
        for future in futures:
            while not pressed and not wait([future], timeout=0.1).done:
                pass
            if pressed:
                raise KeyboardInterrupt
            yield future.result()
    finally:
        signal.signal(signal.SIGINT, before)
        with _without_interrupts():
            for child in set(active_children()) - others:
                child.kill()  # else this process, interrupted, would wait for what they are doing
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Put an interrupt off until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(jobs: Sequence[ReplayJob]) -> None:
    global _jobs
    _jobs = jobs


def _curve(wanted: _Wanted) -> Curve:
    strategy, place, seed = wanted
    return Curve(strategy, place, seed, replay(_jobs[place], strategy, seed))
