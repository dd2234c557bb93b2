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

Eliminating $w_2$ leaves a cubic in $w_1$. The diagonal is then no longer free. For the CK of a
rectifier DEQ it fits by itself, since $\gamma^2 - A_1 = (\pi-2)A_2$ on both sides; the NTK has no
such identity, and two layers miss $\kappa^2$.

Networks of a family are found by least squares on the part of the kernel that they miss, from
several starts: where nothing is missed, the design is feasible, and elsewhere it is the nearest.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar, Literal, NamedTuple

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
# logarithms, in standard deviations: nearly a sign function, and nearly linear
_THRESHOLDS = math.log(0.01), math.log(8.5)
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
        sensitivity: How far errors of the target move it.
    """

    activations: tuple[Activation, ...]
    layers: tuple[Energies, ...]
    sensitivity: float

    @property
    def shares(self) -> tuple[float, ...]:
        """The ratio $w$ of each layer."""
        return tuple(layer.square / layer.linear for layer in self.layers)

    @property
    def note(self) -> str:
        """A remark for the explanation."""
        steep = [i for i, w in enumerate(self.shares, start=1) if w > _ORDINARY * (1 + 1e-12)]
        layers = " and ".join(map(str, steep))
        return f"The left slope is negative in layer {layers}." if steep else ""

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


class Family(NamedTuple):
    """Networks of one kind, by a shape for each layer and the size of the linear part.

    Attributes:
        words: Its name in explanations.
        limits: Coefficients that it can have.
        unit: Energies of a layer of some shape, at any scale.
        activation: The activation of such a layer, at its scale and that of its arguments.
        ranges: Shapes of solutions, and of the nearest network.
        starts: Angles in these ranges from which networks are searched.
    """

    words: str
    limits: str
    unit: Callable[[float], Energies]
    activation: Callable[[float, Energies, float], Activation]
    ranges: tuple[tuple[float, float], tuple[float, float]]
    starts: tuple[tuple[float, ...], ...]


def _clipped(logarithm: float) -> Energies:
    """A hard tanh, by the logarithm of its threshold."""
    h = math.exp(logarithm)
    density = math.exp(-(h**2) / 2) / math.sqrt(2 * math.pi)
    inside, outside = math.erf(h / math.sqrt(2)), math.erfc(h / math.sqrt(2))
    growth = inside - 2 * h * density
    return Energies(inside**2, 0.0, growth + h**2 * outside, inside, growth)


def _hard_tanh(logarithm: float, layer: Energies, tau: float) -> Affine:
    h = math.exp(logarithm)
    return Affine(
        HardTanh(h * tau), scale=math.sqrt(layer.slopes / _clipped(logarithm).slopes) / tau
    )


def _bent(w: float) -> Energies:
    """A leaky rectifier, by its $w$."""
    return Energies(1.0, w, 1 + _EXCESS * w, 1 + math.pi * w, 1 + _EXCESS * w)


def _rectifier(w: float, layer: Energies, tau: float) -> Affine:
    straight = math.sqrt(layer.linear) / tau
    bent = straight * math.sqrt(math.pi * w)
    right, left = straight + bent, straight - bent
    return Affine(LeakyReLU(left / right), scale=right, shift=-bent * tau * math.sqrt(2 / math.pi))


FAMILIES: dict[str, Family] = {
    "hard_tanh": Family(
        "hard tanh",
        "A hard tanh is odd: {norms} and {square} vanish; and {diagonal} is larger than "
        "input_norm² {linear}, for the CK by a factor of at most pi/2.",
        _clipped,
        _hard_tanh,
        (_THRESHOLDS, _THRESHOLDS),
        ((0.9,),),
    ),
    "leaky_relu": Family(
        "leaky rectifiers",
        "Leaky rectifiers that have {linear}, {norms} and {square} have no choice of {diagonal}.",
        _bent,
        _rectifier,
        ((0.0, math.inf), (0.0, _ORDINARY)),
        ((0.0,), (0.5,), *product((0.2, 1.0), repeat=2)),
    ),
}
"""The families in the order in which they are tried: the simplest networks first."""


def searched(
    family: Family, target: Numbers, input_norm: float, which: str, within: tuple[float, float]
) -> list[Proposal]:
    """Networks of shapes in a range that miss least of the kernel, by least squares."""
    low, high = within

    def shapes(angles: Iterable[float]) -> list[float]:
        bounded = math.isfinite(high)
        return [low + ((high - low) * math.sin(v) ** 2 if bounded else v * v) for v in angles]

    def layers(parameters: Sequence[float]) -> list[Energies]:
        root, *angles = parameters
        units = [family.unit(shape) for shape in shapes(angles)]
        *first, last = (unit.times(input_norm**2 / unit.total) for unit in units)
        linear = max(root * root, 1e-9 * target.diagonal)
        return [*first, last.times(linear / network_numbers([*first, last], which).linear)]

    def miss(parameters: Sequence[float]) -> tuple[float, ...]:
        return target.differences(network_numbers(layers(parameters), which))

    proposals = []
    for angles in family.starts:
        start = (math.sqrt(max(target.linear, 1e-3 * target.diagonal)), *angles)
        tight = dict.fromkeys(("xtol", "ftol", "gtol"), 1e-15)
        fit = scipy.optimize.least_squares(miss, start, method="lm", **tight)
        parameters = fit.x.tolist()
        energies = layers(parameters)
        scales = (input_norm, *(math.sqrt(layer.total) for layer in energies[:-1]))
        activations = map(family.activation, shapes(parameters[1:]), energies, scales)
        proposals.append(
            Proposal(tuple(activations), tuple(energies), float(np.linalg.cond(fit.jac)))
        )
    return proposals


def solutions(family: Family, target: Numbers, input_norm: float, which: str) -> list[Proposal]:
    """Networks that have the numbers, of as few layers as possible.

    Those without negative slopes are first, and of these the one that errors of the target move
    least.
    """
    networks: list[Proposal] = []
    for proposal in searched(family, target, input_norm, which, family.ranges[0]):
        pairs = zip(target, proposal.numbers(which), strict=True)
        met = all(abs(a - b) <= _SAME * target.diagonal for a, b in pairs)
        if met and not any(np.allclose(proposal.shares, other.shares) for other in networks):
            networks.append(proposal)
    least = min((len(proposal.layers) for proposal in networks), default=0)
    shallow = [proposal for proposal in networks if len(proposal.layers) == least]
    return sorted(shallow, key=lambda p: (max(p.shares) > _ORDINARY * (1 + 1e-12), p.sensitivity))


@dataclass(frozen=True, kw_only=True)
class MomentMatching:
    r"""One or two hidden layers with the high-dimensional coefficients of a network.

    The architecture is centered first (see ``coefficients``). Matched are $\gamma^2, \alpha_1,
    \alpha_2, \alpha_3$ of the CK, or $\kappa_*^2, \beta_1, \beta_2, \beta_3$ of the NTK with all
    weights of the designed network trained. Then the kernel matrices of both agree on
    high-dimensional Gaussian mixtures. If no network of the family has the coefficients, the
    nearest one is returned with ``feasible=False``.

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
        kernel = coefficients(function, input_norm=input_norm)
        if not kernel.center:
            raise ValueError(
                f"designs by moments are for networks without biases, got {kernel.architecture!r}; "
                "method='sphere' designs for one norm of the inputs"
            )
        target, norm = target_numbers(kernel, which), kernel.input_norm
        if target.diagonal == 0:
            raise ValueError(f"the kernel is zero: {kernel.architecture} has an activation of zero")
        tried = [self.family] if self.family is not None else list(FAMILIES)
        for name in tried:
            if networks := solutions(FAMILIES[name], target, norm, which):
                return _feasible(kernel, which, name, networks)
        proposals = [
            (target.error(proposal.numbers(which)), name, proposal)
            for name in tried
            for proposal in searched(FAMILIES[name], target, norm, which, FAMILIES[name].ranges[1])
        ]
        least = min(error for error, _, _ in proposals)
        error, best, nearest = next(one for one in proposals if one[0] <= 1.001 * least)
        limits = dict(zip(("diagonal", "linear", "norms", "square"), names(which), strict=True))
        words = [
            "Not feasible.",
            *(FAMILIES[name].limits.format(**limits) for name in tried),
            "Nearest to it:",
            _intention(kernel, which, best, nearest),
            f"It is predicted to miss at most {error:.1e} of the kernel matrix, in spectral "
            "norm, for as many isotropic inputs as dimensions, all of norm input_norm; varying "
            "norms add to it, see gap. method='sphere' has the kernel for inputs of one norm.",
        ]
        return _verified(kernel, which, best, nearest, feasible=False, words=words)


def _feasible(kernel: Coefficients, which: str, family: str, networks: list[Proposal]) -> Design:
    words = [
        _intention(kernel, which, family, networks[0]),
        _depth_reason(kernel, which, networks[0]),
    ]
    alternatives = tuple(
        _verified(kernel, which, family, proposal, feasible=True, words=words)
        for proposal in networks[1:]
    )
    if alternatives:
        words.append(
            f"There are {len(networks)} such networks; this is the one that errors of the target "
            "move least, and the other is in alternatives."
        )
    best = _verified(kernel, which, family, networks[0], feasible=True, words=words)
    return replace(best, alternatives=alternatives)


def _intention(kernel: Coefficients, which: str, family: str, proposal: Proposal) -> str:
    layers = "One hidden layer" if len(proposal.layers) == 1 else "Two hidden layers"
    groups = [g for g in kernel.architecture.parameter_groups if g in kernel.trainable]
    trained = "" if which == "ck" else f" with {', '.join(groups)} trained"
    return (
        f"{layers} of {FAMILIES[family].words} for the {which.upper()} coefficients of the "
        f"centered {type(kernel.architecture).__name__}{trained}, at input_norm = "
        f"{kernel.input_norm:g}."
    )


def _depth_reason(kernel: Coefficients, which: str, proposal: Proposal) -> str:
    """Ling 2024, Remark 3.9, and the same for the NTK."""
    _, _, norms, square = names(which)
    values = _named(kernel, which)
    identity = f"{square} = {2 if which == 'ck' else 6} {norms}"
    if len(proposal.layers) == 1:
        vanish = " = 0" if values[square] == 0 else ""
        return f"One layer is enough, since {identity}{vanish}, as in every such network."
    ratio = values[square] / values[norms] if values[norms] else math.inf
    return f"One layer is not enough: it has {identity}, and here the ratio is {ratio:.6g}."


def _verified(
    kernel: Coefficients,
    which: str,
    family: str,
    proposal: Proposal,
    *,
    feasible: bool,
    words: list[str],
) -> Design:
    """Compute the coefficients of the network anew, by derivatives of its kernel."""
    designed = FullyConnected(proposal.activations)
    obtained = coefficients(designed, input_norm=kernel.input_norm)
    target, got = (target_numbers(c, which) for c in (kernel, obtained))
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
        function=kernel.function,
        which=which,
        method=MomentMatching.name,
        input_norm=kernel.input_norm,
        target=_named(kernel, which),
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
