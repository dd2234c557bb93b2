r"""One argument for all networks: the features move less than it takes to lose their rank.

Let $e = \hat y - y$, and let the weights stay within given radii of where they start. There, an
architecture says (``Growth``) that the Gram matrix of the features has no eigenvalue below
$\lambda_-$, the NTK $H$ none above $\Lambda$, that the gradient of group $g$ is at most
$t_g \|e\|$, and that a step of gradient descent makes $e' = (I - \eta H) e + E_1 + E_2$, where
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
from typing import NamedTuple

from shoal.certificates.rounding import down, nearest, up
from shoal.certificates.values import Conclusion, Condition, at_least, at_most

__all__ = ["RANK_REMEDY", "Geometry", "Growth", "Obstacle", "Radii", "sharper_conclusions"]

Radii = Mapping[str, Fraction]

_SHARES = tuple(Fraction(9, 10 * 2**k) for k in range(14))  # of 1/Λ, step sizes to try
_ITERATIONS = 60  # towards the smallest radii
_SLACK = Fraction(1005, 1000)
_SMALLEST_MARGIN, _LARGEST_MARGIN = Fraction(1, 2**16), Fraction(2**16)
_BISECTIONS = 5
_FARTHEST = 1e300  # no radius that is larger makes a difference

RANK_REMEDY = (
    "more width; inputs that are parallel or nearly so must be normalized, perturbed or removed"
)


class Obstacle(NamedTuple):
    """Radii within which nothing is certain.

    Attributes:
        gain: The Lipschitz constant of the recurrent layer.
        start: A lower bound of the least singular value of the initial features.
        drift: How far the features may move.
    """

    gain: Fraction
    start: Fraction
    drift: Fraction


class Growth(NamedTuple):
    r"""What holds as long as the weights stay within some radii; see the module.

    Attributes:
        gain: The Lipschitz constant of the recurrent layer.
        start: A lower bound of the least singular value of the initial features.
        drift: How far the features may move.
        floor: $\lambda_-$.
        root: $\sqrt{\lambda_-}$.
        largest: $\Lambda$.
        travel: $t_g$.
        crossing: $\varepsilon$.
        turn_square: $\psi^2$.
        curvature: $M$; ``None`` if there is no bound.
    """

    gain: Fraction
    start: Fraction
    drift: Fraction
    floor: Fraction
    root: Fraction
    largest: Fraction
    travel: Radii
    crossing: Fraction
    turn_square: Fraction
    curvature: Fraction | None


class Geometry(ABC):
    """What an architecture must say of a network and its data.

    Attributes:
        groups: The groups of weights.
        scales: By what the parameters of each group are multiplied to make its weights.
        error: A bound of the norm of the initial error.
        rigorous: Whether all bounds include the errors of computing them.
    """

    groups: tuple[str, ...]
    scales: Radii
    error: Fraction
    rigorous: bool

    @abstractmethod
    def within(self, radii: Radii, step: Fraction) -> Growth | Obstacle:
        """What holds within these radii, one for each group, for steps of this size."""


class _Way(NamedTuple):
    r"""A rate $\omega$, and how far the weights travel at it."""

    rate: Fraction
    needed: Radii


@dataclass(frozen=True)
class _Point:
    """The argument at certain radii, for flow or for a step size."""

    geometry: Geometry
    radii: Radii
    step: Fraction | None

    @cached_property
    def growth(self) -> Growth | Obstacle:
        return self.geometry.within(self.radii, self.step or Fraction(0))

    @cached_property
    def ways(self) -> tuple[_Way, ...]:
        """All that is certain, the one that needs the smallest radii first."""
        if isinstance(self.growth, Obstacle):
            return ()
        if self.step is None:
            ways = [_flow(self.growth, self.geometry)]
        elif self.growth.curvature is None or self.step * self.growth.largest > 1:
            ways = []
        else:
            ways = _descents(self.growth, self.geometry, self.step, self.growth.curvature)
        certain = [way for way in ways if way.rate > 0]
        return tuple(sorted(certain, key=self._margin, reverse=True))

    def _margin(self, way: _Way) -> Fraction:
        ratios = [self.radii[g] / need for g, need in way.needed.items() if need > 0]
        return min(ratios, default=Fraction(2))

    @property
    def margin(self) -> Fraction:
        """By what factor the radii exceed what is needed; zero if nothing is certain."""
        return self._margin(self.ways[0]) if self.ways else Fraction(0)

    def moved(self, radii: Radii) -> "_Point":
        """The same at other radii, as floats lest fractions grow without end."""
        rounded = {g: Fraction(min(up(r), _FARTHEST)) for g, r in radii.items()}
        return _Point(self.geometry, rounded, self.step)


def _flow(growth: Growth, geometry: Geometry) -> _Way:
    """Gradient flow: no path is longer than the error over the root of the rate."""
    if growth.floor == 0:
        return _Way(Fraction(0), {})
    path = geometry.error / growth.root
    needed = {
        g: min(t * geometry.error / growth.floor, geometry.scales[g] * path)
        for g, t in growth.travel.items()
    }
    return _Way(growth.floor, needed)


def _descents(
    growth: Growth, geometry: Geometry, step: Fraction, curvature: Fraction
) -> list[_Way]:
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
        if rate <= 0:
            ways.append(_Way(rate, {}))
        else:
            needed = {g: t * error / rate for g, t in growth.travel.items()}
            for g in groups:
                if g in needed:
                    needed[g] = min(needed[g], geometry.scales[g] * path / rate)
            ways.append(_Way(rate, needed))
    return ways


def sharper_conclusions(
    geometry: Geometry, theorem: str, *, step_size: float | None = None
) -> tuple[Conclusion, Conclusion]:
    """What the argument says of gradient flow and of gradient descent.

    Args:
        geometry: The network and its data.
        theorem: What to call it.
        step_size: The step size to certify; by default the largest one is searched for.
    """
    origin = _Point(geometry, dict.fromkeys(geometry.groups, Fraction(0)), None)
    start = origin.growth
    if step_size is not None:
        sizes = [Fraction(step_size)]
    elif isinstance(start, Obstacle) or start.largest == 0:
        sizes = [Fraction(1)]
    else:
        sizes = [Fraction(down(share / start.largest)) for share in _SHARES]
    trials = [replace(origin, step=size) for size in sizes]
    descent = next((trial for trial in trials if _invariant(trial, Fraction(1))), trials[-1])
    return _conclusion(theorem, origin), _conclusion(theorem, descent)


def _invariant(origin: _Point, margin: Fraction) -> _Point | None:
    """The smallest radii that exceed what is needed by a factor of ``margin``, if there are any.

    What is needed grows with the radii. So iterates from zero grow, and stay below all radii that
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


def _best(origin: _Point) -> _Point:
    """The radii of the largest margin."""
    low, best = Fraction(0), origin
    high = Fraction(1)
    while (found := _invariant(origin, high)) is not None and high < _LARGEST_MARGIN:
        low, high, best = high, 2 * high, found
    if low == 0:
        while high > _SMALLEST_MARGIN and (found := _invariant(origin, high)) is None:
            high /= 2
        low, high, best = high, 2 * high, found or origin
    for _ in range(_BISECTIONS if best is not origin else 0):
        middle = (low + high) / 2
        found = _invariant(origin, middle)
        low, high, best = (middle, high, found) if found else (low, middle, best)
    return best


def _conclusion(theorem: str, origin: _Point) -> Conclusion:
    best, step = _best(origin), origin.step
    result = Conclusion(
        theorem,
        "sharper",
        "gradient flow" if step is None else "gradient descent",
        _conditions(best),
        None if step is None else nearest(step),
    )
    found = _invariant(origin, Fraction(1))
    if found is None or isinstance(found.growth, Obstacle):
        return result
    growth, rate = found.growth, max(way.rate for way in found.ways if found._margin(way) >= 1)
    promises = {f"{g} travels at most": up(r) for g, r in found.radii.items()}
    promises["gain at most"] = up(growth.gain)
    promises["features keep a singular value of"] = down(growth.start - growth.drift)
    factor = down(2 * rate) if step is None else up((1 - step * rate) ** 2)
    return replace(result, rate=factor, promises=promises)


def _conditions(point: _Point) -> tuple[Condition, ...]:
    """What the proof asks for, in its order."""
    growth, rigorous = point.growth, point.geometry.rigorous
    conditions = [
        at_most(
            "contraction",
            growth.gain,
            1,
            words="the recurrent layer remains a contraction",
            remedy="smaller recurrent weights, more width, smaller labels",
            rigorous=rigorous,
            strict=True,
        ),
        at_most(
            "rank",
            growth.drift,
            growth.start,
            words="the features move less than their least singular value",
            remedy=RANK_REMEDY,
            rigorous=rigorous,
            strict=True,
        ),
    ]
    if isinstance(growth, Obstacle):
        return tuple(conditions)
    conditions.append(
        at_least(
            "readout",
            growth.floor,
            0,
            words="the readout is trained",
            remedy="train the readout",
            rigorous=rigorous,
            strict=True,
        )
    )
    if point.step is not None:
        conditions += _step_conditions(point, growth)
    if point.ways:
        needed = point.ways[0].needed
        group = min(needed, key=lambda g: _ratio(point.radii[g], needed[g]))
        conditions.append(
            at_least(
                "travel",
                point.radii[group],
                needed[group],
                words=f"the weights ({group}) travel less than what was allowed for",
                remedy="more width, smaller labels, a smaller readout, less similar inputs",
                rigorous=rigorous,
            )
        )
    return tuple(conditions)


def _step_conditions(point: _Point, growth: Growth) -> list[Condition]:
    assert point.step is not None
    size = at_most(
        "step size",
        point.step,
        1 / growth.largest if growth.largest else math.inf,
        words="the step is at most one over the largest eigenvalue of the NTK",
        remedy="a smaller step size",
        rigorous=point.geometry.rigorous,
    )
    ways = []
    if growth.curvature is not None:
        ways = _descents(growth, point.geometry, point.step, growth.curvature)
    rate = max((way.rate for way in ways), default=Fraction(0))
    return [
        size,
        at_most(
            "remainder",
            growth.floor - rate,
            growth.floor,
            words="what is not linear in a step is less than what the readout gains",
            remedy="more width, a smaller readout (readout_scale), smaller labels",
            rigorous=point.geometry.rigorous,
            strict=True,
        ),
    ]


def _ratio(large: Fraction, small: Fraction) -> Fraction | float:
    return large / small if small else math.inf
