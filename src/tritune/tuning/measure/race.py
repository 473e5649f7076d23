"""Who runs when in a race, and who has to leave it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Sequence
from typing import TypeAlias

from tritune.space import Config
from tritune.tuning.measure.statistics import Round, interval, median, pooled

#: A config, or the name of something else that runs along: the vendor's function.
Entry: TypeAlias = "Config | str"

#: A candidate whose first sample is this much slower than the best one's median takes no second.
HOPELESS = 3.0


class Race:
    """Candidates that take turns; those that are certainly slower than the best config leave.

    A round in which all samples of an entry were disturbed is empty for it. Entries in `keep` stay
    to the end. A name that is no config never drives a config out: it races to be compared with,
    not to win.
    """

    def __init__(self, entries: Sequence[Entry], keep: Collection[Entry] = (), seed: int = 0):
        self.racing: list[Entry] = list(dict.fromkeys(entries))
        self.rounds: dict[Entry, list[Round]] = {entry: [] for entry in self.racing}
        #: How many rounds were held.
        self.held = 0
        self._keep = set(keep)
        self._seed = seed

    def order(self, number: int) -> list[Entry]:
        """Return who is still in the race, shuffled for this round; the same in every process."""
        order = list(self.racing)
        random.Random(f"{self._seed} {number}").shuffle(order)
        return order

    def add(self, entry: Entry, times_ms: Sequence[float]) -> None:
        self.rounds[entry].append(tuple(times_ms))

    def fail(self, entry: Entry) -> None:
        """Take a candidate out with everything that was measured of it."""
        self.racing.remove(entry)
        del self.rounds[entry]

    def ceiling_ms(self, entry: Entry) -> float | None:
        """Above this a candidate is hopeless; None where it stays anyway or nobody knows yet."""
        best = self._best()
        if best is None or entry == best or entry in self._keep:
            return None
        return HOPELESS * median(self.rounds[best])

    def meetings(self) -> int:
        """Return how often any two of those who stay to the end have met."""
        kept = [self.rounds[entry] for entry in self._keep if entry in self.rounds]
        return meetings(kept) if kept else self.held

    def unmeasured(self) -> bool:
        """Return whether nobody has a single sample."""
        return not any(map(pooled, self.rounds.values()))

    def thin_out(self) -> None:
        """End a round: drop whose confidence interval lies above the best one's."""
        self.held += 1
        best = self._best()
        if best is None:
            return
        self.racing = [
            entry
            for entry in self.racing
            if entry == best or entry in self._keep or not self._certainly_slower(entry, best)
        ]

    def _best(self) -> Entry | None:
        timed = [e for e in self.racing if isinstance(e, Config) and pooled(self.rounds[e])]
        return min(timed, key=lambda entry: median(self.rounds[entry]), default=None)

    def _certainly_slower(self, entry: Entry, best: Entry) -> bool:
        ours, theirs = pooled(self.rounds[entry]), pooled(self.rounds[best])
        if not ours:
            return False
        # Compared with the best one's worst too: on a busy machine one lucky sample proves little.
        if min(ours) > max(HOPELESS * median(self.rounds[best]), *theirs):
            return True
        mine, others = interval(ours), interval(theirs)
        return mine is not None and others is not None and mine[0] > others[1]


def meetings(rounds: Sequence[Sequence[Round]]) -> int:
    """In how many rounds any two of these were both measured; of one alone, in how many it was."""
    pairs = itertools.combinations_with_replacement(rounds, 2)
    counts = (sum(bool(a and b) for a, b in zip(*pair, strict=True)) for pair in pairs)
    return min(counts, default=0)
