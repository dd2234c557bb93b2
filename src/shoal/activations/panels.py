"""Panels on which an activation is a polynomial to rounding, and the kinks between them.

Every quadrature of an activation stands on these panels: on each of them the function and its
first three derivatives are resolved by a Gauss-Legendre rule of ``ORDER`` nodes.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy  # whose parts are imported where they are first used
import torch
from torch import Tensor

from shoal.activations.consistency import check_function, declared_breaks, innermost
from shoal.core.caches import cached
from shoal.core.checks import items, real
from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings

if TYPE_CHECKING:
    from shoal.activations.base import Activation

ORDER = 24  # nodes per panel
RADIUS = 512.0  # kinks are looked for in |x| <= RADIUS
_DERIVATIVES = 4  # the function and three derivatives are resolved on each panel
_TOLERANCE = np.array([1e-13, 1e-13, 1e-12, 1e-11])
_EXTRAPOLATION = 1e2  # the error of a series at the ends of its panel exceeds its last terms
_CHECK_POINTS = np.linspace(-1 + 1e-9, 1 - 1e-9, 129)
_SMALLEST = 2.0**-36  # panels that are unresolved at this relative width hold a singularity
_AROUND = np.array([1e-4, 1e-3, 1e-2, 0.15, 0.4, 1.0])
_MIDDLE = np.linspace(-8.03, 7.97, 401)
_LARGEST = 2.0**32  # beyond, a panel has no digits left
_ONE_SIDED = 2.0**-51  # how far from a kink a one-sided limit is taken, relative to max(1, |x|)
_OFF = 1e-8  # the same where a declared kink may be a little off
REMEDY = (
    "write function in operations whose derivatives stay finite (softplus(x), say, for "
    "log(1 + exp(x))), give first_derivative, or scale the inputs down"
)
_MOST_PANELS = 20_000
_MOST_PASSES = 6  # new edges may bring kinks to light that lay on old ones


@dataclass(frozen=True)
class Kink:
    r"""A place where an activation is not smooth.

    Attributes:
        location: Location of the kink.
        jumps: Right minus left limit there, of $\varphi$, $\varphi'$ and $\varphi''$.
    """

    location: float
    jumps: tuple[float, float, float]

    def __post_init__(self) -> None:
        location = real("location", self.location)
        jumps = tuple(real("jumps", jump) for jump in items("jumps", self.jumps))
        if len(jumps) != 3:
            raise ValueError(f"jumps must be three, of the function and two derivatives: {jumps}")
        object.__setattr__(self, "location", location)
        object.__setattr__(self, "jumps", jumps)


@cached
@in_standard_settings
def gauss_legendre(order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss-Legendre rule on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return torch.from_numpy(nodes), torch.from_numpy(weights)


def reach(phi: "Activation", radius: float = 0.0) -> float:
    """The radius of the panels that serve |x| <= ``radius``; a power of two.

    At least ``RADIUS``, or as much of it as the function and its derivatives are finite on.
    """
    if not radius < _LARGEST:
        raise AccuracyError(
            f"{phi!r} cannot be integrated up to |x| = {radius:.3g}: scale the inputs down"
        )
    return max(_finite_radius(phi.panels_of), 2.0 ** math.ceil(math.log2(max(radius, 1.0))))


@cached
@in_standard_settings
def _finite_radius(phi: "Activation") -> float:
    """How far out the function and its derivatives are finite, at most ``RADIUS``."""
    check_function(phi)
    x = _nodes(_dyadic(RADIUS))
    bad = np.abs(x[~np.isfinite(_rows(phi, x)).all(axis=0)])
    if not len(bad) or bad.min() < 1:  # in the middle it is an error, which the panels report
        return RADIUS
    return min(RADIUS, 2.0 ** math.floor(math.log2(bad.min())))


@cached
@in_standard_settings
def edges(phi: "Activation", radius: float) -> Tensor:
    """The edges of the panels that resolve ``phi`` on [-radius, radius], kinks among them."""
    if phi.panels_of is not phi:
        return edges(phi.panels_of, radius)
    start = _dyadic(radius)
    if phi.panel_edges is not None:
        cuts = np.union1d(start, phi.panel_edges)
        return torch.from_numpy(cuts[np.abs(cuts) <= radius])
    declared = declared_breaks(phi)
    places = np.array([] if declared is None else declared, dtype=np.float64)
    for _ in range(_MOST_PASSES):
        cuts, singular = _resolve(phi, np.union1d(start, places))
        # a kink at an edge leaves its panels smooth
        undeclared = np.setdiff1d(cuts[1:-1], places)
        rough = undeclared[_all_jumps(phi, undeclared).any(axis=0)]
        if declared is not None:
            _check_declared(phi, places, [*singular.mean(axis=1), *rough])
        if not len(singular):
            return torch.from_numpy(cuts)
        places = np.union1d(np.union1d(places, rough), _locate(phi, singular))
    raise _not_smooth(phi, singular)


@cached
@in_standard_settings
def breaks(phi: "Activation", radius: float) -> tuple[float, ...]:
    """Where the function is not analytic: the kinks, and jumps of the third derivative."""
    if phi.panels_of is not phi:
        return breaks(phi.panels_of, radius)
    declared = declared_breaks(phi)
    if declared is not None:
        return declared
    where = edges(phi, radius).numpy()[1:-1]
    return tuple(where[_all_jumps(phi, where).any(axis=0)].tolist())


@cached
@in_standard_settings
def kinks(phi: "Activation") -> tuple[Kink, ...]:
    """The breaks at which the function or one of its first two derivatives jumps."""
    every = (
        Kink(x, (jump(phi, x, 0), jump(phi, x, 1), jump(phi, x, 2)))
        for x in breaks(phi, reach(phi))
    )
    return tuple(kink for kink in every if any(kink.jumps))


@cached
@in_standard_settings
def vanishes(phi: "Activation", order: int, radius: float) -> bool:
    """Whether the ``order``-th derivative is zero on every panel up to ``radius``."""
    x = torch.from_numpy(_nodes(edges(phi, radius).numpy()))
    return not bool(phi.derivative(x, order).any())


@cached
@in_standard_settings
def jump(phi: "Activation", location: float, order: int) -> float:
    """Right minus left limit of the ``order``-th derivative at ``location``."""
    return float(_jumps(phi, np.array([location]), order)[0])


@cached
@in_standard_settings
def lipschitz(phi: "Activation") -> float:
    """The supremum of |φ'|, found on the panels and polished; infinite if it keeps growing."""
    if any(kink.jumps[0] for kink in kinks(phi)):
        return math.inf
    cuts = np.union1d(edges(phi, reach(phi)).numpy(), breaks(phi, reach(phi)))
    step = _ONE_SIDED * np.maximum(1.0, np.abs(cuts))
    x = np.column_stack([cuts[:-1] + step[:-1], _nodes(cuts), cuts[1:] - step[1:]])
    slope = _size(phi, x).max(axis=1)
    far = [_size(phi, np.array([-x, x])).max() for x in cuts[-1] * 2.0 ** np.arange(1, 32)]
    near = max(float(slope.max()), *far[: len(far) // 2])
    if not max(far) <= 1.01 * near:  # also where it is not finite
        return math.inf
    best = max(near, *far)
    for panel in np.argsort(slope)[-4:]:
        polished = scipy.optimize.minimize_scalar(
            lambda t: -float(_size(phi, np.array([t]))[0]),
            bounds=(float(cuts[panel]), float(cuts[panel + 1])),
            method="bounded",
            options={"xatol": 1e-10},
        )
        best = max(best, -float(polished.fun))
    return float(best)


def _size(phi: "Activation", x: np.ndarray) -> np.ndarray:
    """|φ'| at ``x``."""
    size: np.ndarray = np.abs(phi.derivative(torch.from_numpy(x)).numpy())
    return size


def _dyadic(radius: float) -> np.ndarray:
    """The edges from which the search begins: zero, ±4, ±8, ... up to the radius."""
    powers = 2.0 ** np.arange(2, math.ceil(math.log2(radius)) + 1)
    return np.concatenate([-powers[::-1], [0.0], powers])


def _rows(phi: "Activation", x: np.ndarray) -> np.ndarray:
    """The function and its first derivatives at ``x``; shape (_DERIVATIVES, *x.shape)."""
    points = torch.from_numpy(x)
    return np.stack([phi.derivative(points, order).numpy() for order in range(_DERIVATIVES)])


def _nodes(cuts: np.ndarray) -> np.ndarray:
    """The Gauss-Legendre nodes of each panel; shape (panels, ORDER)."""
    nodes = gauss_legendre(ORDER)[0].numpy()
    middle, half = (cuts[1:] + cuts[:-1]) / 2, (cuts[1:] - cuts[:-1]) / 2
    spread: np.ndarray = middle[:, None] + half[:, None] * nodes
    return spread


@cached
def _transforms() -> tuple[np.ndarray, np.ndarray]:
    """From values at the nodes to the last Legendre coefficients, and to the check points."""
    nodes, weights = (t.numpy() for t in gauss_legendre(ORDER))
    vandermonde = np.polynomial.legendre.legvander(nodes, ORDER - 1)
    coefficients = (np.arange(ORDER) + 0.5) * vandermonde * weights[:, None]
    checks = np.polynomial.legendre.legvander(_CHECK_POINTS, ORDER - 1)
    return coefficients[:, -4:], coefficients @ checks.T


def _resolve(phi: "Activation", start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Halve panels until each is resolved; return the edges and the brackets that never are."""
    pending = np.stack([start[:-1], start[1:]], axis=1)
    finished, singular = [], []
    scales = np.maximum(np.abs(_rows(phi, _MIDDLE)).max(axis=1), 1e-290)
    while len(pending):
        resolved = _is_resolved(phi, pending, scales)
        width = np.diff(pending)[:, 0]
        tiny = width < _SMALLEST * np.maximum(1.0, np.abs(pending).max(axis=1))
        finished.append(pending[resolved])
        singular.append(pending[~resolved & tiny])
        halve = pending[~resolved & ~tiny]
        middle = halve.mean(axis=1)
        pending = np.concatenate(
            [np.stack([halve[:, 0], middle], axis=1), np.stack([middle, halve[:, 1]], axis=1)]
        )
        if sum(map(len, finished)) + len(pending) > _MOST_PANELS:
            raise _not_smooth(phi, pending)
    unresolved = np.concatenate(singular)
    cuts = np.unique(np.concatenate([np.concatenate(finished).ravel(), start]))
    return cuts, unresolved[np.argsort(unresolved[:, 0])]


def _is_resolved(phi: "Activation", panels: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Whether the Legendre series on each panel has died away and predicts the check points."""
    middle, half = panels.mean(axis=1)[:, None], np.diff(panels) / 2
    x = middle + half * np.concatenate([gauss_legendre(ORDER)[0].numpy(), _CHECK_POINTS])
    rows = _rows(phi, x)
    if not np.isfinite(rows).all():
        bad = x[~np.isfinite(rows).all(axis=0)]
        nearest = bad[np.abs(bad).argmin()]
        raise ValueError(
            f"{innermost(phi)!r} or a derivative of it is not finite at x = {nearest:.6g}: {REMEDY}"
        )
    rows, checks = rows[..., :ORDER], rows[..., ORDER:]
    to_tail, to_checks = _transforms()
    largest = np.abs(rows).max(axis=2)  # shape: (_DERIVATIVES, panels)
    rounding = 1e-15 * np.abs(x).max(axis=1) * np.maximum(np.roll(largest, -1, axis=0), largest)
    bound = _TOLERANCE[:, None] * np.maximum(largest, scales[:, None]) + rounding
    tail = np.abs(rows @ to_tail).max(axis=2)
    missed = np.abs(rows @ to_checks - checks).max(axis=2)
    resolved: np.ndarray = ((tail <= bound) & (missed <= _EXTRAPOLATION * bound)).all(axis=0)
    return resolved


def _not_smooth(phi: "Activation", brackets: np.ndarray) -> AccuracyError:
    return AccuracyError(
        f"{innermost(phi)!r} is not piecewise smooth near x = {np.median(brackets):.6g}: a "
        "derivative is unbounded there, kinks are too close to be told apart, the function "
        "oscillates or jumps too often, it is noisy, or autograd loses its derivatives; if so, "
        f"{REMEDY}"
    )


def _locate(phi: "Activation", brackets: np.ndarray) -> np.ndarray:
    """Narrow each bracket to the jump of the lowest derivative that jumps in it."""
    merged: list[list[float]] = []
    for low, high in brackets:
        if merged and low <= merged[-1][1] + 1e-9 * max(1.0, abs(low)):
            merged[-1][1] = high
        else:
            merged.append([low, high])
    low, high = np.array(merged).T
    width = high - low
    low, high = low - width, high + width
    left, right = _rows(phi, low), _rows(phi, high)
    steepness = np.maximum(np.abs(left), np.abs(right))
    smooth = (high - low) * np.roll(steepness, -1, axis=0) + 1e-15 * steepness
    smooth[-1] = 1e-7 * steepness[-1]
    jumps = np.abs(right - left) > 100 * smooth  # more than a smooth function changes
    order = np.where(jumps.any(axis=0), jumps.argmax(axis=0), _DERIVATIVES - 1)
    pick = np.arange(len(low))
    for _ in range(64):
        middle = (low + high) / 2
        value = _rows(phi, middle)[order, pick]
        on_right = np.abs(value - right[order, pick]) <= np.abs(value - left[order, pick])
        low, high = np.where(on_right, low, middle), np.where(on_right, middle, high)
    return np.array([_simplest(a, b) for a, b in zip(low, high, strict=True)])


def _simplest(low: float, high: float) -> float:
    """The shortest decimal in a bracket of rounding width around it."""
    slack = 2e-16 * max(abs(low), abs(high), 1e-3)
    for digits in range(16):
        candidate = round((low + high) / 2, digits)
        if low - slack <= candidate <= high + slack:
            return candidate + 0.0  # no negative zero
    return (low + high) / 2


def _jumps(
    phi: "Activation", where: np.ndarray, order: int, step: float = _ONE_SIDED
) -> np.ndarray:
    """Right minus left limit of the ``order``-th derivative at each place; zero if negligible."""

    def derivative(x: np.ndarray) -> np.ndarray:
        return phi.derivative(torch.from_numpy(x), order).numpy()

    steps = step * np.maximum(1.0, np.abs(where))
    right, left = derivative(where + steps), derivative(where - steps)
    around = derivative(where[:, None] + np.concatenate([-_AROUND, _AROUND]))
    middle = derivative(_MIDDLE)
    relative = 1e-10 * max(1.0, step / _ONE_SIDED * 1e-4)
    threshold = np.maximum(relative * np.abs(around).max(axis=1), 1e-13 * np.abs(middle).max())
    threshold *= np.maximum(1.0, np.abs(where) / 8)
    return np.where(np.abs(right - left) > threshold, right - left, 0.0)


def _all_jumps(phi: "Activation", where: np.ndarray) -> np.ndarray:
    """The jumps of all derivatives that panels resolve; shape (_DERIVATIVES, places)."""
    return np.stack([_jumps(phi, where, order) for order in range(_DERIVATIVES)])


def _check_declared(phi: "Activation", places: np.ndarray, undeclared: list[float]) -> None:
    """Check that no kink lies elsewhere, or a little off its declared place."""
    reached = _OFF * np.maximum(1.0, np.abs(places))  # as far as the wide limits are taken
    steps = np.column_stack([reached, *np.outer(_AROUND, np.ones_like(places))])
    nearby = torch.from_numpy(places[:, None] + np.column_stack([-steps, steps]))
    for order in range(3):
        near, wide = (_jumps(phi, places, order, step) for step in (_ONE_SIDED, _OFF))
        # a smooth function too changes over the wide step; next to it a tiny jump may be real
        value, slope = (
            phi.derivative(nearby, k).abs().numpy().max(axis=1) for k in (order, order + 1)
        )
        smooth = np.maximum(1e-6 * value, 4 * reached * slope)
        off = (wide != 0) & (np.abs(wide - near) > np.maximum(1e-3 * np.abs(wide), smooth))
        if off.any():
            where, most = float(places[off][0]), float(reached[off][0])
            true = float(_locate(phi, np.array([[where - most, where + most]]))[0])
            raise ValueError(
                f"kink_locations of {phi!r} contain {where!r}, but the kink is at {true!r}"
            )
    if undeclared:
        raise ValueError(
            f"kink_locations of {phi!r} are given as {tuple(places.tolist())}, "
            f"but it is not smooth near x = {undeclared[0]:.6g} either"
        )
