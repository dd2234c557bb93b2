"""The search for radii that the weights cannot leave; see ``shoal.certificates.growth``."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from shoal.certificates.certificate import Conclusion, Condition, condition
from shoal.certificates.evidence.rounding import down, nearest, up
from shoal.certificates.growth import Geometry, Growth, Obstacle, Radii, Way, descents, flow
from shoal.training import Promises

_SHARES = tuple(Fraction(9, 10 * 2**k) for k in range(14))  # of 1/Λ, step sizes to try
_ITERATIONS = 60  # towards the smallest radii
_SLACK = Fraction(1005, 1000)
_SMALLEST_MARGIN, _LARGEST_MARGIN = Fraction(1, 2**16), Fraction(2**16)
_BISECTIONS = 5
_FARTHEST = 1e300  # no radius that is larger makes a difference
_SMALLEST_STEP = Fraction(math.ulp(0.0))


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
    def ways(self) -> tuple[Way, ...]:
        """All that is certain, the one that needs the smallest radii first."""
        if isinstance(self.growth, Obstacle):
            return ()
        if self.step is None:
            ways = [flow(self.growth, self.geometry)]
        elif self.growth.curvature is None or self.step * self.growth.largest > 1:
            ways = []
        else:
            ways = descents(self.growth, self.geometry, self.step, self.growth.curvature)
        certain = [way for way in ways if way.rate > 0]
        return tuple(sorted(certain, key=self._margin, reverse=True))

    def _margin(self, way: Way) -> Fraction:
        ratios = [self.radii[g] / need for g, need in way.needed.items() if need > 0]
        return min(ratios, default=Fraction(2))

    @property
    def margin(self) -> Fraction:
        """The factor by which the radii exceed what is needed; zero if nothing is certain."""
        return self._margin(self.ways[0]) if self.ways else Fraction(0)

    def moved(self, radii: Radii) -> "_Point":
        """The point at other radii, rounded to floats so that fractions stay short."""
        rounded = {g: Fraction(min(up(r), _FARTHEST)) for g, r in radii.items()}
        return _Point(self.geometry, rounded, self.step)


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
        shares = (Fraction(down(share / start.largest)) for share in _SHARES)
        sizes = [size for size in shares if size > 0] or [_SMALLEST_STEP]
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
    found = _invariant(origin, Fraction(1)) or best
    result = Conclusion(
        theorem,
        "sharper",
        "gradient flow" if step is None else "gradient descent",
        _conditions(best),
        None if step is None else nearest(step),
    )
    if found.margin < 1 or isinstance(found.growth, Obstacle):
        return result
    growth, rate = found.growth, max(way.rate for way in found.ways if found._margin(way) >= 1)
    promises = Promises(
        travel={g: _of_parameters(r, origin.geometry.scales[g]) for g, r in found.radii.items()},
        gain=None if growth.gain is None else up(growth.gain),
        singular_value=down(growth.start - growth.drift),
    )
    factor = down(2 * rate) if step is None else min(1.0, up((1 - step * rate) ** 2))
    return replace(result, rate=factor, promises=promises)


def _conditions(point: _Point) -> tuple[Condition, ...]:
    """What the proof asks for, in its order."""
    growth, geometry = point.growth, point.geometry
    conditions = [] if growth.gain is None else [_contraction(growth.gain, geometry.rigorous)]
    conditions.append(
        condition(
            "rank",
            growth.drift,
            "<",
            growth.start,
            f"the {geometry.subject} move less than their least singular value",
            geometry.rank_remedy,
            rigorous=geometry.rigorous,
        )
    )
    if isinstance(growth, Obstacle):
        return tuple(conditions)
    if growth.gain is not None:
        conditions.append(_readout(growth.floor, geometry.rigorous))
    if point.step is not None:
        conditions += _step_conditions(point, growth)
    if point.ways:
        conditions.append(_travel_condition(point))
    return tuple(conditions)


def _contraction(gain: Fraction, rigorous: bool) -> Condition:
    words = "the recurrent layer remains a contraction"
    remedy = "smaller recurrent weights, more width, smaller labels"
    return condition("contraction", gain, "<", 1, words, remedy, rigorous=rigorous)


def _readout(floor: Fraction, rigorous: bool) -> Condition:
    words, remedy = "the readout is trained", "train the readout"
    return condition("readout", floor, ">", 0, words, remedy, rigorous=rigorous)


def _travel_condition(point: _Point) -> Condition:
    needed = point.ways[0].needed
    group = min(needed, key=lambda g: _ratio(point.radii[g], needed[g]))
    return condition(
        "travel",
        point.radii[group],
        ">=",
        needed[group],
        f"the weights ({group}) travel less than what was allowed for",
        point.geometry.remedy,
        rigorous=point.geometry.rigorous,
    )


def _step_conditions(point: _Point, growth: Growth) -> list[Condition]:
    assert point.step is not None
    size = condition(
        "step size",
        point.step,
        "<=",
        1 / growth.largest if growth.largest else math.inf,
        "the step is at most one over the largest eigenvalue of the NTK",
        "a smaller step size",
        rigorous=point.geometry.rigorous,
    )
    ways, remedy = [], "an activation whose second derivative has a known bound, such as tanh"
    if growth.curvature is not None:
        # where the step is too large the rates mean nothing, and that condition fails first
        step = min(point.step, 1 / growth.largest) if growth.largest else point.step
        ways = descents(growth, point.geometry, step, growth.curvature)
        remedy = f"{point.geometry.remedy}; a smaller step size"
    rate = max((way.rate for way in ways), default=Fraction(0))
    rest = condition(
        "remainder",
        growth.floor - rate,
        "<",
        growth.floor,
        "what is not linear in a step is less than what is gained",
        remedy,
        rigorous=point.geometry.rigorous,
    )
    return [size, rest]


def _of_parameters(radius: Fraction, scale: Fraction) -> float:
    """How far parameters go if the weights that they make go so far; nowhere if not trained."""
    return up(radius / scale) if scale else 0.0


def _ratio(large: Fraction, small: Fraction) -> Fraction | float:
    return large / small if small else math.inf
