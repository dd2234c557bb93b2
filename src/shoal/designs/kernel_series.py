r"""Kernels of inputs of one norm as power series in the cosine $\rho$ of their angle.

By Schoenberg's theorem all coefficients are nonnegative. They come from the Hermite coefficients
$c_k$ of the activations: $\mathbb{E}[\varphi(u)\varphi(v)] = \sum_k c_k^2 \lambda^k$ if the
correlation of $u$ and $v$ is $\lambda$, itself a series in $\rho$.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
import torch

from shoal.activations import Activation, ReLU
from shoal.architectures import DEQ, Architecture, FullyConnected, ImplicitNetwork, ResNet
from shoal.checks import integer, real
from shoal.designs.equilibrium_series import equilibrium_series
from shoal.designs.series import (
    Series,
    about,
    composed,
    geometric,
    inverted,
    needed_order,
    product,
)
from shoal.exceptions import AccuracyError
from shoal.gaussian import hermite
from shoal.gaussian.moments import mean_square
from shoal.kernels import kernel_function
from shoal.kernels.deq import group_weights
from shoal.kernels.fixed_points import fixed_variance
from shoal.kernels.fully_connected import layer_factor
from shoal.kernels.resnet import residual_layers

__all__ = ["KernelSeries", "kernel_series"]

_ROUNDING = 1e-14  # a correlation that is smaller is zero
_CONSTANT = 1e-9  # what a correlation must have left to one


@dataclass(frozen=True, eq=False)
class KernelSeries:
    r"""Both kernels of inputs of one norm, $\kappa = \sum_k \kappa_k \rho^k$.

    Attributes:
        ck: The coefficients of the conjugate kernel. shape: (degree + 1,)
        ntk: Those of the NTK. shape: (degree + 1,)
        natural: Hermite coefficients of the last activation at its own scale, whose signs are those
            of a function that is known to be usable. shape: (degree + 1,)
    """

    ck: Series
    ntk: Series
    natural: np.ndarray

    def __call__(self, cosine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate both kernels."""
        powers = np.vander(np.asarray(cosine, dtype=np.float64), len(self.ck), increasing=True)
        return powers @ self.ck, powers @ self.ntk


def kernel_series(
    architecture: Architecture,
    *,
    norm: float = 1.0,
    degree: int = 256,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
) -> KernelSeries:
    r"""The kernels of an architecture as power series in the cosine of the angle.

    Each coefficient is nonnegative and accurate in itself, to about twelve digits if its size is
    not below 1e-30. (Those of an ``ImplicitNetwork`` are accurate to 1e-14 of the diagonal.)

    Args:
        architecture: A ``DEQ``, ``FullyConnected``, ``ResNet`` or ``ImplicitNetwork``.
        norm: The common norm of the inputs.
        degree: The last power.
        trainable: The groups that the NTK counts, as for ``kernel_function``.
        width: As for ``kernel_function``.

    Raises:
        TypeError: If no series is known for the architecture.
        ConvergenceError: If the kernel does not exist.
        AccuracyError: If the kernel hardly depends on the angle.

    Example:
        >>> import shoal
        >>> from shoal.designs import kernel_series
        >>> kernel_series(shoal.FullyConnected([shoal.ReLU()]), degree=4).ck.round(6)
        array([0.159155, 0.25    , 0.079577, 0.      , 0.006631])
    """
    norm = real("norm", norm, above=0.0, below=1e150)
    degree = integer("degree", degree, at_least=2)
    function = kernel_function(architecture, trainable=trainable, width=width)
    return series_of(architecture, norm, degree, function.trainable, width)


@singledispatch
def series_of(
    architecture: Architecture,
    norm: float,  # noqa: ARG001
    degree: int,  # noqa: ARG001
    trainable: frozenset[str],  # noqa: ARG001
    width: int | None,  # noqa: ARG001
) -> KernelSeries:
    """The same for arguments that were checked."""
    raise TypeError(f"no power series is known for the kernel of {type(architecture).__name__}")


@series_of.register
def _(
    architecture: FullyConnected,
    norm: float,
    degree: int,
    trainable: frozenset[str],
    width: int | None,  # noqa: ARG001
) -> KernelSeries:
    """Layer by layer, as in :mod:`shoal.kernels.fully_connected`."""
    start = 1.0 if architecture.norm_gated else norm**2
    variance, ntk, correlation = start, np.zeros(degree + 1), np.zeros(degree + 1)
    correlation[1] = 1.0
    for layer, sigma in enumerate(architecture.activations, start=1):
        factor = layer_factor(architecture, sigma)
        duals = _Duals.at(sigma, variance, float(correlation[0]), degree)
        value, slope = duals(correlation)
        below = variance * correlation if f"layer{layer}" in trainable else 0.0
        ntk = factor * product(ntk + below, slope)
        variance = factor * duals.square
        correlation = factor * value / variance
    gate = norm**2 / start
    ck = gate * variance * correlation
    total = gate * ntk + (ck if "readout" in trainable else 0.0)
    return KernelSeries(ck, total, duals.natural[: degree + 1])


@series_of.register
def _(
    architecture: DEQ,
    norm: float,
    degree: int,
    trainable: frozenset[str],
    width: int | None,
) -> KernelSeries:
    r"""By inverting $\Lambda - \sigma_a^2 D(\Lambda) = \sigma_b^2 r^2 \rho$."""
    phi = architecture.activation
    recurrent, injection = (torch.tensor(v, dtype=torch.float64) for v in _variances(architecture))
    variance = float(fixed_variance(phi, recurrent, injection * norm**2, differentiable=False))
    if variance == 0:
        raise ValueError(f"the kernel of {architecture!r} is zero: nothing can be designed from it")
    at_right_angles = float(kernel_function(architecture)(norm**2, norm**2, 0.0).ck)
    place = float(recurrent) * at_right_angles / variance
    duals = _Duals.at(phi, variance, place, degree)
    share, step = float(recurrent) / variance, 1 - duals.place
    source = float(injection) * norm**2 / variance
    bent = share * duals.coefficients
    correlation = step * inverted(step - bent[1], bent, source, degree)
    correlation[0] = duals.place
    ck, slope = duals(correlation)
    through = product(slope, geometric(float(recurrent) * slope))
    given = np.zeros(degree + 1)
    given[1] = norm**2
    weights = group_weights(architecture, recurrent, injection, width)
    shares = {"readout": ck, "recurrent": product(ck, through), "input": product(given, through)}
    ntk = sum((float(weights[g]) * shares[g] for g in sorted(trainable)), np.zeros(degree + 1))
    return KernelSeries(ck, ntk, duals.natural[: degree + 1])


@series_of.register
def _(
    architecture: ResNet,
    norm: float,
    degree: int,
    trainable: frozenset[str],
    width: int | None,  # noqa: ARG001
) -> KernelSeries:
    """Layer by layer, as in :mod:`shoal.kernels.resnet`."""
    variance, first, ntk = norm**2, 0.0, np.zeros(degree + 1)
    covariance = np.zeros(degree + 1)
    covariance[1] = variance
    for sigma, skip, k, trained in residual_layers(architecture, trainable):
        correlation = covariance / variance
        duals = _Duals.at(sigma, variance, float(correlation[0]), degree)
        value, slope = duals(correlation)
        below = covariance if trained else 0.0
        ntk = skip * ntk + k**2 * product(ntk + below, slope)
        cross = 2 * k * first * duals.natural[0]
        covariance = skip * covariance + k**2 * value
        covariance[0] = max(0.0, covariance[0] + cross)
        variance = skip * variance + cross + k**2 * duals.square
        first = skip * first + k * duals.natural[0]
    return KernelSeries(covariance, ntk, duals.natural[: degree + 1])


@series_of.register
def _(
    architecture: ImplicitNetwork,
    norm: float,
    degree: int,
    trainable: frozenset[str],
    width: int | None,  # noqa: ARG001
) -> KernelSeries:
    """As in :mod:`shoal.kernels.implicit_network`."""
    s = equilibrium_series(architecture.gamma, degree)
    through, one = geometric(s.active), np.arange(degree + 1) == 1
    shares = {
        "readout": s.state,
        "skip": s.feature,
        "recurrent": product(product(s.active, through), s.state),
        "input": product(one, product(s.passed, through) + s.free),
    }
    ntk = sum((shares[g] for g in sorted(trainable)), np.zeros(degree + 1))
    natural = hermite(ReLU(), 1.0, degree).numpy()
    ck, ntk = (norm**2 * series.clip(min=0.0) for series in (s.state + s.feature, ntk))  # rounding
    return KernelSeries(ck, ntk, natural)


def _variances(architecture: DEQ) -> tuple[float, float]:
    return architecture.recurrent_variance, architecture.input_variance


@dataclass(frozen=True, eq=False)
class _Duals:
    r"""The duals of an activation at one variance, about a correlation $p$.

    Attributes:
        variance: Of the activation's input.
        square: The mean square of its output.
        place: $p$.
        natural: The Hermite coefficients.
        coefficients: Those of the dual in $\nu = (\lambda - p) / (1 - p)$.
    """

    variance: float
    square: float
    place: float
    natural: np.ndarray
    coefficients: Series

    @classmethod
    def at(cls, phi: Activation, variance: float, place: float, degree: int) -> "_Duals":
        place = 0.0 if place < _ROUNDING else place
        if not 1 - place > _CONSTANT:
            raise AccuracyError("the kernel does not depend on the angle between inputs")
        natural = hermite(phi, math.sqrt(variance), needed_order(place, degree + 1)).numpy()
        square = float(mean_square(phi, torch.tensor(variance, dtype=torch.float64))[0])
        if square == 0:
            raise ValueError(f"the kernel is zero: {phi!r} vanishes")
        return cls(variance, square, place, natural, about(natural**2, place, degree + 1))

    def __call__(self, correlation: Series) -> tuple[Series, Series]:
        """The duals of the activation and of its derivative."""
        step = 1 - self.place
        inner = correlation / step
        inner[0] = 0.0
        slopes = np.arange(1, len(self.coefficients)) * self.coefficients[1:]
        value = composed(self.coefficients[:-1], inner)
        return value, composed(slopes, inner) / (step * self.variance)
