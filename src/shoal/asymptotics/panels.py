"""Solutions across one bulk, interpolated to near round-off on panels that adapt to them."""

from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from shoal.asymptotics.equation import Equation
from shoal.asymptotics.populations import Array, Values
from shoal.core.exceptions import AccuracyError

_NODES = 16
_ANGLES = (np.arange(_NODES) + 0.5) * np.pi / _NODES
_POINTS = -np.cos(_ANGLES)
_TO_SERIES = np.linalg.inv(chebyshev.chebvander(_POINTS, _NODES - 1))


class GapFoundError(Exception):
    """A point inside a supposed bulk turned out to lie outside the support."""

    def __init__(self, x: float) -> None:
        self.x = x


class Chart(NamedTuple):
    """The interval between two edges as angles 0 to π, which turns the square roots smooth."""

    lower: float
    upper: float

    @property
    def logarithmic(self) -> bool:
        """Whether the angle is one of log x: for intervals that span orders of magnitude."""
        return 0 < 8 * self.lower < self.upper

    def point(self, angle: Array) -> Array:
        """The x of an angle."""
        part = np.sin(angle / 2) ** 2
        if self.logarithmic:
            return np.asarray(self.lower * (self.upper / self.lower) ** part)
        return np.asarray(self.lower + (self.upper - self.lower) * part)

    def angle(self, x: Array) -> Array:
        """The angle of an x."""
        if self.logarithmic:
            part = np.log(x / self.lower) / np.log(self.upper / self.lower)
        else:
            part = (x - self.lower) / (self.upper - self.lower)
        return np.asarray(2 * np.arcsin(np.sqrt(np.clip(part, 0, 1))))

    def speed(self, angle: Array) -> Array:
        """dx/dangle."""
        if self.logarithmic:
            scale = self.point(angle) * np.log(self.upper / self.lower)
        else:
            scale = np.full_like(angle, self.upper - self.lower)
        return np.asarray(scale * np.sin(angle) / 2)


class Bulk:
    """The part of the limit between two edges.

    Attributes:
        chart: Where it lies.
        mass: Its share of the eigenvalues, by quadrature of the density.
    """

    def __init__(self, equation: Equation, weights: Array, chart: Chart) -> None:
        self.chart = chart
        self._weights = weights
        panels = _panels(equation, chart)
        self._starts = np.array([panel.start for panel in panels])
        self._widths = np.array([panel.width for panel in panels])
        self._series = np.stack([panel.series for panel in panels])  # (panels, nodes, K)
        self._integrals = self._integrated()
        sums = self._integrals.sum(axis=1)  # at the upper end of each panel
        self._before = np.concatenate([[0.0], np.cumsum(sums)])
        self.mass = float(self._before[-1])

    def solutions(self, x: Array) -> Values:
        """The v at points between the edges."""
        panel, local = self._locate(self.chart.angle(x))
        return _evaluate(self._series[panel], local)

    def density(self, x: Array) -> Array:
        """The density at points between the edges."""
        with np.errstate(divide="ignore", invalid="ignore"):
            density = ((-1 / self.solutions(x)).imag @ self._weights) / np.pi
        return np.where(
            (x <= self.chart.lower) | (x >= self.chart.upper), self._at_edge(x), density
        )

    def cdf(self, x: Array) -> Array:
        """The mass of this bulk below points between the edges."""
        panel, local = self._locate(self.chart.angle(x))
        return self._before[panel] + _evaluate(self._integrals[panel], local)

    def _at_edge(self, x: Array) -> Array:
        """The density at an edge: zero, but infinite at a hard one."""
        hard = (self.chart.lower == 0) & (x <= 0)
        return np.where(hard, np.inf, 0.0)

    def _locate(self, angle: Array) -> tuple[NDArray[np.intp], Array]:
        panel = np.clip(np.searchsorted(self._starts, angle, "right") - 1, 0, None)
        return panel, 2 * (angle - self._starts[panel]) / self._widths[panel] - 1

    def _integrated(self) -> Array:
        """Antiderivatives of density·dx/dangle on the panels, each zero at its panel's start."""
        angles = self._starts[:, None] + self._widths[:, None] * (_POINTS + 1) / 2
        v = np.einsum("nk,pka->pna", chebyshev.chebvander(_POINTS, _NODES - 1), self._series)
        density = ((-1 / v).imag @ self._weights) / np.pi
        series = (density * self.chart.speed(angles)) @ _TO_SERIES.T
        integral: Array = chebyshev.chebint(series, lbnd=-1, axis=1)
        return integral * (self._widths / 2)[:, None]


class _Panel(NamedTuple):
    start: float
    width: float
    series: Values  # (nodes, K)


def _panels(equation: Equation, chart: Chart) -> list[_Panel]:
    """Panels of the angles 0 to π on which the solution is resolved, in order."""
    found: list[_Panel] = []
    tolerance = 1e-10 if equation.population.batched else 1e-8  # each node costs p³ there
    pending: list[tuple[float, float, Values | None]] = [(0.0, float(np.pi), None)]
    while pending:
        tasks, pending = pending, []
        solved = _solve(equation, chart, tasks)
        for (start, width, _), values in zip(tasks, solved, strict=True):
            series = _TO_SERIES @ values
            flow = (-1 / values).imag @ equation.ratios * chart.speed(_angles(start, width))
            resolved = _resolved(series, values.imag, tolerance) and _resolved(
                _TO_SERIES @ flow, flow, tolerance
            )
            if resolved or width < np.pi * 2.0**-44:
                found.append(_Panel(start, width, series))
                continue
            for half in range(2):
                local = (_POINTS + 2 * half - 1) / 2
                guess = chebyshev.chebvander(local, _NODES - 1) @ series
                pending.append((start + half * width / 2, width / 2, guess))
        if len(found) + len(pending) > 20_000:
            raise AccuracyError("a bulk of the limiting spectrum has too much structure to resolve")
    return sorted(found, key=lambda panel: panel.start)


def _angles(start: float, width: float) -> Array:
    return np.asarray(start + width * (_POINTS + 1) / 2)


def _resolved(series: Values, size: Array, tolerance: float) -> bool:
    """Whether the last coefficients are negligible relative to the size of the function."""
    tail = np.abs(series[-3:]).max(axis=0)
    enough = np.maximum(tolerance * np.abs(size).max(axis=0), 1e-14 * np.abs(series[0]))
    return bool((tail < enough).all())


def _solve(
    equation: Equation, chart: Chart, tasks: list[tuple[float, float, Values | None]]
) -> Values:
    """The solutions at the nodes of several panels at once."""
    angles = np.concatenate([_angles(start, width) for start, width, _ in tasks])
    x = chart.point(angles)
    guesses = [guess for _, _, guess in tasks if guess is not None]
    v, inside = equation.on_axis(x, np.concatenate(guesses) if guesses else None)
    # at the last bits of an edge the two kinds of solution are one
    strict = ~inside & (x > chart.lower * (1 + 1e-12)) & (x < chart.upper * (1 - 1e-12))
    if strict.any():
        raise GapFoundError(float(x[np.argmax(strict)]))
    return v.reshape(len(tasks), _NODES, -1)


def _evaluate(series: Values, local: Array) -> Values:
    """Series along axis 1, one per point, at the local coordinate of each."""
    basis = chebyshev.chebvander(local, series.shape[1] - 1)
    result: Values = np.einsum("pk,pk...->p...", basis, series)
    return result
