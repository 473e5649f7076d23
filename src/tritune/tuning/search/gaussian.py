"""A Gaussian process over a set of candidates, made for one new observation at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from tritune.tuning.search.encoding import Array

#: What is believed before anything is known of the logarithms of the length scales, which are
#: relative to a column's whole range, and of the share of noise: the mean and the deviation.
LENGTH = (float(np.log(1.5)), 1.0)
NOISE = (float(np.log(0.01)), 1.5)

#: Length scales and noise stay within these logarithms.
_BOUNDS = ((-3.0, 3.0), (float(np.log(1e-4)), 0.0))


class GaussianProcess:
    """Learns a function of the candidates' vectors: how large, how sure, and how smooth it is.

    The expensive half of a prediction depends on where was observed, not on what was seen there: it
    is kept and grown row by row, so that an observation costs one row for all candidates.
    """

    def __init__(self, candidates: Array, lengths: Array | None = None) -> None:
        """`lengths` are the logarithms of the length scales to expect, if something is known."""
        self._candidates = candidates
        expected = np.full(candidates.shape[1], LENGTH[0]) if lengths is None else lengths
        self._expected = np.append(expected, NOISE[0])
        self._theta = self._expected.copy()
        self._forget()

    @property
    def lengths(self) -> Array:
        """Return the logarithms of the length scales that were found."""
        return self._theta[:-1]

    def fit(self, rows: Sequence[int], values: Array) -> None:
        """Choose length scales and noise for these observations; values should be standardised."""
        points = self._candidates[rows]
        apart = (points[:, None, :] - points[None, :, :]) ** 2
        found = minimize(
            _cost,
            self._theta,
            args=(apart, values, self._expected),
            jac=True,
            method="L-BFGS-B",
            bounds=[_BOUNDS[0]] * points.shape[1] + [_BOUNDS[1]],
            options={"maxiter": 30},
        )
        self._theta = found.x
        self._forget()

    def predict(self, rows: Sequence[int], values: Array) -> tuple[Array, Array]:
        """Return the mean and the standard deviation at every candidate, given the observations."""
        self._condition(rows)
        count = len(rows)
        lower = self._cholesky[:count, :count]
        weights = solve_triangular(lower, values, lower=True, check_finite=False)
        scale = (weights @ weights + 1) / (count + 1)
        mean = weights @ self._whitened[:count]
        return mean, np.sqrt(np.maximum(self._variance, 1e-9) * scale)

    def extend(self, candidates: Array) -> None:
        """Add candidates after those that are there."""
        self._candidates = np.vstack([self._candidates, candidates])
        self._forget()

    def _forget(self) -> None:
        self._scaled = self._candidates * np.exp(-self._theta[:-1])
        self._rows: list[int] = []
        self._cholesky = np.zeros((0, 0))
        self._whitened = np.zeros((0, len(self._candidates)))
        self._variance = np.ones(len(self._candidates))

    def _condition(self, rows: Sequence[int]) -> None:
        """Make the kept half that of these rows, beginning where it departs from them."""
        same = 0
        while same < min(len(rows), len(self._rows)) and rows[same] == self._rows[same]:
            same += 1
        if same < len(self._rows):
            dropped = self._whitened[same : len(self._rows)]
            self._variance += np.einsum("ij,ij->j", dropped, dropped)
        new = list(rows[same:])
        if new:
            self._make_room(len(rows))
            self._append(same, new)
        self._rows = list(rows)

    def _make_room(self, count: int) -> None:
        room = len(self._cholesky)
        if count > room:
            more = max(count, 2 * room, 32) - room
            self._cholesky = np.pad(self._cholesky, ((0, more), (0, more)))
            self._whitened = np.pad(self._whitened, ((0, more), (0, 0)))

    def _append(self, same: int, new: list[int]) -> None:
        """Add rows to the Cholesky factor for new observations; update the variances."""
        kernel = _matern(np.sqrt(5 * _apart(self._scaled[new], self._scaled)))
        end = same + len(new)
        left = self._whitened[:same, new].T
        noise = np.exp(self._theta[-1]) + 1e-8
        lower = np.linalg.cholesky(kernel[:, new] + noise * np.eye(len(new)) - left @ left.T)
        self._cholesky[same:end, :same] = left
        self._cholesky[same:end, same:end] = lower
        kernel -= left @ self._whitened[:same]
        fresh = solve_triangular(lower, kernel, lower=True, check_finite=False, overwrite_b=True)
        self._whitened[same:end] = fresh
        self._variance -= np.einsum("ij,ij->j", fresh, fresh)


def _apart(left: Array, right: Array) -> Array:
    """Return squared distances between all rows of both."""
    squares = np.add.outer((left**2).sum(1), (right**2).sum(1))
    return np.maximum(squares - 2 * left @ right.T, 0)


def _matern(root: Array) -> Array:
    """Return the Matérn 5/2 kernel, of distances that are multiplied with the root of 5 already."""
    return (1 + root + root**2 / 3) * np.exp(-root)


def _cost(theta: Array, apart: Array, values: Array, expected: Array) -> tuple[float, Array]:
    """Return the negative log posterior of length scales and noise, and its gradient.

    The scale of the function is not searched for: its best value has a closed form.
    """
    count = len(values)
    squares = apart * np.exp(-2 * theta[:-1])
    root = np.sqrt(5 * squares.sum(2))
    noise = np.exp(theta[-1])
    kernel = _matern(root)
    kernel[np.diag_indices(count)] += noise + 1e-8
    lower = np.linalg.cholesky(kernel)
    half = solve_triangular(lower, np.eye(count), lower=True, check_finite=False)
    inverse = half.T @ half
    alpha = inverse @ values
    scale = (values @ alpha + 1) / (count + 1)
    cost = 0.5 * count * np.log(scale) + np.log(np.diag(lower)).sum()

    pull = 0.5 * (inverse - np.outer(alpha, alpha) * (count / ((count + 1) * scale)))
    slope = np.empty_like(theta)
    slope[:-1] = np.tensordot(pull * (5 / 3) * (1 + root) * np.exp(-root), squares, 2)
    slope[-1] = noise * np.trace(pull)

    spread = np.append(np.full(len(theta) - 1, LENGTH[1]), NOISE[1])
    surprise = (theta - expected) / spread
    return cost + 0.5 * (surprise @ surprise), slope + surprise / spread
