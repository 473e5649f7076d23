"""Efforts: how much a tuning run spends on one problem."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tritune.errors import TrituneError

#: A search that tries fewer configs than this has seen nothing, however small the space.
FEWEST = 12

#: A best config this near to what the hardware can do leaves little to find, and this part of the
#: patience is enough. Not none: the limit is what torch reaches, and that is no law of nature.
NEAR_THE_LIMIT, NEAR_PATIENCE = 0.95, 1 / 3


@dataclass(frozen=True)
class Effort:
    name: str
    #: Configs tried at most: a number, and a share of the space where that is smaller.
    trials: int
    share: float
    #: Configs that are built, verified and raced together.
    batch: int
    #: Interleaved rounds of a race, and of the shoot-out at the end.
    rounds: int
    final_rounds: int
    #: The shoot-out takes no further round after so long.
    final_seconds: float
    finalists: int
    #: The search ends when so many trials in a row have improved nothing.
    patience: int

    def trials_in(self, size: int) -> int:
        """Return how many of a space's configs are tried."""
        return min(size, max(FEWEST, min(self.trials, int(size * self.share))))

    def patience_near(self, limit_ms: float | None, best_ms: float | None) -> int:
        """Return the patience, given the best time and the least that the hardware allows."""
        if limit_ms is None or best_ms is None:
            return self.patience
        # A limit that was beaten was measured on a busy machine, and is none.
        near = NEAR_THE_LIMIT * best_ms <= limit_ms <= best_ms
        return int(self.patience * NEAR_PATIENCE) if near else self.patience


EFFORTS = {
    "quick": Effort("quick", 60, 0.10, 8, 3, 45, 10.0, 6, 30),
    "normal": Effort("normal", 200, 0.50, 12, 5, 75, 30.0, 8, 80),
    "full": Effort("full", 10**9, 1.0, 16, 7, 125, 120.0, 10, 10**9),
}


def whole_list(size: int) -> Effort:
    """Return the effort that tries each config of a short list."""
    return replace(EFFORTS["quick"], name="list", trials=size, share=1.0, patience=size)


def effort_named(name: str) -> Effort:
    try:
        return EFFORTS[name]
    except KeyError:
        raise TrituneError(f"effort {name!r}, allowed: {', '.join(EFFORTS)}") from None
