"""Interleaved timing: in each round, every candidate still in the race is timed once.

It knows neither clocks nor processes: they are the caller's. What a race measured is stored;
`store/decide_winner.py` decides which config won.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from tritune.tuning.measure.statistics import Round, interval, median, pooled

E = TypeVar("E", bound=Hashable)

#: A candidate whose first sample is this much slower than the best one's median takes no second.
HOPELESS = 3.0


class Race(Generic[E]):
    """Candidates that are timed in turns; those that are certainly slower than the best one leave.

    Entries in `keep` stay to the end. An entry for which `leads` is false makes no other leave: it
    races to be compared with, not to win. A round in which all samples of an entry were disturbed
    is empty for that entry.
    """

    def __init__(
        self,
        entries: Iterable[E],
        keep: Collection[E] = (),
        seed: int = 0,
        leads: Callable[[E], bool] = lambda entry: True,
    ) -> None:
        self.racing: list[E] = list(dict.fromkeys(entries))
        self.rounds: dict[E, list[Round]] = {entry: [] for entry in self.racing}
        #: How many rounds were held.
        self.held = 0
        self._keep = set(keep)
        self._seed = seed
        self._leads = leads

    def hold(self, time: Callable[[E], Sequence[float] | None]) -> None:
        """Hold a round: `time` returns an entry's samples in milliseconds, None if it failed."""
        for entry in self.order(self.held):
            times_ms = time(entry)
            if times_ms is None:
                self.fail(entry)
            else:
                self.add(entry, times_ms)
        self.end_round()

    def order(self, number: int) -> list[E]:
        """Return who is still in the race, shuffled for this round; the same in every process."""
        order = list(self.racing)
        random.Random(f"{self._seed} {number}").shuffle(order)
        return order

    def add(self, entry: E, times_ms: Sequence[float]) -> None:
        self.rounds[entry].append(tuple(times_ms))

    def fail(self, entry: E) -> None:
        """Take a candidate out with everything that was measured of it."""
        self.racing.remove(entry)
        del self.rounds[entry]

    def ceiling_ms(self, entry: E) -> float | None:
        """Return the time above which a candidate is hopeless; None if that cannot be told."""
        best = self._best()
        if best is None or entry == best or entry in self._keep:
            return None
        return HOPELESS * median(self.rounds[best])

    def leave(self, entry: E) -> None:
        """Take a candidate out; what was measured of it counts."""
        self.racing.remove(entry)

    def paired_rounds(self) -> int:
        """Return in how many rounds any two of those who stay to the end were both measured."""
        kept = [self.rounds[entry] for entry in self._keep if entry in self.rounds]
        return paired_rounds(kept) if kept else self.held

    def unmeasured(self) -> bool:
        """Return whether nobody has a single sample."""
        return not any(map(pooled, self.rounds.values()))

    def end_round(self) -> None:
        """Count the round, and drop entries whose confidence interval lies above the best one's."""
        self.held += 1
        best = self._best()
        if best is None:
            return
        self.racing = [
            entry
            for entry in self.racing
            if entry == best or entry in self._keep or not self._certainly_slower(entry, best)
        ]

    def _best(self) -> E | None:
        timed = [e for e in self.racing if self._leads(e) and pooled(self.rounds[e])]
        return min(timed, key=lambda entry: median(self.rounds[entry]), default=None)

    def _certainly_slower(self, entry: E, best: E) -> bool:
        ours, theirs = pooled(self.rounds[entry]), pooled(self.rounds[best])
        if not ours:
            return False
        # Compared with the best one's worst too: on a busy machine one lucky sample proves little.
        if min(ours) > max(HOPELESS * median(self.rounds[best]), *theirs):
            return True
        mine, others = interval(ours), interval(theirs)
        return mine is not None and others is not None and mine[0] > others[1]


def paired_rounds(rounds: Sequence[Sequence[Round]]) -> int:
    """Return in how many rounds any two of these were both measured; of one alone, in how many it
    was.
    """
    pairs = itertools.combinations_with_replacement(rounds, 2)
    counts = (sum(bool(a and b) for a, b in zip(*pair, strict=True)) for pair in pairs)
    return min(counts, default=0)
