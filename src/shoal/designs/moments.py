r"""Designs by moments: one or two layers with the coefficients of a kernel (Ling 2024, 3.2).

A layer that is centered at the scale $\tau$ of its arguments is $\sigma(\tau\xi) = \sum_{k\ge1} s_k
h_k(\xi)$. In the energies $A_1 = \tau_0^2\alpha_1$, $A_2 = 2\tau_0^4\alpha_2$ and $A_3 =
\tau_0^4\alpha_3$ the recursion of Ling 2024, Theorem 3.8 (corrected) has no powers of scales; one
layer has $A_1 = s_1^2$ and $A_2 = A_3 = s_2^2$.

**Hard tanh**, $a \min(\max(x, -c), c)$. With $h = c/\tau_0$, $e = \operatorname{erf}(h/\sqrt2)$ and
the Gaussian density $g$, in units of $a^2\tau_0^2$: $s_1^2 = e^2$, $s_2 = 0$, $E[\sigma^2] = e -
2hg(h) + h^2(1 - e)$ and $\tau_0^2E[\sigma'^2] = e$. The ratio of the diagonal to the linear part
falls with $h$ to 1, the linear function: from $\pi/2$, the sign function, for the CK, and from
infinity for the NTK.

**Leaky rectifiers**, $Ax + B|x|$ less their mean, with slopes $A + B$ and $A - B$. With $w =
s_2^2/s_1^2 = B^2/(\pi A^2)$, in units of $s_1^2$: $E[\sigma^2] = 1 + (\pi-2)w$, which is also the
growth, and $\tau^2E[\sigma'^2] = 1 + \pi w$. Slopes $a \ge b \ge 0$ mean $w \le 1/\pi$. Multiplying
layer 1 by $k$ and dividing layer 2 by $k$ changes no kernel, so the first layer may keep the norm.
With $F = 1 + (\pi-2)w_1$ the equations for $A_2$ and $A_3$ are

* CK: $A_3/A_1 = w_1 + w_2/F$ and $A_2/A_1 = w_1 + w_2F$,
* NTK: $3A_3/A_1 = 4w_1 + 5w_2/F$ and $3A_2/A_1 = 2w_1 + w_2F$.

Eliminating $w_2$ leaves a cubic in $w_1$, whose roots are all solutions. The diagonal is then no
longer free. For the CK of a rectifier DEQ it fits by itself, since $\gamma^2 - A_1 = (\pi-2)A_2$ on
both sides; the NTK has no such identity, and two layers miss $\kappa^2$.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy  # imports its parts when they are first used

from shoal.activations import Activation, Affine, HardTanh, LeakyReLU
from shoal.architectures import FullyConnected
from shoal.asymptotics import Coefficients, coefficients
from shoal.core.checks import one_of
from shoal.core.exceptions import AccuracyError
from shoal.designs.result import Design
from shoal.kernels import KernelFunction

_EXCESS = math.pi - 2
_DIMENSIONS = 4.0  # the largest eigenvalue of XᵀX/τ_0² for as many samples as dimensions
_ODD = 1e-13  # an even or odd part this small, relative to the diagonal, is rounding
_THRESHOLDS = 1e-3, 8.5  # in standard deviations; below, a sign function in practice
_STEEPEST = 0.05  # the smallest threshold of a nearest design
_ORDINARY = 1 / math.pi  # the largest w of slopes a >= b >= 0
_SAME = 1e-11  # relative to the diagonal
_AGREEMENT = 1e-9  # of two ways to find a coefficient, relative to the diagonal
_ZERO = 1e-25  # a smaller coefficient, relative to the diagonal, is rounding
_SMALL = 1e-4  # below this share of the diagonal, differences count relative to it


class Numbers(NamedTuple):
    r"""The coefficients of a centered kernel as energies.

    Attributes:
        diagonal: $\gamma^2$ or $\kappa_*^2$, the kernel of an input with itself.
        linear: $A_1 = \tau_0^2\alpha_1$ or $\tau_0^2\beta_1$.
        norms: $A_2 = 2\tau_0^4\alpha_2$ or $2\tau_0^4\beta_2$.
        square: $A_3 = \tau_0^4\alpha_3$ or $\tau_0^4\beta_3$.
    """

    diagonal: float
    linear: float
    norms: float
    square: float

    def differences(self, other: "Numbers") -> tuple[float, ...]:
        r"""Bounds of the parts of $\bar M - \bar M'$, with signs, relative to the norm of $\bar M$.

        In spectral norm, for as many samples as dimensions and inputs $x \sim N(0,
        (\tau_0^2/p)I)$: the shift of the spectrum, $\alpha_1X^\top X$, $\alpha_2\chi\chi^\top$ and
        $\alpha_3(x_i^\top x_j)^2$. Their absolute sum bounds the norm of the whole.
        """
        size = self.diagonal + (_DIMENSIONS - 1) * self.linear
        linear = other.linear - self.linear
        return (
            (other.diagonal - self.diagonal - linear) / size,
            _DIMENSIONS * linear / size,
            (other.norms - self.norms) / size,
            (other.square - self.square) / size,
        )

    def error(self, other: "Numbers") -> float:
        """How much of the kernel is missed, as the sum of :meth:`differences`."""
        return math.fsum(map(abs, self.differences(other)))


def target_numbers(c: Coefficients, which: str) -> Numbers:
    """The coefficients of the CK or of the NTK as energies; none is negative but by rounding."""
    k, unit = (c.ck if which == "ck" else c.ntk), c.input_norm**2
    linear, norms, square = (max(value, 0.0) for value in (k.alpha1, k.alpha2, k.alpha3))
    return Numbers(k.gamma2, unit * linear, 2 * unit**2 * norms, unit**2 * square)


def names(which: str) -> tuple[str, str, str, str]:
    """The papers' names of the coefficients, in the order of :class:`Numbers`."""
    if which == "ck":
        return "gamma2", "alpha1", "alpha2", "alpha3"
    return "kappa2", "beta1", "beta2", "beta3"


class Energies(NamedTuple):
    r"""A layer centered at the scale of its arguments.

    Attributes:
        linear: $s_1^2$.
        square: $s_2^2$.
        total: $\sum_k s_k^2 = E[\sigma^2]$.
        slopes: $\sum_k k s_k^2 = \tau^2 E[\sigma'^2]$.
        growth: The derivative of the total in the logarithm of $\tau^2$.
    """

    linear: float
    square: float
    total: float
    slopes: float
    growth: float

    def times(self, factor: float) -> "Energies":
        """The layer times the root of a number."""
        return Energies(*(factor * value for value in self))


class Proposal(NamedTuple):
    """A network that may have the wanted numbers.

    Attributes:
        activations: Its layers.
        layers: Their energies.
        note: A remark for the explanation.
    """

    activations: tuple[Activation, ...]
    layers: tuple[Energies, ...]
    note: str = ""

    def numbers(self, which: str) -> Numbers:
        """The coefficients of the network."""
        return network_numbers(self.layers, which)


def network_numbers(layers: Iterable[Energies], which: str) -> Numbers:
    r"""The coefficients of the CK, or of the NTK with all weights trained, by Theorem 3.8."""
    a1 = a4 = b1 = diagonal = variance = 1.0  # of the inputs; their norm cancels
    a2 = a3 = b2 = b3 = 0.0
    for layer in layers:
        slope, bend = layer.linear / variance, layer.square / variance**2  # m_1², m_2²/2
        b3, a3 = slope * (a3 + b3) + bend * a1 * (a1 + 2 * b1), slope * a3 + bend * a1**2
        b2, a2 = slope * (a2 + b2) + bend * a4**2, slope * a2 + bend * a4**2
        b1, a1 = slope * (a1 + b1), slope * a1
        a4 *= layer.growth / variance
        diagonal = layer.total + diagonal * layer.slopes / variance
        variance = layer.total
    return Numbers(variance, a1, a2, a3) if which == "ck" else Numbers(diagonal, b1, b2, b3)


class HardTanhs:
    """One hidden layer of scaled hard tanh (Ling 2024, Example 3.10)."""

    words = "hard tanh"

    def solutions(
        self, target: Numbers, input_norm: float, which: str
    ) -> tuple[list[Proposal], str]:
        """The network with these numbers, or the reason why there is none."""
        diagonal, linear, norms, square = names(which)
        quotient, least = f"{diagonal} / (input_norm² {linear})", _THRESHOLDS[0]
        even = max(target.norms, target.square) / target.diagonal
        value = target.diagonal / target.linear if target.linear > 0 else math.inf
        most = hard_tanh_ratio(least, which)
        if even > _ODD:
            return [], (
                f"A hard tanh is odd, so {norms} and {square} must vanish, but they make up "
                f"{even:.2g} of the diagonal."
            )
        if not value > 1 + 1e-12:
            return [], f"{quotient} must be above 1, as of a linear layer, and is 1."
        if which == "ck" and not value < math.pi / 2:
            return [], (
                f"{quotient} must be below pi/2 = 1.5708, the value of the sign function, and is "
                f"{value:.6g}."
            )
        if value > most:
            return [], (
                f"{quotient} must be at most {most:.6g}, the value of a hard tanh that bends at "
                f"{least} standard deviations, and is {value:.6g}."
            )

        def excess(logarithm: float) -> float:
            return hard_tanh_ratio(math.exp(logarithm), which) - value

        low, high = map(math.log, _THRESHOLDS)
        root = float(scipy.optimize.brentq(excess, low, high, xtol=1e-15, rtol=8.9e-16))
        return [_hard_tanh(math.exp(root), target.linear, input_norm, which)], ""

    def nearest(self, target: Numbers, input_norm: float, which: str) -> Proposal:
        """The network that misses least of the kernel."""
        small = 1e-9 * target.diagonal

        def built(linear: float, logarithm: float) -> Proposal:
            return _hard_tanh(math.exp(logarithm), max(linear, small), input_norm, which)

        start = [max(target.linear, 1e-3 * target.diagonal), 0.0]
        bounds = ([0.0, math.log(_STEEPEST)], [math.inf, math.log(_THRESHOLDS[1])])
        return _least(target, which, built, [(start, bounds, [start[0], 1.0])])


class LeakyRectifiers:
    """One or two hidden layers of leaky rectifiers (Ling 2024, Example 3.11)."""

    words = "leaky rectifiers"

    def solutions(
        self, target: Numbers, input_norm: float, which: str
    ) -> tuple[list[Proposal], str]:
        """All networks with these numbers, or the reason why there is none.

        One layer if it is enough; else ordinary slopes first.
        """
        diagonal, linear, norms, square = names(which)
        if target.linear <= _ODD * target.diagonal:
            return [], f"{linear} must be positive, and vanishes."
        share = target.square / target.linear * (1.0 if which == "ck" else 2 / 3)
        pairs = sorted(rectifier_weights(target, which), key=lambda pair: _condition(pair, which))
        one, *two = (
            _rectifiers(target.linear, shares, input_norm, which) for shares in [(share,), *pairs]
        )
        if _agree(target, one.numbers(which)):
            return [one], ""
        found = [p for p in two if _agree(target, p.numbers(which))]
        if found:
            return found, ""
        if not two:
            return [], (
                f"No two leaky rectifiers have {linear}, {norms} and {square} in these "
                f"proportions: {norms} input_norm²/{linear} = "
                f"{target.norms / target.linear / 2:.6g} and {square} input_norm²/{linear} = "
                f"{target.square / target.linear:.6g}."
            )
        values = [p.numbers(which).diagonal for p in two]
        value = min(values, key=lambda x: abs(x - target.diagonal))
        return [], (
            f"Leaky rectifiers that have {linear}, {norms} and {square} have no choice of "
            f"{diagonal}: it would be {value:.6g} and must be {target.diagonal:.6g}, "
            f"{target.diagonal / value - 1:+.2%}."
        )

    def nearest(self, target: Numbers, input_norm: float, which: str) -> Proposal:
        """The network that misses least of the kernel; its slopes are a >= b >= 0."""

        def built(linear: float, *shares: float) -> Proposal:
            return _rectifiers(linear, shares, input_norm, which)

        linear = max(target.linear, 1e-3 * target.diagonal)
        starts: list[Any] = []
        for shares in [*product((0.02, 0.15, 0.3), repeat=2), (0.02,), (0.3,)]:
            count = len(shares)
            bounds = ([0.0] * (1 + count), [math.inf, *[_ORDINARY] * count])
            starts.append(([linear, *shares], bounds, [linear, *[0.1] * count]))
        return _least(target, which, built, starts)


FAMILIES: dict[str, HardTanhs | LeakyRectifiers] = {
    "hard_tanh": HardTanhs(),
    "leaky_relu": LeakyRectifiers(),
}
"""The families in the order in which they are tried: the simplest networks first."""


def hard_tanh_ratio(h: float, which: str) -> float:
    """The diagonal over the linear part of a hard tanh, for a threshold in standard deviations."""
    numbers = network_numbers([_hard_tanh_energies(h)], which)
    return numbers.diagonal / numbers.linear


def rectifier_weights(target: Numbers, which: str) -> list[tuple[float, float]]:
    """Every $(w_1, w_2)$, both not negative, that has $A_1$, $A_2$ and $A_3$."""
    n, of_first, of_second, of_norms = _equations(which)
    square, norms = n * target.square / target.linear, n * target.norms / target.linear
    first, growth = np.polynomial.Polynomial([0.0, 1.0]), np.polynomial.Polynomial([1.0, _EXCESS])
    cubic = (square - of_first * first) * growth**2 + of_second * (of_norms * first - norms)
    found = []
    for root in map(complex, cubic.roots()):
        if abs(root.imag) > 1e-7:  # half the digits of a double root
            continue
        w = _polished(cubic, root.real)
        second = (square - of_first * w) * (1 + _EXCESS * w) / of_second
        if min(w, second) > -1e-13:
            found.append((max(w, 0.0), max(second, 0.0)))
    return found


def _least(
    target: Numbers, which: str, built: Callable[..., Proposal], starts: Sequence[Any]
) -> Proposal:
    """The network with the least squared differences, by least squares from several starts."""

    def miss(parameters: Any) -> tuple[float, ...]:
        return target.differences(built(*map(float, parameters)).numbers(which))

    found = [
        scipy.optimize.least_squares(miss, start, bounds=bounds, x_scale=scale, xtol=1e-12)
        for start, bounds, scale in starts
    ]
    least = min(one.cost for one in found)
    return built(*map(float, next(f.x for f in found if f.cost <= least * (1 + 1e-6))))


def _hard_tanh_energies(h: float) -> Energies:
    """The energies for a threshold, in units of the squared slope."""
    density = math.exp(-(h**2) / 2) / math.sqrt(2 * math.pi)
    inside, outside = math.erf(h / math.sqrt(2)), math.erfc(h / math.sqrt(2))
    if h > 1e-2:
        growth = inside - 2 * h * density
    else:  # the same without cancellation
        growth = 2 * h**3 * density / 3 * (1 + h**2 / 5 + h**4 / 35)
    return Energies(inside**2, 0.0, growth + h**2 * outside, inside, growth)


def _hard_tanh(h: float, linear: float, input_norm: float, which: str) -> Proposal:
    unit = _hard_tanh_energies(h)
    layer = unit.times(linear / network_numbers([unit], which).linear)
    slope = math.sqrt(layer.slopes / unit.slopes) / input_norm
    return Proposal((Affine(HardTanh(h * input_norm), scale=slope),), (layer,))


def _equations(which: str) -> tuple[float, float, float, float]:
    r"""$n$, $p_1$, $p_2$, $p_3$ in $nA_3/A_1 = p_1w_1 + p_2w_2/F$, $nA_2/A_1 = p_3w_1 + w_2F$."""
    return (1.0, 1.0, 1.0, 1.0) if which == "ck" else (3.0, 4.0, 5.0, 2.0)


def _polished(cubic: np.polynomial.Polynomial, root: float) -> float:
    """Newton steps while they get smaller."""
    slope, last = cubic.deriv(), math.inf
    while True:
        steepness = float(slope(root))
        step = float(cubic(root)) / steepness if steepness else 0.0
        if not abs(step) < last / 2:
            return root
        root, last = root - step, abs(step)


def _condition(pair: tuple[float, float], which: str) -> tuple[bool, float]:
    """Whether a slope is negative, and how far errors of A_2 and A_3 move the solution."""
    _, of_first, of_second, of_norms = _equations(which)
    first, second = pair
    growth = 1 + _EXCESS * first
    jacobian = np.array(
        [
            [of_first - of_second * second * _EXCESS / growth**2, of_second / growth],
            [of_norms + second * _EXCESS, growth],
        ]
    )
    return max(pair) > _ORDINARY * (1 + 1e-12), float(np.linalg.cond(jacobian))


def _agree(target: Numbers, numbers: Numbers) -> bool:
    pairs = zip(target, numbers, strict=True)
    return all(abs(a - b) <= _SAME * target.diagonal for a, b in pairs)


def _rectifiers(
    linear: float, shares: tuple[float, ...], input_norm: float, which: str
) -> Proposal:
    r"""The network of these $w$ whose $A_1$ is ``linear``; its first layer keeps the norm."""
    units = [Energies(1.0, w, 1 + _EXCESS * w, 1 + math.pi * w, 1 + _EXCESS * w) for w in shares]
    layers = [unit.times(input_norm**2 / unit.total) for unit in units]
    layers[-1] = layers[-1].times(linear / network_numbers(layers, which).linear)
    scales = (input_norm, *(math.sqrt(layer.total) for layer in layers[:-1]))
    activations = tuple(map(_rectifier, layers, scales))
    negative = [str(i) for i, w in enumerate(shares, start=1) if w > _ORDINARY * (1 + 1e-12)]
    note = f"The left slope is negative in layer {' and '.join(negative)}." if negative else ""
    return Proposal(activations, tuple(layers), note)


def _rectifier(layer: Energies, tau: float) -> Affine:
    straight, bent = math.sqrt(layer.linear) / tau, math.sqrt(math.pi * layer.square) / tau
    right, left = straight + bent, straight - bent
    return Affine(LeakyReLU(left / right), scale=right, shift=-bent * tau * math.sqrt(2 / math.pi))


@dataclass(frozen=True, kw_only=True)
class MomentMatching:
    r"""One or two hidden layers with the high-dimensional coefficients of a network.

    They are those of the centered architecture (see ``coefficients``): $\gamma^2, \alpha_1,
    \alpha_2, \alpha_3$ of the CK, or $\kappa_*^2, \beta_1, \beta_2, \beta_3$ of the NTK, all
    weights of the designed network being trained. The kernel matrices of both agree on
    high-dimensional Gaussian mixtures. If no network of the family has the coefficients, the
    nearest one comes back with ``feasible=False``.

    Args:
        family: ``"hard_tanh"``, one layer, or ``"leaky_relu"``, one or two. By default the first
            of them that has the coefficients.
    """

    family: str | None = None

    name: ClassVar[Literal["moments"]] = "moments"

    def __post_init__(self) -> None:
        if self.family is not None:
            one_of("family", self.family, FAMILIES)

    def design(self, function: KernelFunction, input_norm: float, which: str) -> Design:
        """Design by the coefficients of the equivalents."""
        wanted = coefficients(function, input_norm=input_norm)
        if not wanted.center:
            raise ValueError(
                f"designs by moments are for networks without biases, got {wanted.architecture!r}; "
                "method='sphere' designs for one norm of the inputs"
            )
        target, norm = target_numbers(wanted, which), wanted.input_norm
        if target.diagonal == 0:
            raise ValueError(f"the kernel is zero: {wanted.architecture} has an activation of zero")
        tried = [self.family] if self.family is not None else list(FAMILIES)
        reasons = []
        for name in tried:
            found, reason = FAMILIES[name].solutions(target, norm, which)
            if found:
                return _feasible(wanted, which, name, found)
            reasons.append(reason)
        proposals = {name: FAMILIES[name].nearest(target, norm, which) for name in tried}
        errors = {name: target.error(p.numbers(which)) for name, p in proposals.items()}
        best = min(errors, key=errors.__getitem__)
        words = [
            f"Not feasible. {' '.join(reasons)} Nearest to it:",
            _intention(wanted, which, best, proposals[best]),
            f"It is predicted to miss at most {errors[best]:.1e} of the kernel matrix, in spectral "
            "norm, for as many isotropic inputs as dimensions, all of norm input_norm; varying "
            "norms add to it, see gap. method='sphere' has the kernel for inputs of one norm.",
        ]
        return _verified(wanted, which, best, proposals[best], feasible=False, words=words)


def _feasible(wanted: Coefficients, which: str, family: str, found: list[Proposal]) -> Design:
    words = [_intention(wanted, which, family, found[0]), _depth_reason(wanted, which, found[0])]
    others = tuple(
        _verified(wanted, which, family, proposal, feasible=True, words=words)
        for proposal in found[1:]
    )
    if others:
        words.append(
            f"There are {len(found)} such networks; this is the one that errors of the target move "
            "least, and the other is in alternatives."
        )
    best = _verified(wanted, which, family, found[0], feasible=True, words=words)
    return replace(best, alternatives=others)


def _intention(wanted: Coefficients, which: str, family: str, proposal: Proposal) -> str:
    layers = "One hidden layer" if len(proposal.layers) == 1 else "Two hidden layers"
    groups = [g for g in wanted.architecture.parameter_groups if g in wanted.trainable]
    trained = "" if which == "ck" else f" with {', '.join(groups)} trained"
    return (
        f"{layers} of {FAMILIES[family].words} for the {which.upper()} coefficients of the "
        f"centered {type(wanted.architecture).__name__}{trained}, at input_norm = "
        f"{wanted.input_norm:g}."
    )


def _depth_reason(wanted: Coefficients, which: str, proposal: Proposal) -> str:
    """Ling 2024, Remark 3.9, and the same for the NTK."""
    _, _, norms, square = names(which)
    values = _named(wanted, which)
    identity = f"{square} = {2 if which == 'ck' else 6} {norms}"
    if len(proposal.layers) == 1:
        vanish = " = 0" if values[square] == 0 else ""
        return f"One layer is enough, since {identity}{vanish}, as in every such network."
    ratio = values[square] / values[norms] if values[norms] else math.inf
    return f"One layer is not enough: it has {identity}, and here the ratio is {ratio:.6g}."


def _verified(
    wanted: Coefficients,
    which: str,
    family: str,
    proposal: Proposal,
    *,
    feasible: bool,
    words: list[str],
) -> Design:
    """Compute the coefficients of the network anew, by derivatives of its kernel."""
    designed = FullyConnected(proposal.activations)
    obtained = coefficients(designed, input_norm=wanted.input_norm)
    target, got = (target_numbers(c, which) for c in (wanted, obtained))
    if not got.error(proposal.numbers(which)) <= _AGREEMENT:
        raise AccuracyError(
            f"the coefficients of {designed!r} are {got} by derivatives of its kernel, but "
            f"{proposal.numbers(which)} by moments"
        )
    least = _SMALL * target.diagonal
    residual = max(abs(a - b) / max(abs(a), least) for a, b in zip(target, got, strict=True))
    verdict = f"Largest relative difference of a coefficient, at infinite width: {residual:.1e}."
    return Design(
        architecture=designed,
        function=wanted.function,
        which=which,
        method=MomentMatching.name,
        input_norm=wanted.input_norm,
        target=_named(wanted, which),
        obtained=_named(obtained, which),
        residual=residual,
        errors={"predicted": target.error(got)},
        feasible=feasible,
        explanation=" ".join([*words, *filter(None, [proposal.note]), verdict]),
        family=family,
    )


def _named(c: Coefficients, which: str) -> dict[str, float]:
    """The coefficients by name; those that vanish up to rounding are zero."""
    shares = target_numbers(c, which)
    return {
        name: float(getattr(c, name)) if share > _ZERO * shares.diagonal else 0.0
        for name, share in zip(names(which), shares, strict=True)
    }
