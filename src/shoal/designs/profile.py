r"""Functions on the line given by Hermite coefficients and carriers, with all their derivatives.

Carriers hold the slow tail of a Hermite series, which no polynomial can. The kernel of an
activation with kinks has coefficients that fall like $k^{-5/2}$. Coefficients of even degree of
that size, with alternating signs, make a kink at zero, like $|x|$; those of odd degree make
$x \log|x|$. After such a function is subtracted, the remaining coefficients fall faster.

Both are rounded off at $|x| \approx \varepsilon$, which their coefficients notice from degree
$\varepsilon^{-2}$ on: with $w = x + i\varepsilon$, they are $x (1 - \tfrac2\pi \arg w)$ and
$x \log|w|$.

A kernel determines the squares of the coefficients only. All signs positive make a function that
grows like a high power; those of $|x|$ and $x \log|x|$, or of an activation that is known to be
usable, make one that does not. Of these patterns, the one whose mean square slope between the ends
is least is chosen, *without* the Gaussian weight, under which all signs are alike.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shoal.activations import PiecewisePolynomial
from shoal.core.caches import cached

END = 5.5  # standard deviations; beyond, an activation goes on linearly
EPSILON = 3e-4  # where carriers are rounded off
_WINDOW = 14.0  # standard deviations; beyond, the density is below 1e-43
_FINEST = 2.0**-20  # the carriers need nothing finer
_STEP = 0.35  # of panels whose rule resolves the polynomials
_NODES = 24
_DEGREE = 14  # of the Taylor polynomials of a table
_WIDEST = 0.1  # piece of a table, beside the shortest wave of a polynomial
_NEAR = 0.2  # piece of a table, relative to the distance of the carriers' singularity
_ROUNDING = 1e-12  # a natural coefficient that is relatively smaller has no sign
_FACTORIALS = np.array([float(math.factorial(j)) for j in range(_DEGREE + 1)])


def carriers(x: np.ndarray, order: int) -> np.ndarray:
    """The even and the odd carrier with their derivatives; shape (2, order + 1, *x.shape)."""
    w = np.asarray(x) + 1j * EPSILON
    # those of x g are x g^(n) + n g^(n-1), and those of log w are powers of 1/w
    logs = [np.log(w)]
    logs += [(-1) ** (n - 1) * math.factorial(n - 1) * w**-n for n in range(1, order + 1)]
    even = [-2 / math.pi * log.imag for log in logs]
    even[0] = even[0] + 1.0
    odd = [log.real for log in logs]
    return np.stack(
        [
            np.stack([x * g[n] + (n * g[n - 1] if n else 0.0) for n in range(order + 1)])
            for g in (even, odd)
        ]
    )


def hermite_values(x: np.ndarray | float, degree: int) -> np.ndarray:
    """The normalized polynomials $h_0, h_1, ...$ at a number or a vector, one in each row."""
    before, value = 0.0 * x, 1.0 + 0.0 * x
    values = [value]
    for k in range(degree):
        before, value = value, (x * value - math.sqrt(k) * before) / math.sqrt(k + 1)
        values.append(value)
    return np.array(values)


@dataclass(frozen=True, eq=False)
class Quadrature:
    """Nodes for Gaussian integrals of functions that are smooth but at the ends.

    Attributes:
        x: The nodes, in ascending order.
        lengths: The weights of plain integrals.
        weights: The weights of Gaussian expectations.
        rows: The polynomials at the nodes. shape: (degree + 1, n)
        carriers: Both carriers and their slopes at the nodes. shape: (parity, order, n)
    """

    x: np.ndarray
    lengths: np.ndarray
    weights: np.ndarray
    rows: np.ndarray
    carriers: np.ndarray

    @property
    def between_ends(self) -> np.ndarray:
        """Which nodes lie between the ends."""
        between: np.ndarray = np.abs(self.x) < END
        return between

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
    rows = hermite_values(x, degree)
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
        """The function between the ends and its derivatives."""
        rows = hermite_values(x, len(self.coefficients) - 1)
        result, a = np.zeros(order + 1), self.coefficients
        for j in range(order + 1):
            result[j] = a @ rows[: len(a)]
            a = a[1:] * np.sqrt(np.arange(1, len(a)))
        if any(self.amounts):
            result += np.tensordot(self.amounts, carriers(np.array(x), order), 1)
        return result

    def evaluate(self, rule: Quadrature) -> tuple[np.ndarray, np.ndarray]:
        """The function and its slope at the nodes, with the tangents."""
        amounts = np.array(self.amounts)
        value = self.coefficients @ rule.rows + amounts @ rule.carriers[:, 0]
        slope = self.coefficients @ rule.slopes + amounts @ rule.carriers[:, 1]
        for end, beyond in ((-END, rule.x < -END), (END, rule.x > END)):
            height, steepness = self.derivatives(end, 1)
            value[beyond] = height + steepness * (rule.x[beyond] - end)
            slope[beyond] = steepness
        return value, slope


def choose(
    sizes: np.ndarray, natural: np.ndarray, amounts: tuple[float, float], rule: Quadrature
) -> tuple[np.ndarray, Profile]:
    """Choose the signs, and write the function with its carriers.

    Even and odd functions have orthogonal slopes, so that each parity is chosen by itself.

    Args:
        sizes: The sizes of the coefficients.
        natural: Hermite coefficients of an activation that is known to be usable.
        amounts: Absolute amount of each carrier.
        rule: Quadrature at whose nodes functions are evaluated.

    Returns:
        The target Hermite coefficients with their signs, and the function.
    """
    target, coefficients = np.zeros_like(sizes), np.zeros_like(sizes)
    signed = [0.0, 0.0]
    for parity, amount in enumerate(amounts):
        same = slice(parity, None, 2)
        carried = rule.rows[same] @ (rule.weights * rule.carriers[parity, 0])
        least = np.inf
        for signs, direction in _patterns(natural[same], carried):
            signed_sizes = signs * sizes[same]
            remainder = signed_sizes - direction * amount * carried
            slope = remainder @ rule.slopes[same] + direction * amount * rule.carriers[parity, 1]
            cost = float((slope**2 * rule.lengths)[rule.between_ends].sum())
            if cost < least:
                least, target[same], coefficients[same] = cost, signed_sizes, remainder
                signed[parity] = direction * amount
    return target, Profile(coefficients, (signed[0], signed[1]))


def _patterns(natural: np.ndarray, carried: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    """Signs of the coefficients and of the carrier; the first is always positive."""
    significant = np.abs(natural) > _ROUNDING * np.abs(natural).max()
    for pattern in (np.where(significant, natural, carried), carried):
        for direction in (1.0, -1.0):
            signs = np.where(pattern < 0, -direction, direction)
            signs[0] = 1.0
            yield signs, direction


def tabulated(profile: Profile, scale: float) -> PiecewisePolynomial:
    """The profile of x / scale as an activation: a table of Taylor polynomials, fast to evaluate.

    Taylor polynomials have each derivative with its own relative accuracy, so that neighbors fit to
    rounding; interpolation would not.
    """
    pieces = [*reversed(_half(profile, -1.0)), *_half(profile, 1.0)]
    low = [min(a, b) for a, b, _ in pieces]
    knots = tuple(scale * x for x in (*low, END))
    polynomials = tuple(tuple(p.tolist()) for _, _, p in pieces)
    return PiecewisePolynomial(knots, polynomials, (knots[0], knots[-1]))


def _half(profile: Profile, side: float) -> list[tuple[float, float, np.ndarray]]:
    """The pieces from zero to one end: where they begin and end, and their coefficients."""
    edges = [0.0]
    while edges[-1] < END:
        width = min(_WIDEST, _NEAR * math.hypot(edges[-1], EPSILON))
        edges.append(min(END, edges[-1] + width))
    pieces = []
    for start, end in pairwise(edges):
        middle, half = (start + end) / 2, (end - start) / 2
        terms = profile.derivatives(side * middle, _DEGREE) / _FACTORIALS
        pieces.append((side * start, side * end, terms * half ** np.arange(_DEGREE + 1)))
    return pieces
