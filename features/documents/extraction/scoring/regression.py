"""Logistic regression and isotonic regression, in numpy.

For small data: thousands of rows, tens of columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_RIDGE = 1.0
"""Penalty of the squared weights, in standard deviations: uninformative columns stay near 0."""
_STEPS = 50
_ENOUGH = 1e-9

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logistic:
    """Weights in units of each column's standard deviation, the intercept first."""

    means: tuple[float, ...]
    scales: tuple[float, ...]
    weights: tuple[float, ...]

    def predict(self, rows: Vector) -> Vector:
        """Return the probabilities of rows `[rows, columns]`."""
        return _sigmoid(_with_ones((rows - np.array(self.means)) / np.array(self.scales)) @ np.array(self.weights))


@dataclass(frozen=True, slots=True, kw_only=True)
class Isotonic:
    """A monotonically increasing, piecewise linear function, by its corners."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def predict(self, xs: Vector) -> Vector:
        """Return the function's values."""
        return np.interp(xs, self.xs, self.ys)


def fit_logistic(rows: Vector, labels: Vector) -> Logistic:
    """Fit `[rows, columns]` to labels of 0 and 1 by Newton's method (Hastie, Tibshirani, Friedman 2009, 4.4.1)."""
    means, scales = rows.mean(axis=0), rows.std(axis=0)
    scales[scales == 0] = 1.0
    inputs = _with_ones((rows - means) / scales)
    ridge = np.full(inputs.shape[1], _RIDGE)
    ridge[0] = 1e-6  # the intercept is free, and still finite where all labels are the same
    weights = np.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        chances = _sigmoid(inputs @ weights)
        slope = inputs.T @ (labels - chances) - ridge * weights
        curvature = (inputs * (chances * (1 - chances))[:, None]).T @ inputs + np.diag(ridge)
        change = np.linalg.solve(curvature, slope)
        weights += change
        if np.abs(change).max() < _ENOUGH:
            break
    return Logistic(means=tuple(means.tolist()), scales=tuple(scales.tolist()), weights=tuple(weights.tolist()))


def fit_isotonic(xs: Vector, labels: Vector) -> Isotonic:
    """Fit a monotonically increasing function by pooling adjacent violators (Ayer et al. 1955)."""
    order = np.argsort(xs, kind="stable")
    pools: list[list[float]] = []  # [sum of labels, count, least x, greatest x]
    for x, label in zip(xs[order].tolist(), labels[order].tolist(), strict=True):
        if pools and pools[-1][3] == x:
            pools[-1][0] += label
            pools[-1][1] += 1
        else:
            pools.append([label, 1, x, x])
        while len(pools) > 1 and pools[-2][0] * pools[-1][1] >= pools[-1][0] * pools[-2][1]:
            total, count, _, greatest = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += count
            pools[-1][3] = greatest
    corners = [(x, total / count) for total, count, least, greatest in pools for x in sorted({least, greatest})]
    return Isotonic(xs=tuple(x for x, _ in corners), ys=tuple(y for _, y in corners))


def _sigmoid(values: Vector) -> Vector:
    return 1 / (1 + np.exp(-np.clip(values, -500, 500)))


def _with_ones(rows: Vector) -> Vector:
    return np.column_stack([np.ones(len(rows)), rows])
