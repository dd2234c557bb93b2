r"""Architectures whose activations are shifted to mean zero (Ling 2024, Remark 3.5).

The high-dimensional theory wants $\mathbb{E}[\varphi(\tilde\tau\xi)] = 0$ where $\tilde\tau$ is the
scale of the activation's own arguments at inputs of norm $\tau_0$. For explicit networks that is
one subtraction per layer. A DEQ's $\tau_*$ depends on the shift, and the shift on $\tau_*$; both
together are one scalar equation, since shifting turns $\mathbb{E}[\varphi^2]$ into a variance:
$$\tau_*^2 = \sigma_a^2 \operatorname{Var}[\varphi(\tau_*\xi)] + \sigma_b^2\tau_0^2.$$
Standard deviations of $\varphi(\tau\xi)$ are $L$-Lipschitz in $\tau$ like $\varphi$ itself, so that
$\tau_*$ exists and is unique if $\sigma_a^2L^2 < 1$, and then $\tau_*^2 \le
\sigma_b^2\tau_0^2/(1 - \sigma_a^2L^2)$.
"""

import math
from contextlib import suppress
from dataclasses import replace
from functools import singledispatch

import torch
from scipy.optimize import brentq

from shoal.activations import Activation, Affine
from shoal.architectures import DEQ, Architecture, FullyConnected, ImplicitNetwork, ResNet
from shoal.checks import real
from shoal.exceptions import AccuracyError, ConvergenceError
from shoal.gaussian import hermite
from shoal.gaussian.moments import mean_square
from shoal.kernels.fixed_points import fixed_variance
from shoal.kernels.fully_connected import layer_factor
from shoal.kernels.resnet import layer_weights
from shoal.settings import in_standard_settings

__all__ = [
    "LARGEST_NORM",
    "SMALLEST_NORM",
    "added_shift",
    "center_activations",
    "centered",
    "norm_of_inputs",
]

_ROUNDING = 1e-14  # a mean that is so small, relative to the root mean square, is zero
_PASSES = 4  # a shift much larger than the spread loses digits, which the next pass recovers
_SAME = 1e-9  # relative difference of what must be one fixed point
_FINEST = 8.9e-16  # relative accuracy of a root
SMALLEST_NORM, LARGEST_NORM = 1e-6, 1e8  # norms for which kinks and tails keep ten digits
_NARROWEST = 1e-8  # scale of a layer's arguments below which a shifted kink loses its digits
_SPAN, _PER_OCTAVE, _AT_ONCE = 40, 16, 64  # octaves, and points in them, where a root is looked for


@in_standard_settings
def centered(architecture: Architecture, tau0: float) -> Architecture:
    r"""The same architecture with every activation shifted to mean zero at its own scale.

    $\varphi$ becomes ``Affine(φ, shift=t)`` with $\mathbb{E}[\varphi(\tilde\tau\xi)] + t = 0$, to
    round-off. Activations that are centered already come back unchanged, and so does the
    architecture if all are. The factor $c_\sigma$ of a ``normalized`` network, and of the first
    layer of a ``ResNet``, is that of the shifted activation. The layers of a centered ``ResNet``
    have one activation each. An ``ImplicitNetwork`` cannot be centered: it has no activation but
    the ReLU.

    Args:
        architecture: A ``DEQ``, ``FullyConnected`` or ``ResNet``.
        tau0: The norm $\tau_0$ of the inputs, from 1e-6 to 1e8.

    Raises:
        TypeError: If no centering is known for the architecture.
        ValueError: If ``tau0`` is out of its range, an activation is constant, or the input
            variance of a DEQ is zero.
        AccuracyError: If the mean cannot be made zero to round-off.
        ConvergenceError: If the equation of the DEQ has no solution, or not the one at which the
            kernels of the centered DEQ are. If $\sigma_a^2 L^2 < 1$ there is one solution;
            otherwise the smallest that is found is taken.

    Example:
        >>> import shoal
        >>> shoal.centered(shoal.FullyConnected([shoal.ReLU()]), tau0=1.0).activations[0]
        Affine(activation=ReLU(), scale=1.0, shift=-0.39894228040143...)
    """
    if not isinstance(architecture, Architecture):
        raise TypeError(f"architecture must be an Architecture, got {architecture!r}")
    return center_activations(architecture, norm_of_inputs(tau0))


def norm_of_inputs(tau0: object) -> float:
    r"""Return $\tau_0$ as a float in the range in which the coefficients are accurate."""
    return real("tau0", real("tau0", tau0, above=0.0), at_least=SMALLEST_NORM, at_most=LARGEST_NORM)


@singledispatch
def center_activations(architecture: Architecture, tau0: float) -> Architecture:  # noqa: ARG001
    """:func:`centered` for one type, its arguments checked."""
    raise TypeError(f"no centering is known for {type(architecture).__name__}")


@center_activations.register
def _(architecture: FullyConnected, tau0: float) -> FullyConnected:
    variance, activations = tau0**2, []
    for layer, sigma in enumerate(architecture.activations):
        shifted = _shifted(f"activations[{layer}]", sigma, variance)
        variance = layer_factor(architecture, shifted) * _square(shifted, variance)
        activations.append(shifted)
    return replace(architecture, activations=tuple(activations))


@center_activations.register
def _(architecture: ResNet, tau0: float) -> ResNet:
    """Layer by layer; where all below are centered, features have no means."""
    variance, activations = tau0**2, []
    for layer, sigma in enumerate(architecture.activations, start=1):
        shifted = _shifted(f"activation[{layer - 1}]", sigma, variance)
        skip, factor = layer_weights(architecture, layer, shifted)
        variance = skip * variance + factor**2 * _square(shifted, variance)
        activations.append(shifted)
    return replace(architecture, activation=tuple(activations))


@center_activations.register
def _(architecture: ImplicitNetwork, tau0: float) -> ImplicitNetwork:  # noqa: ARG001
    raise TypeError(
        f"{architecture!r} cannot be centered, since its activation is always the ReLU; take it as "
        "it is: center=False for equivalents and spectra, method='sphere' for designs"
    )


@center_activations.register
def _(architecture: DEQ, tau0: float) -> DEQ:
    real("input_variance", architecture.input_variance, above=0.0)
    injected = architecture.input_variance * tau0**2
    with suppress(ConvergenceError):  # before centering there may be no fixed point
        if _is_centered(architecture.activation, _kernel_variance(architecture, injected)):
            return architecture
    variance = _centered_variance(architecture, injected)
    result = architecture
    for _ in range(_PASSES):
        shifted = _shifted("activation", result.activation, variance)
        result = replace(architecture, activation=shifted)
        found = _kernel_variance(result, injected)
        if _is_centered(shifted, found):
            return result
        if abs(found - variance) > _SAME * variance:
            raise ConvergenceError(
                f"no unique centering: hidden units have variance {variance:.6g} where the shift "
                f"was found, but {found:.6g} in the kernel of the centered DEQ. Both agree if "
                "recurrent_variance times the squared Lipschitz constant of the activation is "
                "below 1"
            )
        variance = found
    raise AccuracyError(f"{architecture!r} could not be centered to round-off")


def added_shift(before: Activation, after: Activation) -> float:
    """What centering has added to an activation."""
    if after == before or not isinstance(after, Affine):
        return 0.0
    return after.shift - (before.shift if isinstance(before, Affine) else 0.0)


def _shifted(name: str, phi: Activation, variance: float) -> Activation:
    """The activation minus its mean."""
    original = phi
    for _ in range(_PASSES):
        if _is_centered(phi, variance):
            break
        if variance < _NARROWEST**2:
            raise AccuracyError(
                f"{name} cannot be centered: its arguments have a standard deviation of "
                f"{math.sqrt(variance):.3g}, and at least {_NARROWEST:g} is needed"
            )
        phi = _minus(phi, _mean(phi, variance))
    if not _square(phi, variance) > _ROUNDING**2 * _square(original, variance):
        raise ValueError(f"{name} must not be constant, got {original!r}")
    return phi


def _minus(phi: Activation, mean: float) -> Affine:
    if isinstance(phi, Affine):
        return replace(phi, shift=phi.shift - mean)
    return Affine(phi, shift=-mean)


def _is_centered(phi: Activation, variance: float) -> bool:
    return abs(_mean(phi, variance)) <= _ROUNDING * math.sqrt(_square(phi, variance))


def _mean(phi: Activation, variance: float) -> float:
    return float(hermite(phi, variance**0.5, 0))


def _square(phi: Activation, variance: float) -> float:
    return float(mean_square(phi, torch.tensor(variance, dtype=torch.float64))[0])


def _kernel_variance(architecture: DEQ, injected: float) -> float:
    """The variance at which the kernel of the DEQ, as it is, has its fixed point."""
    recurrent = torch.tensor(architecture.recurrent_variance, dtype=torch.float64)
    start = torch.tensor(injected, dtype=torch.float64)
    phi = architecture.activation
    return float(fixed_variance(phi, recurrent, start, differentiable=False))


def _centered_variance(architecture: DEQ, injected: float) -> float:
    r"""Solve $v = \sigma_a^2 \operatorname{Var}[\varphi(\sqrt v \xi)] + \beta$ for $v$."""
    phi, recurrent = architecture.activation, architecture.recurrent_variance

    def excess(variance: float) -> float:
        spread = _square(_minus(phi, _mean(phi, variance)), variance)
        return recurrent * spread + injected - variance

    if architecture.kernel_guaranteed:
        low, high = injected, injected / (1 - architecture.recurrent_gain) * (1 + 1e-9)
    else:
        low, high = _bracket(architecture, injected)
    if excess(low) <= 0:
        return low
    if excess(high) >= 0:  # by rounding
        return high
    return float(brentq(excess, low, high, xtol=1e-300, rtol=_FINEST))


def _bracket(architecture: DEQ, injected: float) -> tuple[float, float]:
    """The first pair of neighbors on a grid of variances between which a solution lies."""
    phi, recurrent = architecture.activation, architecture.recurrent_variance
    for start in range(0, _SPAN * _PER_OCTAVE, _AT_ONCE):
        steps = torch.arange(start, start + _AT_ONCE + 1, dtype=torch.float64)
        grid = injected * (steps / _PER_OCTAVE).exp2()
        spread = mean_square(phi, grid)[0] - hermite(phi, grid.sqrt(), 0)[:, 0] ** 2
        below = (recurrent * spread + injected < grid)[1:]
        if bool(below.any()):
            first = int(below.to(torch.int8).argmax())
            return float(grid[first]), float(grid[first + 1])
    raise ConvergenceError(
        "no centering exists: recurrent_variance times the variance of the activation plus what "
        f"the input injects exceeds all variances from {injected:.4g} to {float(grid[-1]):.4g}"
    )
