r"""Kernels of inputs of one norm as power series in the cosine $\rho$ of their angle.

By Schoenberg's theorem all coefficients are nonnegative. They come from the Hermite coefficients
$c_k$ of the activations: $E[\varphi(u)\varphi(v)] = \sum_k c_k^2 \lambda^k$ if the correlation of
$u$ and $v$ is $\lambda$, itself a series in $\rho$. Nothing is ever subtracted, so each coefficient
has its own relative accuracy, however small it is.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import scipy  # imports its parts when they are first used
import torch

from shoal.activations import Activation
from shoal.architectures import Architecture, ImplicitNetwork
from shoal.core.caches import cached
from shoal.core.checks import integer, real
from shoal.core.exceptions import AccuracyError
from shoal.gaussian import hermite
from shoal.gaussian.moments import mean_square
from shoal.kernels import KernelFunction, kernel_function
from shoal.kernels.recursions import (
    ActivationOutput,
    CellLoop,
    Scalar,
    VectorCalculus,
    network_kernels,
)

Coefficients = np.ndarray

_ROUNDING = 1e-14  # a smaller correlation is zero
_MOST_ORDERS = 20_000  # Hermite coefficients


@dataclass(frozen=True, eq=False)
class KernelSeries:
    r"""Both kernels of inputs of one norm, $\kappa = \sum_k \kappa_k \rho^k$.

    Attributes:
        ck: The coefficients of the conjugate kernel. shape: (degree + 1,)
        ntk: The coefficients of the NTK. shape: (degree + 1,)
        natural: Hermite coefficients of the last activation at its own scale, with signs of a
            function that is known to be usable. shape: (degree + 1,)
    """

    ck: Coefficients
    ntk: Coefficients
    natural: np.ndarray

    def __call__(self, cosine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate both kernels."""
        powers = np.vander(np.asarray(cosine, dtype=np.float64), len(self.ck), increasing=True)
        return powers @ self.ck, powers @ self.ntk


def kernel_series(
    architecture: Architecture | KernelFunction,
    *,
    norm: float = 1.0,
    degree: int = 256,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
) -> KernelSeries:
    r"""The kernels of an architecture as power series in the cosine of the angle.

    Each coefficient is nonnegative and accurate in itself, to about twelve digits if its size is
    not below 1e-30.

    Args:
        architecture: A ``DEQ``, ``FullyConnected``, ``ResNet`` or your own; or its kernel function.
        norm: The common norm of the inputs.
        degree: The last power.
        trainable: Groups of parameters that contribute to the NTK; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.

    Raises:
        TypeError: If no series is known for the architecture.
        ConvergenceError: If the kernel does not exist.
        AccuracyError: If the kernel hardly depends on the angle.

    Example:
        >>> import shoal
        >>> from shoal.designs import kernel_series
        >>> kernel_series(shoal.FullyConnected(["relu"]), degree=4).ck.round(6)
        array([0.159155, 0.25    , 0.079577, 0.      , 0.006631])
    """
    norm = real("norm", norm, above=0.0, below=1e150)
    degree = integer("degree", degree, at_least=2)
    function = kernel_function(architecture, trainable=trainable, width=width)
    if isinstance(function.architecture, ImplicitNetwork):
        raise TypeError("no power series is known for the kernels of an ImplicitNetwork")
    layers = function.architecture.layers(function.width)
    unit = norm**2 if layers.gated else 1.0
    if layers.readout is not None:
        unit *= float(layers.readout.variance)
    square = torch.tensor([norm**2, 0.0], dtype=torch.float64)
    same, across = (function(norm**2, norm**2, square).ck / unit).tolist()
    kernels = network_kernels(layers, PowerSeries(norm, degree, same, across), function.trainable)
    natural = kernels.features.natural
    assert natural is not None  # the last features are those of an activation
    return KernelSeries(kernels.ck.coefficients, kernels.ntk.coefficients, natural)


@dataclass(frozen=True, eq=False)
class Number:
    """A series that is added and multiplied like a number, modulo the next power."""

    coefficients: Coefficients

    def __add__(self, other: "Number | float") -> "Number":
        if isinstance(other, Number):
            return Number(self.coefficients + other.coefficients)
        result = self.coefficients.copy()
        result[0] += other
        return Number(result)

    def __mul__(self, other: "Number | float") -> "Number":
        if isinstance(other, Number):
            return Number(_product(self.coefficients, other.coefficients))
        return Number(float(other) * self.coefficients)

    __rmul__ = __mul__


@dataclass(frozen=True, eq=False)
class _State:
    """Features: their variance, covariance and mean.

    Attributes:
        natural: Hermite coefficients of the activation that made them, if one did.
    """

    variance: float
    covariance: Number
    mean: float = 0.0
    natural: np.ndarray | None = None


@dataclass(frozen=True)
class PowerSeries(VectorCalculus):
    """The calculus of inputs of one norm.

    Attributes:
        norm: The norm of all inputs.
        degree: The last power.
        same: The covariance of the last features for an input with itself, ...
        across: ... and for orthogonal inputs: the equilibrium of a loop at order zero.
    """

    norm: float
    degree: int
    same: float
    across: float

    def start(self, *, gated: bool) -> tuple[_State, float]:
        """The inputs, or their directions."""
        variance, scale = (1.0, self.norm**2) if gated else (self.norm**2, 1.0)
        return _State(variance, Number(variance * (np.arange(self.degree + 1) == 1))), scale

    def covariance(self, state: _State) -> Number:
        """The covariance."""
        return state.covariance

    def combine(self, terms: list[tuple[Scalar, _State]], constant: Scalar = 0.0) -> _State:
        """The weighted sum."""
        variance = sum(float(factor) * state.variance for factor, state in terms)
        (factor, first), *remaining = terms
        total = float(factor) * first.covariance
        for factor, state in remaining:
            total = total + float(factor) * state.covariance
        natural = first.natural if not remaining else None
        return _State(variance + float(constant), total + float(constant), natural=natural)

    def residual(self, below: _State, pushed: _State, skip: float, gain: float) -> _State:
        """The sum of features and a layer's function of them."""
        total = self.combine([(gain**2, pushed), (skip**2, below)])
        cross = 2 * skip * gain * below.mean * pushed.mean
        coefficients = (total.covariance + cross).coefficients
        coefficients[0] = max(0.0, coefficients[0])  # rounding
        mean = skip * below.mean + gain * pushed.mean
        return _State(total.variance + cross, Number(coefficients), mean, pushed.natural)

    def apply_activation(
        self, phi: Activation, state: _State, *, mean: bool
    ) -> ActivationOutput[_State]:
        """Duals of an activation and of its derivative."""
        correlation = state.covariance.coefficients / state.variance
        duals = _duals(phi, state.variance, float(correlation[0]), self.degree)
        value, slope = duals(correlation)
        natural = duals.natural[: self.degree + 1]
        average = float(natural[0]) if mean else 0.0
        return ActivationOutput(
            _State(duals.square, Number(value), average, natural), lambda: Number(slope)
        )

    def fixed_point(self, loop: CellLoop, injected: _State) -> _State:
        """The equilibrium: Newton's method doubles the number of known coefficients.

        The residual vanishes at those, and is nonnegative beyond: nothing cancels.
        """
        recurrent = float(loop.cells[0].weights.variance)
        variance = recurrent * self.same + injected.variance
        if variance == 0:
            raise ValueError("the kernel is zero: nothing can be designed from it")
        product = float(injected.covariance.coefficients[0])
        solution = np.zeros(self.degree + 1)
        solution[0] = recurrent * self.across + product
        degree = 0
        while degree < self.degree:
            turn, slope = loop(self, _State(variance, Number(solution)), injected)
            residual = turn.covariance.coefficients.copy()
            order = min(max(1, 2 * degree), self.degree)
            residual[: degree + 1], residual[order + 1 :] = 0.0, 0.0
            step = Number(residual) * self.geometric(slope)
            solution[degree + 1 : order + 1] = step.coefficients[degree + 1 : order + 1]
            degree = order
        return _State(variance, Number(solution))

    def geometric(self, ratio: Number) -> Number:
        """The series of 1/(1 - f)."""
        f = ratio.coefficients
        result = np.zeros(len(f))
        result[0] = 1 / (1 - f[0])
        for k in range(1, len(f)):
            result[k] = result[0] * (f[1 : k + 1] @ result[k - 1 :: -1][:k])
        return Number(result)


@dataclass(frozen=True, eq=False)
class _DualSeries:
    r"""The duals of an activation at one variance, about a correlation $p$.

    Attributes:
        variance: Variance of the activation's input.
        square: Mean square of its output.
        place: $p$.
        natural: The Hermite coefficients.
        coefficients: Coefficients of the dual in $\nu = (\lambda - p) / (1 - p)$.
    """

    variance: float
    square: float
    place: float
    natural: np.ndarray
    coefficients: Coefficients

    def __call__(self, correlation: Coefficients) -> tuple[Coefficients, Coefficients]:
        """The duals of the activation and of its derivative."""
        step = 1 - self.place
        inner = correlation / step
        inner[0] = 0.0
        slopes = np.arange(1, len(self.coefficients)) * self.coefficients[1:]
        value = _composed(self.coefficients[:-1], inner)
        return value, _composed(slopes, inner) / (step * self.variance)


@cached
def _duals(phi: Activation, variance: float, place: float, degree: int) -> _DualSeries:
    place = 0.0 if place < _ROUNDING else place
    order = degree + 1
    if place:  # as many Hermite coefficients about zero determine those about the place
        order = math.ceil((order + 8 * math.sqrt(order) + 40) / max(1 - place, _ROUNDING))
    if order > _MOST_ORDERS:
        raise AccuracyError(
            f"the kernel hardly depends on the angle: hidden units at right angles are correlated "
            f"to {place:.6g}, and its power series would need {order} Hermite coefficients"
        )
    natural = hermite(phi, math.sqrt(variance), order).numpy()
    square = float(mean_square(phi, torch.tensor(variance, dtype=torch.float64))[0])
    if square == 0:
        raise ValueError(f"the kernel is zero: {phi!r} vanishes")
    return _DualSeries(variance, square, place, natural, _about(natural**2, place, degree + 1))


def _product(f: Coefficients, g: Coefficients) -> Coefficients:
    result: Coefficients = np.convolve(f, g)[: len(f)]
    return result


def _composed(outer: Coefficients, inner: Coefficients) -> Coefficients:
    r"""$\sum_j f_j g^j$ for an inner series without constant term, by Horner's rule."""
    result = np.zeros(len(inner))
    for coefficient in outer[len(inner) - 1 :: -1]:
        result = _product(result, inner)
        result[0] += coefficient
    return result


def _about(f: Coefficients, place: float, degree: int) -> Coefficients:
    r"""The coefficients of $f(p + (1 - p)\nu)$ in powers of $\nu$, for $0 \le p < 1$.

    $\sum_k f_k \binom{k}{j} p^{k-j} (1-p)^j$, binomial probabilities: nothing cancels.
    """
    if place == 0:
        return f[: degree + 1].copy()
    powers, orders = np.arange(degree + 1)[:, None], np.arange(len(f))
    result: Coefficients = scipy.stats.binom.pmf(powers, orders, 1 - place) @ f
    return result
