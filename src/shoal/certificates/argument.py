r"""One argument for all networks: gradients move less than it takes to lose their rank.

Let $e = \hat y - y$, and let the weights stay within some radii of their start. There, an
architecture gives bounds (``Growth``): a lower one $\lambda_-$ of the eigenvalues of the features'
Gram matrix, an upper one $\Lambda$ of the eigenvalues of the NTK $H$, and $t_g \|e\|$ of the
gradient of group $g$. A step of gradient descent makes $e' = (I - \eta H) e + E_1 + E_2$, where
$\|E_1\| \le \eta \varepsilon \|e\|$ is due to units that cross a kink,
$e^\top E_1 \le \eta \psi \|e\| \|\Gamma\|$ with $\Gamma$ the gradient of all but readouts, and
$\|E_2\| \le \eta^2 M \|e\|^2$. So $\|e\|$ falls at the rate $\omega = \lambda_-$ under gradient
flow, and under gradient descent, where $\eta \Lambda \le 1$, at the larger of

- $\omega = \lambda_- - \varepsilon - \eta M e_0$, and
- $\omega = c \lambda_- - \psi^2/4c - \eta (\Lambda \varepsilon + M e_0 +
  (\varepsilon + \eta M e_0)^2/2)$ with $c = 1 - \eta\Lambda/2$.

The weights travel no farther than $t_g e_0/\omega$; other bounds of their paths are below. If that
is less than the radii, they never leave them, and the promise holds forever. The radii are free:
the best ones are searched for. The documentation has the proofs, on its page about certificates.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from shoal.certificates.certificate import Conclusion, Condition, condition
from shoal.core.rounding import down, nearest, up
from shoal.training import Promises

Radii = Mapping[str, Fraction]

RANK_REMEDY = (
    "at least as many units as samples, better many more; inputs that are parallel or nearly so "
    "must be perturbed, merged or removed"
)
_SHARES = tuple(Fraction(9, 10 * 2**k) for k in range(14))  # step sizes to try, as shares of 1/Λ
_ITERATIONS = 60  # towards the smallest radii
_SLACK = Fraction(1005, 1000)
_SMALLEST_MARGIN, _LARGEST_MARGIN = Fraction(1, 2**16), Fraction(2**16)
_BISECTIONS = 5
_FARTHEST = 1e300  # no radius that is larger makes a difference
_SMALLEST_STEP = Fraction(math.ulp(0.0))
_ZERO = Fraction(0)


class Growth(NamedTuple):
    r"""Bounds that hold as long as the weights stay within some radii; see the module.

    Attributes:
        gain: The Lipschitz constant of the recurrent layer, if there is one.
        start: A lower bound of the least singular value of the initial features.
        drift: How far the features may move.
        root: $\sqrt{\lambda_-}$.
        largest: $\Lambda$.
        travel: $t_g$.
        crossing: $\varepsilon$.
        turn_square: $\psi^2$.
        curvature: $M$; ``None`` if there is no bound.
    """

    gain: Fraction | None
    start: Fraction
    drift: Fraction
    root: Fraction = _ZERO
    largest: Fraction = _ZERO
    travel: Radii = MappingProxyType({})
    crossing: Fraction = _ZERO
    turn_square: Fraction = _ZERO
    curvature: Fraction | None = None

    @property
    def blocked(self) -> bool:
        """Whether nothing is certain within these radii."""
        return self.drift >= self.start or (self.gain is not None and self.gain >= 1)

    @property
    def floor(self) -> Fraction:
        r"""$\lambda_-$."""
        return self.root**2


class Geometry(ABC):
    """The bounds of a network and its data that the argument asks for.

    Attributes:
        groups: The groups of weights.
        scales: The factors between the parameters and the weights of each group.
        error: A bound of the norm of the initial error.
        rigorous: Whether all bounds include the errors of computing them.
        measurements: Numbers for the certificate, by name.
        subject: The matrix that must keep its rank: the features of readouts, or all gradients.
        remedy: A change that keeps weights from traveling too far.
        rank_remedy: A change that raises the rank.
    """

    subject = "features"
    remedy = "a zero readout (readout_scale=0) with smaller labels; more width; less similar inputs"
    rank_remedy = RANK_REMEDY

    groups: tuple[str, ...]
    scales: Radii
    error: Fraction
    rigorous: bool
    measurements: dict[str, float]

    @abstractmethod
    def within(self, radii: Radii, step: Fraction) -> Growth:
        """The bounds within these radii, one for each group, for steps of this size."""


class Way(NamedTuple):
    r"""A rate $\omega$, and how far the weights travel at it."""

    rate: Fraction
    needed: Radii


def flow(growth: Growth, geometry: Geometry) -> Way:
    """Gradient flow: no path is longer than the error over the root of the rate."""
    if growth.root == 0:
        return Way(_ZERO, {})
    path = geometry.error / growth.root
    needed = {
        g: min(t * geometry.error / growth.floor, geometry.scales[g] * path)
        for g, t in growth.travel.items()
    }
    return Way(growth.floor, needed)


def descents(growth: Growth, geometry: Geometry, step: Fraction, curvature: Fraction) -> list[Way]:
    """Gradient descent, by the two rates of the module."""
    error, floor, root = geometry.error, growth.floor, growth.root
    if floor == 0:
        return []
    second = curvature * error  # M e_0
    kept = 1 - step * growth.largest / 2  # c
    plain = floor - growth.crossing - step * second
    whole = growth.crossing + step * second
    squared = kept * floor - growth.turn_square / (4 * kept)
    squared -= step * (growth.largest * growth.crossing + second + whole * whole / 2)
    ways = []
    for rate, path, groups in (
        (plain, floor * error / (root * kept), tuple(growth.travel)),
        (squared, root * error, ("readout", "skip")),
    ):
        needed: dict[str, Fraction] = {}
        if rate > 0:
            needed = {g: t * error / rate for g, t in growth.travel.items()}
            for g in needed.keys() & set(groups):
                needed[g] = min(needed[g], geometry.scales[g] * path / rate)
        ways.append(Way(rate, needed))
    return ways


@dataclass(frozen=True)
class _Point:
    """The argument at certain radii, for flow or for a step size."""

    geometry: Geometry
    radii: Radii
    step: Fraction | None

    @cached_property
    def growth(self) -> Growth:
        return self.geometry.within(self.radii, self.step or _ZERO)

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        """All certain rates, the one that needs the smallest radii first."""
        growth = self.growth
        if growth.blocked:
            ways = []
        elif self.step is None:
            ways = [flow(growth, self.geometry)]
        elif growth.curvature is None or self.step * growth.largest > 1:
            ways = []
        else:
            ways = descents(growth, self.geometry, self.step, growth.curvature)
        certain = [way for way in ways if way.rate > 0]
        return tuple(sorted(certain, key=self.rate_margin, reverse=True))

    def rate_margin(self, way: Way) -> Fraction:
        """The factor by which the radii exceed those that a rate needs."""
        ratios = [self.radii[g] / need for g, need in way.needed.items() if need > 0]
        return min(ratios, default=Fraction(2))

    @property
    def margin(self) -> Fraction:
        """The factor by which the radii exceed the needed ones; zero if nothing is certain."""
        return self.rate_margin(self.ways[0]) if self.ways else _ZERO

    def moved(self, radii: Radii) -> "_Point":
        """The point at other radii, rounded to floats so that fractions stay short."""
        rounded = {g: Fraction(min(up(r), _FARTHEST)) for g, r in radii.items()}
        return replace(self, radii=rounded)


def conclusions(
    geometry: Geometry, theorem: str, *, step_size: float | None = None
) -> tuple[Conclusion, Conclusion]:
    """The conclusions of the argument for gradient flow and for gradient descent.

    Args:
        geometry: The network and its data.
        theorem: The name of the theorem.
        step_size: The step size to certify; by default the largest one is searched for.
    """
    origin = _Point(geometry, dict.fromkeys(geometry.groups, _ZERO), None)
    start = origin.growth
    if step_size is not None:
        sizes = [Fraction(step_size)]
    elif start.blocked or start.largest == 0:
        sizes = [Fraction(1)]
    else:
        shares = (Fraction(down(share / start.largest)) for share in _SHARES)
        sizes = [size for size in shares if size > 0] or [_SMALLEST_STEP]
    trials = [replace(origin, step=size) for size in sizes]
    descent = next((trial for trial in trials if _invariant(trial, Fraction(1))), trials[-1])
    return _conclusion(theorem, origin), _conclusion(theorem, descent)


def _invariant(origin: _Point, margin: Fraction) -> _Point | None:
    """The smallest radii that exceed the needed ones by a factor of ``margin``, if there are any.

    The needed radii grow with the radii. So iterates from zero grow, and stay below all radii that
    suffice.
    """
    point = origin
    for _ in range(_ITERATIONS):
        if not point.ways:
            return None
        needed = point.ways[0].needed
        point = origin.moved({g: _SLACK * margin * need for g, need in needed.items()})
        if point.margin >= margin:
            return point
    return None


def _widest(origin: _Point) -> _Point:
    """The radii of the largest margin."""
    low, best = _ZERO, origin
    high = Fraction(1)
    while (point := _invariant(origin, high)) is not None and high < _LARGEST_MARGIN:
        low, high, best = high, 2 * high, point
    if low == 0:
        while high > _SMALLEST_MARGIN and (point := _invariant(origin, high)) is None:
            high /= 2
        low, high, best = high, 2 * high, point or origin
    for _ in range(_BISECTIONS if best is not origin else 0):
        middle = (low + high) / 2
        point = _invariant(origin, middle)
        low, high, best = (middle, high, point) if point else (low, middle, best)
    return best


def _conclusion(theorem: str, origin: _Point) -> Conclusion:
    """Conditions at the radii of the largest margin, promises at the smallest radii."""
    best, step = _widest(origin), origin.step
    least = _invariant(origin, Fraction(1)) or best
    result = Conclusion(
        theorem,
        "gradient flow" if step is None else "gradient descent",
        _conditions(best),
        None if step is None else nearest(step),
    )
    if least.margin < 1:
        return result
    growth, scales = least.growth, origin.geometry.scales
    rate = max(way.rate for way in least.ways if least.rate_margin(way) >= 1)
    promises = Promises(
        travel={g: up(r / scales[g]) if scales[g] else 0.0 for g, r in least.radii.items()},
        gain=None if growth.gain is None else up(growth.gain),
        singular_value=down(growth.start - growth.drift),
    )
    factor = down(2 * rate) if step is None else min(1.0, up((1 - step * rate) ** 2))
    return replace(result, rate=factor, promises=promises)


def _conditions(point: _Point) -> tuple[Condition, ...]:
    """The conditions of the proof, in its order."""
    growth, geometry = point.growth, point.geometry
    conditions = []
    if growth.gain is not None:
        words = "the recurrent layer remains a contraction"
        remedy = "smaller recurrent weights, more width, smaller labels"
        conditions.append(condition("contraction", growth.gain, "<", 1, words, remedy))
    words = f"the {geometry.subject} move less than their least singular value"
    conditions.append(
        condition("rank", growth.drift, "<", growth.start, words, geometry.rank_remedy)
    )
    if not growth.blocked:
        if growth.gain is not None:
            words, remedy = "the readout is trained", "train the readout"
            conditions.append(condition("readout", growth.floor, ">", 0, words, remedy))
        if point.step is not None:
            conditions += _step_conditions(point, point.step)
        if point.ways:
            conditions.append(_travel_condition(point))
    return tuple(replace(c, rigorous=geometry.rigorous) for c in conditions)


def _travel_condition(point: _Point) -> Condition:
    needed = point.ways[0].needed
    group = min(needed, key=lambda g: point.radii[g] / needed[g] if needed[g] else math.inf)
    words = f"the weights ({group}) stay within the radii of the proof"
    return condition(
        "travel", point.radii[group], ">=", needed[group], words, point.geometry.remedy
    )


def _step_conditions(point: _Point, step: Fraction) -> list[Condition]:
    growth = point.growth
    largest = 1 / growth.largest if growth.largest else math.inf
    words = "the step is at most one over the largest eigenvalue of the NTK"
    size = condition("step size", step, "<=", largest, words, "a smaller step size")
    ways, remedy = [], "an activation whose second derivative has a known bound, such as tanh"
    if growth.curvature is not None:
        # where the step is too large the rates mean nothing, and that condition fails first
        allowed = min(step, 1 / growth.largest) if growth.largest else step
        ways = descents(growth, point.geometry, allowed, growth.curvature)
        remedy = f"{point.geometry.remedy}; a smaller step size"
    rate = max((way.rate for way in ways), default=_ZERO)
    words = "the second-order error of a step is smaller than its decrease of the error"
    loss = condition("remainder", growth.floor - rate, "<", growth.floor, words, remedy)
    return [size, loss]
