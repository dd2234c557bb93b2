r"""Architectures whose activations are shifted to mean zero (Ling 2024, Remark 3.5).

The high-dimensional theory wants $\mathbb{E}[\varphi(\tilde\tau\xi)] = 0$ where $\tilde\tau$ is the
scale of the activation's own arguments at inputs of norm $\tau_0$. For explicit networks that is
one subtraction per layer. A DEQ's $\tau_*$ depends on the shift, and the shift on $\tau_*$; both
together are one scalar equation, since shifting turns $\mathbb{E}[\varphi^2]$ into a variance:
$$\tau_*^2 = \sigma_a^2 \operatorname{Var}[\varphi(\tau_*\xi)] + \sigma_b^2\tau_0^2.$$
Standard deviations of $\varphi(\tau\xi)$ are $L$-Lipschitz in $\tau$ like $\varphi$ itself, so that
$\tau_*$ exists and is unique if $\sigma_a^2L^2 < 1$, and then $\tau_*^2 \le
\sigma_b^2\tau_0^2/(1 - \sigma_a^2L^2)$. Around a loop of several layers each is centered in turn.
"""

import math
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import scipy  # whose parts are imported where they are first used
import torch

from shoal.activations import Activation, Affine
from shoal.architectures import (
    Architecture,
    Cell,
    ImageArchitecture,
    ImplicitArchitecture,
    ImplicitNetwork,
    Layers,
)
from shoal.core.checks import real
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.core.settings import in_standard_settings
from shoal.gaussian import hermite
from shoal.gaussian.moments import mean_square
from shoal.kernels.calculi.own import loop_variance
from shoal.kernels.recursions import Loop

A = TypeVar("A", bound=Architecture)

_ROUNDING = 1e-14  # a mean that is so small, relative to the root mean square, is zero
_PASSES = 4  # a shift much larger than the spread loses digits, which the next pass recovers
_SAME = 1e-9  # relative difference of what must be one fixed point
_FINEST = 8.9e-16  # relative accuracy of a root
SMALLEST_NORM, LARGEST_NORM = 1e-6, 1e8  # norms for which kinks and tails keep ten digits
_NARROWEST = 1e-8  # scale of a layer's arguments below which a shifted kink loses its digits
_SPAN, _PER_OCTAVE = 40, 16  # octaves, and points in them, where a root is looked for


@in_standard_settings
def centered(architecture: A, input_norm: float) -> A:
    r"""The same architecture with every activation shifted to mean zero at its own scale.

    $\varphi$ becomes ``Affine(φ, shift=t)`` with $\mathbb{E}[\varphi(\tilde\tau\xi)] + t = 0$, to
    round-off. Activations that are centered already come back unchanged, and so does the
    architecture if all are. The factor $c_\sigma$ of a ``normalized`` network, and of the first
    layer of a ``ResNet``, is that of the shifted activation. The layers of a centered ``ResNet``
    have one activation each. An ``ImplicitNetwork`` cannot be centered: it has no activation but
    the ReLU.

    Args:
        architecture: A ``DEQ``, ``FullyConnected``, ``ResNet``, or your own.
        input_norm: The norm $\tau_0$ of the inputs, from 1e-6 to 1e8.

    Raises:
        TypeError: If no centering is known for the architecture.
        ValueError: If ``input_norm`` is out of its range, an activation is constant, or the input
            variance of a DEQ is zero.
        AccuracyError: If the mean cannot be made zero to round-off.
        ConvergenceError: If the equation of the DEQ has no solution, or not the one at which the
            kernels of the centered DEQ are. If $\sigma_a^2 L^2 < 1$ there is one solution;
            otherwise the smallest that is found is taken.

    Example:
        >>> import shoal
        >>> shoal.centered(shoal.FullyConnected(["relu"]), input_norm=1.0).activations[0]
        Affine(activation=ReLU(), scale=1.0, shift=-0.3989422804014325)
    """
    if not isinstance(architecture, Architecture):
        raise TypeError(f"architecture must be an Architecture, got {architecture!r}")
    input_norm = norm_of_inputs(input_norm)
    if isinstance(architecture, ImplicitNetwork):
        raise TypeError(
            f"{architecture!r} cannot be centered, since its activation is always the ReLU; take "
            "it as it is: center=False for equivalents and spectra, method='sphere' for designs"
        )
    if isinstance(architecture, ImageArchitecture):
        raise TypeError(
            f"{architecture!r} cannot be centered, since its pixels have variances of their own"
        )
    layers = architecture.layers()
    if layers.injection is None:
        return _centered_cells(architecture, 1.0 if layers.gated else input_norm**2)
    return _centered_loop(architecture, input_norm)


def norm_of_inputs(input_norm: object) -> float:
    r"""Return $\tau_0$ as a float in the range in which the coefficients are accurate."""
    return real(
        "input_norm",
        real("input_norm", input_norm, above=0.0),
        at_least=SMALLEST_NORM,
        at_most=LARGEST_NORM,
    )


def added_shift(before: Activation, after: Activation) -> float:
    """What centering has added to an activation."""
    if after == before or not isinstance(after, Affine):
        return 0.0
    return after.shift - (before.shift if isinstance(before, Affine) else 0.0)


def _centered_cells(architecture: A, variance: float, *, argument: bool = False) -> A:
    """Center one cell after the other; where all below are, features have no means.

    Args:
        architecture: The architecture.
        variance: That of what enters the first cell, or ...
        argument: ... of what its activation sees.
    """
    activations = [cell.activation for cell in architecture.layers().cells]
    for place, name in enumerate(architecture.activation_names):
        cell = architecture.layers().cells[place]
        seen = variance if argument and not place else _seen(cell, variance)
        activations[place] = _shifted(name, cell.activation, seen)
        architecture = architecture.with_activations(activations)
        cell = architecture.layers().cells[place]  # whose gain may depend on its activation
        variance = cell.skip**2 * variance + cell.gain**2 * _square(cell.activation, seen)
    return architecture


def _centered_loop(architecture: A, input_norm: float) -> A:
    """Center all cells of a loop at the equilibrium that they have when they are centered."""
    layers = architecture.layers()
    injected = _injected(layers, input_norm)
    with suppress(ConvergenceError):  # before centering there may be no fixed point
        if _is_centered_loop(layers, loop_variance(Loop(layers.cells), injected)):
            return architecture
    variance = _centered_variance(architecture, injected)
    result = architecture
    for _ in range(_PASSES):
        result = _centered_cells(result, variance, argument=True)
        layers = result.layers()
        found = loop_variance(Loop(layers.cells), injected)
        if _is_centered_loop(layers, found):
            return result
        if abs(found - variance) > _SAME * variance:
            raise ConvergenceError(
                f"no unique centering: hidden units have variance {variance:.6g} where the shift "
                f"was found, but {found:.6g} in the kernel of the centered network. Both agree if "
                "recurrent_variance times the squared Lipschitz constant of the activation is "
                "below 1"
            )
        variance = found
    raise AccuracyError(f"{architecture!r} could not be centered to round-off")


def _injected(layers: Layers, input_norm: float) -> float:
    """The variance that the input, and biases, add to what the first cell sees."""
    assert layers.injection is not None
    given = real("input_variance", float(layers.injection.variance), above=0.0) * input_norm**2
    return given + float(layers.cells[0].bias_variance)


def _seen(cell: Cell, variance: float) -> float:
    """The variance of what the activation of a cell sees."""
    return float(cell.weights.variance) * variance + float(cell.bias_variance)


def _around(
    layers: Layers, variance: float, *, center: bool
) -> tuple[list[tuple[Activation, float]], float]:
    """Once around a loop: its activations with the variances that they see, and that of features.

    Args:
        layers: The loop.
        variance: What the first activation sees.
        center: Whether means are subtracted on the way.
    """
    passed = []
    for place, cell in enumerate(layers.cells):
        seen = _seen(cell, variance) if place else variance
        phi = cell.activation
        phi = _minus(phi, _mean(phi, seen)) if center else phi
        passed.append((phi, seen))
        variance = cell.gain**2 * _square(phi, seen)
    return passed, variance


def _is_centered_loop(layers: Layers, variance: float) -> bool:
    return all(_is_centered(*each) for each in _around(layers, variance, center=False)[0])


def _centered_variance(architecture: Architecture, injected: float) -> float:
    r"""Solve $v = \sigma_a^2 \operatorname{Var}[\varphi(\sqrt v \xi)] + \beta$ for $v$."""
    layers = architecture.layers()
    recurrent = float(layers.cells[0].weights.variance)

    def excess(variance: float) -> float:
        return recurrent * _around(layers, variance, center=True)[1] + injected - variance

    if isinstance(architecture, ImplicitArchitecture) and not layers.biased:
        gain = architecture.recurrent_gain
        if gain < 1:
            return _root(excess, injected, injected / (1 - gain) * (1 + 1e-9))
    steps = (injected * 2 ** (step / _PER_OCTAVE) for step in range(_SPAN * _PER_OCTAVE + 1))
    last = next(steps)
    for variance in steps:
        if excess(variance) < 0:
            return _root(excess, last, variance)
        last = variance
    raise ConvergenceError(
        "no centering exists: recurrent_variance times the variance of the activation plus what "
        f"the input injects exceeds all variances from {injected:.4g} to {last:.4g}"
    )


def _root(excess, low: float, high: float) -> float:  # type: ignore[no-untyped-def]
    if excess(low) <= 0:
        return low
    if excess(high) >= 0:  # by rounding
        return high
    return float(scipy.optimize.brentq(excess, low, high, xtol=1e-300, rtol=_FINEST))


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
