r"""Layers by their energies, and what the coefficients of a network are in them.

A layer that is centered at the scale $\tau$ of its arguments is $\sigma(\tau\xi) = \sum_{k\ge1} s_k
h_k(\xi)$. With $m_k = \mathbb{E}[\sigma^{(k)}(\tau\xi)]$ and $q =
\mathbb{E}[(\sigma^2)''(\tau\xi)]$, $s_1^2 = \tau^2m_1^2$ and $s_2^2 = \tau^4m_2^2/2$. In energies,
$A_1 = \tau_0^2\alpha_1$, $A_2 = 2\tau_0^4\alpha_2$ and $A_3 = \tau_0^4\alpha_3$, the recursion of
Ling 2024, Theorem 3.8 (corrected) has no powers of scales; for one layer $A_1 = s_1^2$ and $A_2 =
A_3 = s_2^2$.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from shoal.activations import Activation
from shoal.asymptotics import Coefficients
from shoal.kernels.calculi.jets import gradients

TWO_LAYERS = {"ck": (1.0, 1.0, 1.0, 1.0), "ntk": (3.0, 4.0, 5.0, 2.0)}
r"""$n$, $p_1$, $p_2$, $p_3$ in $nA_3/A_1 = p_1w_1 + p_2w_2f$ and $nA_2/A_1 = p_3w_1 + w_2g^2/f$.

Of a first layer of growth $g$ that keeps the norm, and whose linear energy is its share $f$."""
_DIMENSIONS = 4.0  # the largest eigenvalue of $X^TX/\tau_0^2$ for as many samples as dimensions


@dataclass(frozen=True)
class Numbers:
    r"""The coefficients of a centered kernel as energies.

    Attributes:
        own: $\gamma^2$ or $\kappa_*^2$, the kernel of an input with itself.
        linear: $A_1 = \tau_0^2\alpha_1$ or $\tau_0^2\beta_1$.
        norms: $A_2 = 2\tau_0^4\alpha_2$ or $2\tau_0^4\beta_2$.
        square: $A_3 = \tau_0^4\alpha_3$ or $\tau_0^4\beta_3$.
        slant: $\tau_0^4\,\partial_a\partial_c\kappa$, which is not matched but by what freedom is
            left: it is the largest of what vanishes with the dimension.
    """

    own: float
    linear: float
    norms: float
    square: float
    slant: float = 0.0

    @property
    def matched(self) -> tuple[float, float, float, float]:
        """The four numbers that must be matched."""
        return self.own, self.linear, self.norms, self.square

    def differences(self, other: "Numbers") -> tuple[float, ...]:
        r"""Bounds of the parts of $\bar M - \bar M'$, with signs, relative to the norm of $\bar M$.

        In spectral norm, for as many samples as dimensions and inputs $x \sim N(0,
        (\tau_0^2/p)I)$: the shift of the spectrum, $\alpha_1X^\top X$, $\alpha_2\chi\chi^\top$ and
        $\alpha_3(x_i^\top x_j)^2$. Their absolute sum bounds the norm of the whole.
        """
        size = self.own + (_DIMENSIONS - 1) * self.linear
        linear = other.linear - self.linear
        return (
            (other.own - self.own - linear) / size,
            _DIMENSIONS * linear / size,
            (other.norms - self.norms) / size,
            (other.square - self.square) / size,
        )

    def error(self, other: "Numbers") -> float:
        """How much of the kernel is missed, as the sum of :meth:`differences`."""
        return math.fsum(map(abs, self.differences(other)))


@dataclass(frozen=True)
class Energies:
    r"""A layer centered at the scale of its arguments.

    Attributes:
        linear: $s_1^2$.
        square: $s_2^2$.
        total: $\sum_k s_k^2 = \mathbb{E}[\sigma^2]$.
        slopes: $\sum_k k s_k^2 = \tau^2\mathbb{E}[\sigma'^2]$.
        growth: $\tau^2q/2$, the derivative of the total in the logarithm of $\tau^2$.
        third: $s_1s_3$.
    """

    linear: float
    square: float
    total: float
    slopes: float
    growth: float
    third: float = 0.0

    def times(self, factor: float) -> "Energies":
        """The layer times the root of a number."""
        return Energies(*(factor * value for value in vars(self).values()))


@dataclass(frozen=True)
class Proposal:
    """A network that may have the wanted numbers.

    Attributes:
        activations: Its layers.
        layers: Their energies.
        note: What is to be said about it.
    """

    activations: tuple[Activation, ...]
    layers: tuple[Energies, ...]
    note: str = ""

    def numbers(self, which: str) -> Numbers:
        """The coefficients of the network."""
        return network_numbers(self.layers, which)


def network_numbers(layers: Iterable[Energies], which: str) -> Numbers:
    r"""The coefficients of the CK, or of the NTK with all weights trained, by Theorem 3.8."""
    a1 = a4 = b1 = own = variance = 1.0  # of the inputs; their norm cancels
    a2 = a3 = a5 = b2 = b3 = b5 = 0.0
    for layer in layers:
        slope, bend = layer.linear / variance, layer.square / variance**2  # m_1², m_2²/2
        slant = math.sqrt(1.5) * layer.third / variance**2 * a4  # m_1m_3/2 times that of variances
        b5, a5 = slope * (a5 + b5) + slant * (a1 + b1), slope * a5 + slant * a1
        b3, a3 = slope * (a3 + b3) + bend * a1 * (a1 + 2 * b1), slope * a3 + bend * a1**2
        b2, a2 = slope * (a2 + b2) + bend * a4**2, slope * a2 + bend * a4**2
        b1, a1 = slope * (a1 + b1), slope * a1
        a4 *= layer.growth / variance
        own = layer.total + own * layer.slopes / variance
        variance = layer.total
    if which == "ck":
        return Numbers(variance, a1, a2, a3, a5)
    return Numbers(own, b1, b2, b3, b5)


def target_numbers(c: Coefficients, which: str) -> Numbers:
    """The coefficients of the CK or of the NTK as energies; none is negative but by rounding."""
    k, unit = (c.ck if which == "ck" else c.ntk), c.input_norm**2
    linear, norms, square = (max(value, 0.0) for value in (k.alpha1, k.alpha2, k.alpha3))
    return Numbers(k.gamma2, unit * linear, 2 * unit**2 * norms, unit**2 * square)


def kernel_slant(c: Coefficients, which: str) -> float:
    r"""$\tau_0^4\,\partial_a\partial_c\kappa$, by differentiating the kernel function."""
    square = torch.tensor(c.input_norm**2, dtype=torch.float64)
    with torch.enable_grad():
        a = square.clone().requires_grad_()
        inner = torch.zeros_like(square).requires_grad_()
        kernels = c.function(a, square, inner)
        kappa = kernels.ck if which == "ck" else kernels.ntk
        (slope,) = gradients(kappa, inner)
        (slant,) = gradients(slope, a)
    return float(square**2 * slant.detach())


def names(which: str) -> tuple[str, str, str, str]:
    """What the coefficients are called, in the order of :class:`Numbers`."""
    if which == "ck":
        return "gamma2", "alpha1", "alpha2", "alpha3"
    return "kappa2", "beta1", "beta2", "beta3"
