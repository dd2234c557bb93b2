r"""One hidden layer of scaled hard tanh, $\sigma(x) = a \min(\max(x, -c), c)$ (Ling 2024, 3.10).

With $h = c/\tau_0$, $e = \operatorname{erf}(h/\sqrt2)$ and the Gaussian density $g$, in units of
$a^2\tau_0^2$: $s_1^2 = e^2$, $s_2 = 0$, $\mathbb{E}[\sigma^2] = e - 2hg(h) + h^2(1 - e)$ and
$\tau_0^2\mathbb{E}[\sigma'^2] = e$. So the ratio of the diagonal to the linear part decides on $h$:

* CK: $\gamma^2/(\tau_0^2\alpha_1) = \mathbb{E}[\sigma^2]/s_1^2$ falls from $\pi/2$, the sign
  function at $h \to 0$, to 1, the linear function at $h \to \infty$.
* NTK: $\kappa^2/(\tau_0^2\beta_1) = (\mathbb{E}[\sigma^2] + e)/(2s_1^2)$ falls from infinity, since
  the sign function has no slope, to 1.

So every odd NTK but a linear one has its hard tanh, and a CK has if its ratio is below $\pi/2$.
Those with a threshold below 0.001 standard deviations are left out: no network of finite width
tells them from the sign function, whose derivative is zero.
"""

import math

import scipy  # whose parts are imported where they are first used

from shoal.activations import Affine, HardTanh
from shoal.designs.energies import Energies, Numbers, Proposal, names, network_numbers

_ODD = 1e-13  # an even part so small, relative to the diagonal, is rounding
_LEAST = 1e-3  # thresholds in standard deviations; below, it is a sign function in practice
_LARGEST = 8.5  # beyond, only rounding is left
_LINEAR = 1e-12  # a ratio so near to one is rounding
_STEEPEST = 0.05  # the least threshold of a nearest design
_CK_SUPREMUM = math.pi / 2


def _layer(h: float) -> Energies:
    """The energies for a threshold, in units of the squared slope."""
    density = math.exp(-(h**2) / 2) / math.sqrt(2 * math.pi)
    inside, outside = math.erf(h / math.sqrt(2)), math.erfc(h / math.sqrt(2))
    if h > 1e-2:
        growth = inside - 2 * h * density
    else:  # the same without cancellation
        growth = 2 * h**3 * density / 3 * (1 + h**2 / 5 + h**4 / 35)
    third = -2 * h * density * inside / math.sqrt(6)
    return Energies(inside**2, 0.0, growth + h**2 * outside, inside, growth, third)


def ratio(h: float, which: str) -> float:
    """The diagonal over the linear part, for a threshold in standard deviations."""
    numbers = network_numbers([_layer(h)], which)
    return numbers.own / numbers.linear


def violation(target: Numbers, which: str) -> str:
    """Why no hard tanh has these numbers; empty if one has."""
    own, linear, norms, square = names(which)
    even = max(target.norms, target.square) / target.own
    if even > _ODD:
        return (
            f"A hard tanh is odd, so {norms} and {square} must vanish, but they make up "
            f"{even:.2g} of the diagonal."
        )
    if not target.linear > 0:
        return f"{linear} must be positive, and is {target.linear:.2g}."
    value, end = target.own / target.linear, _CK_SUPREMUM if which == "ck" else math.inf
    if not value > 1 + _LINEAR:
        return f"{own} / (input_norm² {linear}) must be above 1, as of a linear layer, and is 1."
    if not value < end:
        return (
            f"{own} / (input_norm² {linear}) must be below pi/2 = 1.5708, the value of the sign "
            f"function, and is {value:.6g}, {value / end - 1:.2%} more."
        )
    most = ratio(_LEAST, which)
    if value > most:
        return (
            f"{own} / (input_norm² {linear}) must be at most {most:.6g}, the value of a hard tanh "
            f"that bends at {_LEAST} standard deviations, and is {value:.6g}."
        )
    return ""


def solutions(target: Numbers, input_norm: float, which: str) -> list[Proposal]:
    """The hard tanh that has these numbers; none if :func:`violation` names a reason."""
    if violation(target, which):
        return []
    wanted = target.own / target.linear

    def excess(logarithm: float) -> float:
        return ratio(math.exp(logarithm), which) - wanted

    ends = math.log(_LEAST), math.log(_LARGEST)
    h = math.exp(float(scipy.optimize.brentq(excess, *ends, xtol=1e-15, rtol=8.9e-16)))
    return [_proposal(h, target.linear, input_norm, which)]


def nearest(target: Numbers, input_norm: float, which: str) -> Proposal:
    """The hard tanh that misses least of the kernel."""

    def miss(parameters: list[float]) -> tuple[float, ...]:
        linear, h = parameters
        layer = _scaled(math.exp(h), linear, which)
        return target.differences(network_numbers([layer], which))

    start = [max(target.linear, 1e-3 * target.own), 0.0]
    bounds = ([0.0, math.log(_STEEPEST)], [math.inf, math.log(_LARGEST)])
    found = scipy.optimize.least_squares(
        miss, start, bounds=bounds, x_scale=[start[0], 1.0], xtol=1e-12
    )
    linear, h = map(float, found.x)
    return _proposal(math.exp(h), max(linear, 1e-9 * target.own), input_norm, which)


def _scaled(h: float, linear: float, which: str) -> Energies:
    """The energies for a threshold and the linear part of the network."""
    unit = _layer(h)
    return unit.times(linear / network_numbers([unit], which).linear)


def _proposal(h: float, linear: float, input_norm: float, which: str) -> Proposal:
    layer = _scaled(h, linear, which)
    slope = math.sqrt(layer.slopes / math.erf(h / math.sqrt(2))) / input_norm
    return Proposal((Affine(HardTanh(h * input_norm), scale=slope),), (layer,))
