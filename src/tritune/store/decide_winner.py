"""The rule that decides a winner: a pure function of the trials. Winners are not stored."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tritune.space import Config
from tritune.store.records import UNDECIDED, Samples, Task, Trial

#: Fewer common rounds cannot decide a sign test at 95 %: all of five agree by chance in 1 of 16.
PAIRED_ROUNDS = 6
#: A config whose median is so many times its lower decile was stalled by something else. If that is
#: the default, it was not compared.
STALLED = 2.0
_DEVIATES_95 = 1.96

#: The times of one config: (run, round) -> what was measured in it.
Rounds = Mapping[tuple[str, int], Sequence[float]]


@dataclass(frozen=True)
class Winner:
    """The config to use for a task, and what is known of it."""

    task: Task
    config: Config
    #: The median; None where another tool named the winner without a time.
    ms: float | None
    #: The default config's median in the same measurements, if it took part.
    default_ms: float | None
    #: How many times of this config were looked at.
    samples: int
    when: str
    #: Whether other configs could not be told from this one.
    tied: bool

    @property
    def speedup(self) -> float | None:
        """Return how many times as fast as the default config it is."""
        if self.ms is None or self.default_ms is None:
            return None
        return self.default_ms / self.ms


@dataclass(frozen=True)
class _Candidate:
    trial: Trial
    rounds: Rounds
    ms: float
    times: Sequence[float]  # sorted


def decide(trials: Iterable[Trial], started: Mapping[str, str] | None = None) -> Winner | None:
    """Return the winner among the trials of one task, or None where nothing worked.

    `started` says when each run began; without it, a run is as old as its latest trial.
    """
    alive = [trial for trial in trials if trial.failure is None]
    if not alive:
        return None
    shared = _shared_samples(alive)
    begun = {trial.run: trial.when for trial in sorted(alive, key=lambda trial: trial.when)}
    begun.update((run, started[run]) for run in _runs(shared) if started and run in started)
    run = _latest_final(shared.values(), begun, measured=True)
    if run is None:
        left = _left_undecided(alive, shared)
        if left is not None:
            return left
    candidates = _candidates(alive, shared, run)
    if candidates:
        return _race(alive, candidates)
    return _claimed(alive, shared, _latest_final(shared.values(), begun, measured=False))


def _left_undecided(
    alive: Sequence[Trial], shared: Mapping[str, tuple[Samples, ...]]
) -> Winner | None:
    """Return the default where the only shoot-outs were undecided; None where none was held."""
    default = next((trial for trial in alive if trial.default), None)
    held = any(each.stage == UNDECIDED for group in shared.values() for each in group)
    if default is None or not held:
        return None
    samples = [s for s in shared[default.config.key] if s.stage in (UNDECIDED, "search")]
    times = [ms for each in samples for ms in each.times_ms]
    ms = statistics.median(times) if times else None
    return Winner(default.task, default.config, ms, ms, len(times), default.when, tied=True)


def _shared_samples(alive: Sequence[Trial]) -> dict[str, tuple[Samples, ...]]:
    """Return the samples of each config: its own, or those of the config with the same binary."""
    own = {trial.config.key: trial.samples for trial in alive}
    return {
        trial.config.key: trial.samples or own.get(trial.duplicate_of or "", ()) for trial in alive
    }


def _runs(shared: Mapping[str, tuple[Samples, ...]]) -> set[str]:
    return {each.run for group in shared.values() for each in group}


def _latest_final(
    samples: Iterable[tuple[Samples, ...]], begun: Mapping[str, str], *, measured: bool
) -> str | None:
    runs = {
        each.run
        for group in samples
        for each in group
        if each.stage == "final" and bool(each.times_ms) == measured
    }
    return max(runs, key=lambda run: (begun.get(run, ""), run), default=None)


def _candidates(
    alive: Sequence[Trial], shared: Mapping[str, tuple[Samples, ...]], run: str | None
) -> list[_Candidate]:
    found = []
    for trial in alive:
        rounds = {
            (each.run, each.round): each.times_ms
            for each in shared[trial.config.key]
            if each.times_ms
            and (each.stage == "search" if run is None else each.stage == "final")
            and run in (None, each.run)
        }
        if rounds:
            ms = statistics.median(statistics.median(times) for times in rounds.values())
            times = sorted(time for group in rounds.values() for time in group)
            found.append(_Candidate(trial, rounds, ms, times))
    return found


def _race(alive: Sequence[Trial], candidates: Sequence[_Candidate]) -> Winner:
    best = min(candidates, key=lambda each: (each.ms, each.trial.config.key))
    stalled = [each for each in candidates if _stalled(each)]
    unsure = [each for each in stalled if each.trial.default]
    beaten = [each for each in candidates if each.trial.default and _slower(each, best)]
    tied = unsure or [
        each
        for each in candidates
        # What cannot be told from the best wins only if it has beaten the default itself.
        if each is best
        or (
            each not in stalled
            and not _slower(each, best)
            and all(_slower(default, each) for default in beaten)
        )
    ]
    default = next((trial.config for trial in alive if trial.default), None)
    winner = min(tied, key=lambda each: _simplicity(each.trial, default))
    return Winner(
        task=winner.trial.task,
        config=winner.trial.config,
        ms=winner.ms,
        default_ms=next((each.ms for each in candidates if each.trial.default), None),
        samples=len(winner.times),
        when=winner.trial.when,
        tied=bool(unsure) or len(tied) > 1,
    )


def _stalled(candidate: _Candidate) -> bool:
    """Return whether stalls of the machine are in the median, which then says little.

    Stores from before samples were watched have such times, and so have devices that nobody can
    watch.
    """
    times = candidate.times
    return candidate.ms > STALLED * times[len(times) // 10]


def _claimed(
    alive: Sequence[Trial], shared: Mapping[str, tuple[Samples, ...]], run: str | None
) -> Winner | None:
    """Return the winner that another tool named without a time."""
    named = [
        trial
        for trial in alive
        if any(each.stage == "final" and each.run == run for each in shared[trial.config.key])
    ]
    if not named:
        return None
    winner = min(named, key=lambda trial: trial.config.key)
    return Winner(winner.task, winner.config, None, None, 0, winner.when, len(named) > 1)


def _simplicity(trial: Trial, default: Config | None) -> tuple[bool, int, str]:
    changed = 0
    if default is not None:
        ours, theirs = trial.config.to_json(), default.to_json()
        changed = sum(ours.get(name) != theirs.get(name) for name in {*ours, *theirs})
    return not trial.default, changed, trial.config.key


def _slower(other: _Candidate, best: _Candidate) -> bool:
    """Return whether the other config is slower than the best by more than the noise."""
    if other.times[0] > best.times[-1]:
        return True  # as both tests below would say, but there may be thousands of others
    common = [key for key in best.rounds if key in other.rounds]
    if len(common) >= PAIRED_ROUNDS:
        return _slower_by_rounds(other.rounds, best.rounds, common)
    return _slower_by_ranks(other.times, best.times)


def _slower_by_rounds(other: Rounds, best: Rounds, common: Sequence[tuple[str, int]]) -> bool:
    """Apply the sign test: rounds of a race are interleaved, so what disturbs one disturbs both.

    Where there are enough rounds, the other must have lost both halves as well: they may be of two
    processes, and what one process does to a config is no property of it.
    """
    lost = [statistics.median(other[key]) > statistics.median(best[key]) for key in sorted(common)]
    half = len(lost) // 2
    if half >= PAIRED_ROUNDS and not all(2 * sum(h) > len(h) for h in (lost[:half], lost[half:])):
        return False
    against = len(lost) - sum(lost)
    tail = sum(math.comb(len(lost), count) for count in range(against + 1))
    return 2 * tail / 2 ** len(lost) <= 0.05


def _slower_by_ranks(other: Sequence[float], best: Sequence[float]) -> bool:
    """Apply the rank test of Mann and Whitney to sorted times."""
    pairs = len(other) * len(best)
    # A tie counts as lost, which favours the simpler config.
    lost = sum(bisect_right(other, time) for time in best)
    deviation = math.sqrt(pairs * (len(other) + len(best) + 1) / 12)
    allowed = pairs / 2 - _DEVIATES_95 * deviation
    # With a sample or two of each there is no estimate of the noise: the order decides.
    return lost <= max(allowed, 0)
