"""Draw curves with letters, for a terminal or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH = 64
HEIGHT = 16


def plot(curves: Mapping[str, Sequence[float]]) -> str:
    """Plot fractions of the optimum against trials, with a letter and a legend for each curve.

    Where curves meet, the first one is drawn.
    """
    trials = max(len(curve) for curve in curves.values())
    # What happens in the first few trials would squeeze the rest together.
    low = min(curve[min(4, len(curve) - 1)] for curve in curves.values())
    low = min(int(low * 20) / 20, 0.95)
    marks = dict(zip(curves, _letters(list(curves)), strict=True))
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for name, curve in reversed(list(curves.items())):
        for column in range(WIDTH):
            value = curve[min(column * trials // WIDTH, len(curve) - 1)]
            if value >= low:
                row = round((1 - value) / (1 - low) * (HEIGHT - 1))
                grid[row][column] = marks[name]
    lines = [
        f"{1 - row * (1 - low) / (HEIGHT - 1):5.2f} |{''.join(cells).rstrip()}"
        for row, cells in enumerate(grid)
    ]
    axis = "      +" + "-" * WIDTH
    scale = f"       1{'trials':^{WIDTH - 1 - len(str(trials))}}{trials}"
    legend = "       " + "   ".join(f"{mark} {name}" for name, mark in marks.items())
    return "\n".join([*lines, axis, scale, legend])


def _letters(names: Sequence[str]) -> list[str]:
    """Return for each name its first letter that no earlier name has taken."""
    taken: list[str] = []
    for name in names:
        free = (letter for letter in name + "0123456789" if letter not in taken)
        taken.append(next(free, "*"))
    return taken
