"""Functions on the line given by Hermite coefficients and carriers, with all their derivatives."""

import math
from dataclasses import dataclass

import numpy as np

from shoal.core.caches import cached
from shoal.designs.carriers import carriers

__all__ = ["END", "Profile", "Quadrature", "hermite_rows", "quadrature"]

END = 5.5  # standard deviations; beyond, an activation goes on linearly
_WINDOW = 14.0  # standard deviations; beyond, the density is below 1e-43
_FINEST = 2.0**-20  # the carriers need nothing finer
_STEP = 0.35  # of panels whose rule resolves the polynomials
_NODES = 24


def hermite_rows(x: np.ndarray, degree: int) -> np.ndarray:
    """The normalized polynomials $h_0, h_1, ...$ at a vector; shape (degree + 1, n)."""
    rows = np.empty((degree + 1, len(x)))
    rows[0], rows[1] = 1.0, x
    for k in range(1, degree):
        rows[k + 1] = (x * rows[k] - math.sqrt(k) * rows[k - 1]) / math.sqrt(k + 1)
    return rows


def _hermite_numbers(x: float, degree: int) -> np.ndarray:
    """The same at one place, without the price of small arrays."""
    before, value, numbers = 0.0, 1.0, [1.0]
    for k in range(degree):
        before, value = value, (x * value - math.sqrt(k) * before) / math.sqrt(k + 1)
        numbers.append(value)
    return np.array(numbers)


@dataclass(frozen=True, eq=False)
class Quadrature:
    """Nodes for Gaussian integrals of functions that are smooth but at the ends.

    Attributes:
        x: The nodes, in ascending order.
        lengths: The weights of plain integrals.
        weights: Those of Gaussian expectations.
        rows: The polynomials at the nodes. shape: (degree + 1, n)
        carriers: Both carriers and their slopes at the nodes. shape: (parity, order, n)
    """

    x: np.ndarray
    lengths: np.ndarray
    weights: np.ndarray
    rows: np.ndarray
    carriers: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        """Which nodes lie between the ends."""
        inside: np.ndarray = np.abs(self.x) < END
        return inside

    @property
    def slopes(self) -> np.ndarray:
        """The derivatives of the polynomials at the nodes, of the same shape."""
        slopes = np.zeros_like(self.rows)
        slopes[1:] = np.sqrt(np.arange(1, len(self.rows)))[:, None] * self.rows[:-1]
        return slopes


@cached
def quadrature(degree: int) -> Quadrature:
    """The nodes that resolve a degree; kept for later calls."""
    step = _STEP * min(1.0, math.sqrt(256 / degree))
    inner = [step * 2.0**-k for k in range(math.ceil(math.log2(step / _FINEST)))]
    panels = [0.0, *reversed(inner), *np.arange(2 * step, END - step / 2, step)]
    panels += [END, *np.arange(END + step, _WINDOW, step), _WINDOW]
    edges = np.array(panels)
    edges = np.concatenate([-edges[:0:-1], edges])
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    x = (middle[:, None] + half[:, None] * nodes).ravel()
    lengths = (half[:, None] * weights).ravel()
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    rows = hermite_rows(x, degree)
    return Quadrature(x, lengths, lengths * density, rows, carriers(x, 1))


@dataclass(frozen=True, eq=False)
class Profile:
    r"""$\sum_k a_k h_k(x) + \beta_0 |x| + \beta_1 x\log|x|$ up to the ends, tangents beyond.

    Attributes:
        coefficients: $a$.
        amounts: $\beta$, of the two carriers.
    """

    coefficients: np.ndarray
    amounts: tuple[float, float]

    def derivatives(self, x: float, order: int) -> np.ndarray:
        """The function between the ends and its derivatives ."""
        rows = _hermite_numbers(x, len(self.coefficients) - 1)
        result, a = np.zeros(order + 1), self.coefficients
        for j in range(order + 1):
            result[j] = a @ rows[: len(a)]
            a = a[1:] * np.sqrt(np.arange(1, len(a)))
        if any(self.amounts):
            result += np.tensordot(self.amounts, carriers(np.array(x), order), 1)
        return result

    def at(self, rule: Quadrature) -> tuple[np.ndarray, np.ndarray]:
        """The function and its slope at the nodes, with the tangents."""
        amounts = np.array(self.amounts)
        value = self.coefficients @ rule.rows + amounts @ rule.carriers[:, 0]
        slope = self.coefficients @ rule.slopes + amounts @ rule.carriers[:, 1]
        for end, beyond in ((-END, rule.x < -END), (END, rule.x > END)):
            height, steepness = self.derivatives(end, 1)
            value[beyond] = height + steepness * (rule.x[beyond] - end)
            slope[beyond] = steepness
        return value, slope
