r"""Architectures whose activations are shifted to mean zero (Ling 2024, Remark 3.5).

The high-dimensional theory needs $\mathbb{E}[\varphi(\tilde\tau\xi)] = 0$ where $\tilde\tau$ is the
scale of the activation's own arguments at inputs of norm $\tau_0$. For explicit networks that is
one subtraction per layer. A DEQ's $\tau_*$ depends on the shift, and the shift on $\tau_*$; both
together are one scalar equation, since shifting turns $\mathbb{E}[\varphi^2]$ into a variance:
$$\tau_*^2 = \sigma_a^2 \operatorname{Var}[\varphi(\tau_*\xi)] + \sigma_b^2\tau_0^2.$$
Standard deviations of $\varphi(\tau\xi)$ are $L$-Lipschitz in $\tau$ like $\varphi$ itself, so that
$\tau_*$ exists and is unique if $\sigma_a^2L^2 < 1$. Around a loop of several layers each is
centered in turn.
"""

import math
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import scipy  # imports its parts when they are first used

from shoal.activations import Activation, Affine
from shoal.architectures import Architecture, ImageArchitecture, ImplicitNetwork, LoopedNetwork
from shoal.architectures.layers import Cell, Layers
from shoal.core.checks import real
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.core.settings import in_standard_settings
from shoal.gaussian import dual, hermite
from shoal.kernels.pairs import loop_variance
from shoal.kernels.recursions import CellLoop

A = TypeVar("A", bound=Architecture)

_ROUNDING = 1e-14  # a mean this small, relative to the root mean square, is zero
_PASSES = 4  # a shift much larger than the spread loses digits, which the next pass recovers
_SAME = 1e-9  # relative difference of two values of one fixed point
_NORMS = 1e-6, 1e8  # norms for which kinks and tails keep ten digits
_NARROWEST = 1e-8  # scale of a layer's arguments below which a shifted kink loses its digits
_OCTAVES = 40  # the range in which a variance is searched


@in_standard_settings
def centered(architecture: A, input_norm: float) -> A:
    r"""Return the architecture with every activation shifted to mean zero at its own scale.

    $\varphi$ becomes ``Affine(φ, shift=t)`` with $\mathbb{E}[\varphi(\tilde\tau\xi)] + t = 0$, to
    round-off. Centered activations, and architectures whose activations are all centered, are
    returned unchanged. The factor $c_\sigma$ of a ``normalized`` network, and of the first layer of
    a ``ResNet``, is computed for the shifted activation. Each layer of a centered ``ResNet`` has
    its own activation. An ``ImplicitNetwork`` cannot be centered: its only activation is the ReLU.

    Args:
        architecture: A ``DEQ``, ``FullyConnected``, ``ResNet``, or custom architecture.
        input_norm: The norm $\tau_0$ of the inputs, from 1e-6 to 1e8.

    Raises:
        TypeError: If no centering is known for the architecture.
        ValueError: If ``input_norm`` is out of its range, an activation is constant, or the input
            variance of a DEQ is zero.
        AccuracyError: If the mean cannot be made zero to round-off.
        ConvergenceError: If the equation of the DEQ has no solution, or only solutions that differ
            from the one for the kernels of the centered DEQ. If $\sigma_a^2 L^2 < 1$, the solution
            is unique; otherwise the smallest one found is used.

    Example:
        >>> import shoal
        >>> shoal.centered(shoal.FullyConnected(["relu"]), input_norm=1.0).activations[0]
        Affine(activation=ReLU(), scale=1.0, shift=-0.3989422804014325)
    """
    if not isinstance(architecture, Architecture):
        raise TypeError(f"architecture must be an Architecture, got {architecture!r}")
    square = norm_of_inputs(input_norm) ** 2
    if isinstance(architecture, ImplicitNetwork):
        raise TypeError(
            f"{architecture!r} cannot be centered, since its activation is always the ReLU; take "
            "it as it is: center=False for equivalents and spectra"
        )
    if isinstance(architecture, LoopedNetwork):
        raise TypeError(
            "a LoopedNetwork cannot be centered, and has no design: its one activation sees "
            "another variance in each iteration. Coefficients, equivalents and spectra take "
            "center=False"
        )
    if isinstance(architecture, ImageArchitecture):
        raise TypeError(
            f"{architecture!r} cannot be centered, since its pixels have variances of their own"
        )
    layers = architecture.layers()
    if layers.injection is None:
        return _shifted_cells(architecture, 1.0 if layers.gated else square, chain=True)
    injected = real("input_variance", float(layers.injection.variance), above=0.0) * square
    injected += float(layers.cells[0].bias_variance)
    variance = _loop_variance(layers, injected)
    result = _shifted_cells(architecture, variance, chain=False)
    actual = loop_variance(CellLoop(result.layers().cells), injected)
    if abs(actual - variance) > _SAME * variance:
        raise ConvergenceError(
            f"no unique centering: hidden units have variance {variance:.6g} where the shift was "
            f"found, but {actual:.6g} in the kernel of the centered network. Both agree if "
            "recurrent_variance times the squared Lipschitz constant of the activation is below 1"
        )
    return result


def norm_of_inputs(input_norm: object) -> float:
    r"""Return $\tau_0$ as a float in the range in which the coefficients are accurate."""
    norm = real("input_norm", input_norm, above=0.0)
    return real("input_norm", norm, at_least=_NORMS[0], at_most=_NORMS[1])


def seen_variance(cell: Cell, variance: float) -> float:
    """The variance of a cell's arguments, for features of a variance."""
    return float(cell.weights.variance) * variance + float(cell.bias_variance)


def entering_variance(layers: Layers, square: float, ck: float) -> float:
    """The variance of the first cell's arguments at inputs of a squared norm, given their CK."""
    first, injection, readout = layers.cells[0], layers.injection, layers.readout
    if injection is None:
        return seen_variance(first, 1.0 if layers.gated else square)
    scale = (1.0 if readout is None else float(readout.variance)) * (
        square if layers.gated else 1.0
    )
    entering = float(injection.variance) * (1.0 if layers.gated else square)
    return seen_variance(first, ck / scale) + entering


def _shifted_cells(architecture: A, variance: float, *, chain: bool) -> A:
    """Center one cell after the other; where all below are, features have no means.

    Args:
        architecture: The architecture.
        variance: The variance of the features that enter a chain, or of the arguments of the
            first activation of a loop.
        chain: Whether it is a chain.
    """
    activations = [cell.activation for cell in architecture.layers().cells]
    for place, name in enumerate(architecture.activation_names):
        cell = architecture.layers().cells[place]
        argument_variance = seen_variance(cell, variance) if chain or place else variance
        activations[place] = _shifted(name, cell.activation, argument_variance)
        architecture = architecture.with_activations(activations)
        cell = architecture.layers().cells[place]  # whose gain may depend on its activation
        square = _square(cell.activation, argument_variance)
        variance = cell.skip**2 * variance + cell.gain**2 * square
    return architecture


def _loop_variance(layers: Layers, injected: float) -> float:
    r"""Solve $v = \sigma_a^2 \operatorname{Var}[\varphi(\sqrt v \xi)] + \beta$ for $v$."""
    recurrent = float(layers.cells[0].weights.variance)

    def excess(variance: float) -> float:
        argument_variance = variance
        for cell, following in pairwise((*layers.cells, None)):
            assert cell is not None
            phi = _minus(cell.activation, _mean(cell.activation, argument_variance))
            features = cell.gain**2 * _square(phi, argument_variance)
            argument_variance = (
                features if following is None else seen_variance(following, features)
            )
        return recurrent * argument_variance + injected - variance

    low = injected
    if excess(low) <= 0:
        return low
    for step in range(4 * _OCTAVES):
        high = injected * 2 ** ((step + 1) / 4)
        if excess(high) < 0:
            return float(scipy.optimize.brentq(excess, low, high, xtol=1e-300, rtol=8.9e-16))
        low = high
    raise ConvergenceError(
        "no centering exists: recurrent_variance times the variance of the activation plus the "
        f"variance that the input injects exceeds all variances from {injected:.4g} to {low:.4g}"
    )


def _shifted(name: str, phi: Activation, variance: float) -> Activation:
    original = phi
    for _ in range(_PASSES):
        mean = _mean(phi, variance)
        if abs(mean) <= _ROUNDING * math.sqrt(_square(phi, variance)):
            break
        if variance < _NARROWEST**2:
            raise AccuracyError(
                f"{name} cannot be centered: its arguments have a standard deviation of "
                f"{math.sqrt(variance):.3g}, and at least {_NARROWEST:g} is needed"
            )
        phi = _minus(phi, mean)
    else:
        raise AccuracyError(f"{name} = {original!r} could not be centered to round-off")
    if not _square(phi, variance) > _ROUNDING**2 * _square(original, variance):
        raise ValueError(f"{name} must not be constant, got {original!r}")
    return phi


def _minus(phi: Activation, mean: float) -> Affine:
    if isinstance(phi, Affine):
        return replace(phi, shift=phi.shift - mean)
    return Affine(phi, shift=-mean)


def _mean(phi: Activation, variance: float) -> float:
    return float(hermite(phi, math.sqrt(variance), 0))


def _square(phi: Activation, variance: float) -> float:
    return float(dual(phi, variance, variance, variance))
