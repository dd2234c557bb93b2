"""Panels on which an activation is a polynomial to rounding, and the kinks between them.

Every quadrature of an activation stands on these panels: on each of them the function and its
first three derivatives are resolved by a Gauss-Legendre rule of ``ORDER`` nodes.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from shoal.exceptions import AccuracyError

if TYPE_CHECKING:
    from shoal.activations.base import Activation

__all__ = [
    "ORDER",
    "RADIUS",
    "Kink",
    "breaks",
    "edges",
    "gauss_legendre",
    "jump",
    "kinks",
    "lipschitz",
    "vanishes",
]

ORDER = 24  # nodes per panel
RADIUS = 512.0  # kinks are looked for in |x| <= RADIUS
_DERIVATIVES = 4  # the function and three derivatives are resolved on each panel
_TOLERANCE = np.array([1e-13, 1e-13, 1e-12, 1e-11])
_EXTRAPOLATION = 1e2  # the error of a series at the ends of its panel exceeds its last terms
_CHECK_POINTS = np.array([-1 + 1e-9, 0.123, 1 - 1e-9])
_SMALLEST = 2.0**-36  # panels that are unresolved at this relative width hold a singularity
_ONE_SIDED = 2.0**-51  # how far from a kink a one-sided limit is taken, relative to max(1, |x|)
_MOST_PANELS = 20_000


@dataclass(frozen=True)
class Kink:
    r"""A place where an activation is not smooth.

    Attributes:
        location: Where.
        jumps: Right minus left limit there, of $\varphi$, $\varphi'$ and $\varphi''$.
    """

    location: float
    jumps: tuple[float, float, float]


@lru_cache(maxsize=32)
def gauss_legendre(order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss-Legendre rule on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return torch.from_numpy(nodes), torch.from_numpy(weights)


@lru_cache(maxsize=512)
def edges(phi: "Activation", radius: float = RADIUS) -> Tensor:
    """The edges of the panels that resolve ``phi`` on [-radius, radius], kinks among them."""
    if phi.panels_of is not phi:
        return edges(phi.panels_of, radius)
    dyadic = 2.0 ** np.arange(2, math.ceil(math.log2(radius)) + 1)
    start = np.concatenate([-dyadic[::-1], [0.0], dyadic])
    declared = phi.kink_locations
    _check_derivative(phi)
    if declared is not None:
        found, singular = _resolve(phi, np.union1d(start, declared))
        others = np.setdiff1d(found[1:-1], declared)
        rough = others[_all_jumps(phi, others).any(axis=0)]
        if len(singular) or len(rough):
            where = singular[0].mean() if len(singular) else rough[0]
            raise ValueError(
                f"kink_locations of {phi!r} are given as {declared}, "
                f"but it is not smooth near x = {where:.6g} either"
            )
        return torch.from_numpy(found)
    found, singular = _resolve(phi, start)
    if len(singular):
        located = _locate(phi, singular)
        found, singular = _resolve(phi, np.union1d(start, located))
    if len(singular):
        raise _not_smooth(phi, singular)
    return torch.from_numpy(found)


@lru_cache(maxsize=512)
def breaks(phi: "Activation") -> tuple[float, ...]:
    """Where the function is not analytic: the kinks, and jumps of the third derivative."""
    if phi.panels_of is not phi:
        return breaks(phi.panels_of)
    declared = phi.kink_locations
    if declared is not None:
        return tuple(sorted(set(declared)))
    where = edges(phi).numpy()[1:-1]
    return tuple(where[_all_jumps(phi, where).any(axis=0)].tolist())


@lru_cache(maxsize=512)
def kinks(phi: "Activation") -> tuple[Kink, ...]:
    """The breaks at which the function or one of its first two derivatives jumps."""
    every = (Kink(x, (jump(phi, x, 0), jump(phi, x, 1), jump(phi, x, 2))) for x in breaks(phi))
    return tuple(kink for kink in every if any(kink.jumps))


@lru_cache(maxsize=512)
def vanishes(phi: "Activation", order: int) -> bool:
    """Whether the ``order``-th derivative is zero on every panel."""
    return not bool(phi.derivative(torch.from_numpy(_nodes(edges(phi).numpy())), order).any())


@lru_cache(maxsize=4096)
def jump(phi: "Activation", location: float, order: int) -> float:
    """Right minus left limit of the ``order``-th derivative at ``location``."""
    return float(_jumps(phi, np.array([location]), order)[0])


@lru_cache(maxsize=512)
def lipschitz(phi: "Activation") -> float:
    """The supremum of |φ'|, found on the panels and polished; infinite if it keeps growing."""
    if any(kink.jumps[0] for kink in kinks(phi)):
        return math.inf
    cuts = edges(phi).numpy()
    step = _ONE_SIDED * np.maximum(1.0, np.abs(cuts))
    x = np.column_stack([cuts[:-1] + step[:-1], _nodes(cuts), cuts[1:] - step[1:]])
    slope = np.abs(phi.derivative(torch.from_numpy(x)).numpy()).max(axis=1)
    outer = np.abs(cuts[1:] + cuts[:-1]) > RADIUS
    if slope[outer].max() > (1 + 1e-6) * slope[~outer].max():
        return math.inf
    best = float(slope.max())
    for panel in np.argsort(slope)[-4:]:
        polished = minimize_scalar(
            lambda t: -float(phi.derivative(torch.tensor([t], dtype=torch.float64)).abs()),
            bounds=(float(cuts[panel]), float(cuts[panel + 1])),
            method="bounded",
            options={"xatol": 1e-10},
        )
        best = max(best, -float(polished.fun))
    return best


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


@lru_cache(maxsize=1)
def _transforms() -> tuple[np.ndarray, np.ndarray]:
    """From values at the nodes to the last Legendre coefficients, and to the check points."""
    nodes, weights = (t.numpy() for t in gauss_legendre(ORDER))
    vandermonde = np.polynomial.legendre.legvander(nodes, ORDER - 1)
    coefficients = (np.arange(ORDER) + 0.5) * vandermonde * weights[:, None]
    checks = np.polynomial.legendre.legvander(_CHECK_POINTS, ORDER - 1)
    return coefficients[:, -4:], coefficients @ checks.T


def _scales(phi: "Activation") -> np.ndarray:
    """How large the function and its derivatives are in the middle; shape (_DERIVATIVES,)."""
    middle = np.abs(_rows(phi, np.linspace(-8.03, 7.97, 401))).max(axis=1)
    scales: np.ndarray = np.maximum(middle, 1e-30)
    return scales


def _resolve(phi: "Activation", start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Halve panels until each is resolved; return the edges and the brackets that never are."""
    pending = np.stack([start[:-1], start[1:]], axis=1)
    done, singular = [], []
    scales = _scales(phi)
    while len(pending):
        resolved = _is_resolved(phi, pending, scales)
        width = np.diff(pending)[:, 0]
        tiny = width < _SMALLEST * np.maximum(1.0, np.abs(pending).max(axis=1))
        done.append(pending[resolved])
        singular.append(pending[~resolved & tiny])
        halve = pending[~resolved & ~tiny]
        middle = halve.mean(axis=1)
        pending = np.concatenate(
            [np.stack([halve[:, 0], middle], axis=1), np.stack([middle, halve[:, 1]], axis=1)]
        )
        if sum(map(len, done)) + len(pending) > _MOST_PANELS:
            raise _not_smooth(phi, pending)
    unresolved = np.concatenate(singular)
    cuts = np.unique(np.concatenate([np.concatenate(done).ravel(), start]))
    return cuts, unresolved[np.argsort(unresolved[:, 0])]


def _is_resolved(phi: "Activation", panels: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Whether the Legendre series on each panel has died away and predicts the check points."""
    middle, half = panels.mean(axis=1)[:, None], np.diff(panels) / 2
    x = middle + half * np.concatenate([gauss_legendre(ORDER)[0].numpy(), _CHECK_POINTS])
    rows = _rows(phi, x)
    if not np.isfinite(rows).all():
        bad = x[~np.isfinite(rows).all(axis=0)][0]
        raise ValueError(f"{phi!r} or a derivative of it is not finite at x = {bad:.6g}")
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
        f"{phi!r} is not piecewise smooth near x = {np.median(brackets):.6g}: a derivative is "
        "unbounded there, or the function oscillates or jumps too often, or it is noisy"
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
    scales = np.maximum(_scales(phi)[:, None], np.abs(left))
    jumps = np.abs(right - left) > 1e-7 * scales  # a smooth function changes by about the width
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


def _jumps(phi: "Activation", where: np.ndarray, order: int) -> np.ndarray:
    """Right minus left limit of the ``order``-th derivative at each place; zero if negligible."""

    def derivative(x: np.ndarray) -> np.ndarray:
        return phi.derivative(torch.from_numpy(x), order).numpy()

    step = _ONE_SIDED * np.maximum(1.0, np.abs(where))
    right, left = derivative(where + step), derivative(where - step)
    around = derivative(where[:, None] + np.array([-1.0, -0.4, -0.15, 0.15, 0.4, 1.0]))
    middle = derivative(np.linspace(-8.03, 7.97, 401))
    scale = np.maximum(np.abs(around).max(axis=1, initial=0.0), np.abs(middle).max())
    rounding = 1e-10 * np.maximum(1.0, np.abs(where) / 8)
    return np.where(np.abs(right - left) > rounding * scale, right - left, 0.0)


def _all_jumps(phi: "Activation", where: np.ndarray) -> np.ndarray:
    """The jumps of all derivatives that panels resolve; shape (_DERIVATIVES, places)."""
    return np.stack([_jumps(phi, where, order) for order in range(_DERIVATIVES)])


def _check_derivative(phi: "Activation") -> None:
    """Compare the pointwise derivative with central differences of the function."""
    x = np.linspace(-5.9, 6.1, 97) + 0.0137
    slope = phi.derivative(torch.from_numpy(x)).numpy()
    wide, narrow = (
        (phi(torch.from_numpy(x + h)) - phi(torch.from_numpy(x - h))).numpy() / (2 * h)
        for h in (1e-5, 0.5e-5)
    )
    scale = np.abs(phi(torch.from_numpy(x)).numpy()).max() + np.abs(narrow).max() + 1e-30
    conclusive = np.abs(wide - narrow) < 1e-5 * scale  # no kink within the step
    wrong = conclusive & (np.abs(narrow - slope) > 1e-4 * scale)
    if wrong.any():
        raise ValueError(
            f"the derivative of {phi!r} is {slope[wrong][0]:.6g} at x = {x[wrong][0]:.4g}, but its "
            f"difference quotient is {narrow[wrong][0]:.6g}: correct first_derivative, or write "
            "function in differentiable torch operations"
        )
