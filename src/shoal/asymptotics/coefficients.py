r"""The coefficients of high-dimensional equivalents.

One identity is behind all of them. In high dimension, norms concentrate at $\tau_0$ and inner
products at zero, so a kernel $\kappa(a, b, c)$ is its expansion at $(\tau_0^2, \tau_0^2, 0)$, and
its diagonal is $\kappa(\tau_0^2, \tau_0^2, \tau_0^2)$: $\alpha_1 = \kappa_c$, $\alpha_2 =
\kappa_{ab}$, $\alpha_3 = \tfrac12\kappa_{cc}$, for every architecture and all trained groups.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from shoal.activations import Activation, Affine
from shoal.architectures import Architecture, ImplicitArchitecture, ImplicitNetwork, LoopedNetwork
from shoal.asymptotics.centering import (
    centered,
    entering_variance,
    norm_of_inputs,
    seen_variance,
)
from shoal.core.checks import flag
from shoal.core.settings import in_standard_settings
from shoal.gaussian import moments
from shoal.kernels import KernelFunction, Kernels, kernel_function


@dataclass(frozen=True)
class KernelCoefficients:
    r"""One kernel for high-dimensional inputs of norm about $\tau_0$.

    Attributes:
        gamma2: $\gamma^2$, the kernel of an input with itself.
        alpha1: $\alpha_1$, its derivative in $c$.
        alpha2: $\alpha_2$, its mixed derivative in $a$ and $b$.
        alpha3: $\alpha_3$, half its second derivative in $c$.
        offset: $\kappa_0$, the kernel of orthogonal inputs.
        slope: $\kappa_a$, its derivative in one squared norm.
        bend: $\kappa_{aa}$, its second derivative in it.
    """

    gamma2: float
    alpha1: float
    alpha2: float
    alpha3: float
    offset: float = 0.0
    slope: float = 0.0
    bend: float = 0.0


def _coefficient_property(kernel: str, name: str) -> property:
    """The paper's name for a coefficient of one of the kernels."""

    def value(self: "Coefficients") -> float:
        result: float = getattr(getattr(self, kernel), name)
        return result

    value.__doc__ = f"``{kernel}.{name}``."
    return property(value)


@dataclass(frozen=True)
class Coefficients:
    r"""The kernels of an architecture for high-dimensional inputs of norm about $\tau_0$.

    For $i \ne j$ and $\chi_i = \|x_i\|^2 - \tau_0^2$, the CK is approximately
    $$\kappa_0 + \kappa_a(\chi_i + \chi_j) + \tfrac12\kappa_{aa}(\chi_i^2 + \chi_j^2)
    + \alpha_1 x_i^\top x_j + \alpha_2\chi_i\chi_j + \alpha_3 (x_i^\top x_j)^2$$
    and $\gamma^2$ on the diagonal. The NTK has the same form; Ling 2024 calls its coefficients
    $\beta$ and $\kappa_*^2$. Where all layers are centered, the first three terms vanish.

    The papers' names are there as properties: ``gamma2``, ``alpha1`` to ``alpha3`` of the CK,
    ``kappa2``, ``beta1`` to ``beta3`` of the NTK, and ``ck_offset``, ``ntk_offset`` and so on.

    Attributes:
        function: The kernels; its architecture is centered if ``center``.
        input_norm: The norm $\tau_0$ of the inputs.
        center: Whether the kernels of orthogonal inputs of norm $\tau_0$ vanish: the architecture
            was centered, and has no biases.
        tau: $\tau_*$, the standard deviation of the last activation's arguments (their root mean
            square for an ``ImplicitNetwork``, where they have a mean).
        shift: Constant that centering added to the last activation.
        alpha4: $\alpha_4$, the derivative in $\tau_0^2$ of $\tau_*^2$ for an implicit architecture,
            and of $\gamma^2$ for an explicit one.
        ck: The coefficients of the CK.
        ntk: The coefficients of the NTK.
    """

    function: KernelFunction
    input_norm: float
    center: bool
    tau: float
    shift: float
    alpha4: float
    ck: KernelCoefficients
    ntk: KernelCoefficients

    gamma2 = _coefficient_property("ck", "gamma2")
    alpha1 = _coefficient_property("ck", "alpha1")
    alpha2 = _coefficient_property("ck", "alpha2")
    alpha3 = _coefficient_property("ck", "alpha3")
    kappa2 = _coefficient_property("ntk", "gamma2")
    beta1 = _coefficient_property("ntk", "alpha1")
    beta2 = _coefficient_property("ntk", "alpha2")
    beta3 = _coefficient_property("ntk", "alpha3")
    ck_offset = _coefficient_property("ck", "offset")
    ck_slope = _coefficient_property("ck", "slope")
    ck_bend = _coefficient_property("ck", "bend")
    ntk_offset = _coefficient_property("ntk", "offset")
    ntk_slope = _coefficient_property("ntk", "slope")
    ntk_bend = _coefficient_property("ntk", "bend")

    @property
    def architecture(self) -> Architecture:
        """The architecture of these kernels."""
        return self.function.architecture

    @property
    def trainable(self) -> frozenset[str]:
        """Groups of parameters that contribute to the NTK."""
        return self.function.trainable

    @property
    def width(self) -> int | None:
        """The width, where the NTK depends on it and it was given."""
        return self.function.width

    def __str__(self) -> str:
        """The numbers as a table."""
        groups = [g for g in self.architecture.parameter_groups if g in self.trainable]
        kind = "centered" if self.center else "not centered"
        names = {
            "diagonal": "gamma2",
            "inner product": "alpha1",
            "norms": "alpha2",
            "inner product squared": "alpha3",
        }
        if not self.center:
            names |= {"offset": "offset", "slope in a norm": "slope", "bend in a norm": "bend"}
        lines = [f"{'':21} {'CK':>12} {'NTK':>12}"]
        lines += [
            f"{text:21} {getattr(self.ck, name):>12.6g} {getattr(self.ntk, name):>12.6g}"
            for text, name in names.items()
        ]
        head = (
            f"{type(self.architecture).__name__}, {kind}, input_norm = {self.input_norm:g}, "
            f"trained: {', '.join(groups)}",
            f"tau = {self.tau:.6g}, shift = {self.shift:.6g}, alpha4 = {self.alpha4:.6g}",
        )
        return "\n".join((*head, *lines))


@in_standard_settings
def coefficients(
    architecture: Architecture | KernelFunction,
    *,
    input_norm: float,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    center: bool = True,
) -> Coefficients:
    r"""Return the coefficients of an architecture's high-dimensional equivalents.

    Args:
        architecture: An architecture with a kernel; it is centered first (see
            :func:`~shoal.asymptotics.centered`).
        input_norm: The norm $\tau_0$ of the inputs, from 1e-6 to 1e8;
            $\operatorname{tr} C^\circ/p = \tau_0^2$.
        trainable: Names out of ``architecture.parameter_groups``, for the NTK; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        center: Whether to center the architecture first.

    Raises:
        TypeError: If no kernel or centering is known for the architecture.
        ValueError: If an argument is out of its range.
        ConvergenceError: If a DEQ, or its centered version, has no kernel.

    Example:
        >>> import shoal
        >>> deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
        >>> c = shoal.coefficients(deq, input_norm=1.0, trainable={"readout", "recurrent"})
        >>> f"{c.alpha1:.6f} {c.alpha2:.6f} {c.alpha3:.6f} {c.beta3:.6f}"
        '0.210526 0.035957 0.069190 0.080115'
    """
    input_norm = norm_of_inputs(input_norm)
    flag("center", center)
    function = kernel_function(architecture, trainable=trainable, width=width)
    plain = function.architecture
    if plain.ignores_input:
        raise ValueError("input_variance must be > 0, got 0")
    chosen = centered(plain, input_norm) if center else plain
    function = replace(function, architecture=chosen, variances=())
    vanishing = center and not chosen.layers().biased
    square = torch.tensor(input_norm**2, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        diagonal = function.diagonal(square)
        (growth,) = _gradients(diagonal.ck, square)
    tau, growth_of_argument = _last_argument(
        function, square.item(), diagonal.ck.item(), growth.item()
    )
    implicit = isinstance(chosen, ImplicitArchitecture)
    shift = 0.0
    if center:
        before, after = (network.layers().cells[-1] for network in (plain, chosen))
        shift = _shift(after.activation) - _shift(before.activation)
    return Coefficients(
        function,
        input_norm,
        vanishing,
        tau,
        shift,
        growth_of_argument if implicit else growth.item(),
        *_expanded(function, input_norm, diagonal, vanishing),
    )


def _expanded(
    function: KernelFunction, input_norm: float, diagonal: Kernels, vanishing: bool
) -> list[KernelCoefficients]:
    """The expansions of both kernels at inputs of one norm and a right angle, by autograd."""
    square = torch.tensor(input_norm**2, dtype=torch.float64)
    results = []
    with torch.enable_grad():
        a, b = (square.clone().requires_grad_() for _ in range(2))
        c = torch.zeros_like(square).requires_grad_()
        for kappa, same in zip(function(a, b, c), diagonal, strict=True):
            slope_a, slope_c = _gradients(kappa, a, c)
            bend_aa, bend_ab = _gradients(slope_a, a, b)
            (bend_cc,) = _gradients(slope_c, c)
            # centered, the kernel vanishes wherever one norm is input_norm and c is zero
            norm_terms = () if vanishing else (kappa, slope_a, bend_aa)
            numbers = (same, slope_c, bend_ab, bend_cc / 2, *norm_terms)
            results.append(KernelCoefficients(*(t.item() for t in numbers)))
    return results


def _last_argument(
    function: KernelFunction, square: float, ck: float, growth: float
) -> tuple[float, float]:
    r"""The scale of the last activation's arguments, and for loops its square's derivative.

    Args:
        function: The kernels.
        square: The squared norm of the inputs.
        ck: The CK of an input with itself.
        growth: Its derivative in the squared norm.
    """
    architecture = function.architecture
    if isinstance(architecture, ImplicitNetwork):  # they have a mean, of square G
        gamma2, feature = architecture.gamma**2, (square + architecture.bias_variance) / 2
        argument_variance = gamma2 * (ck - feature) + feature
        return math.sqrt(argument_variance), gamma2 * (growth - 0.5) + 0.5
    if isinstance(architecture, LoopedNetwork):  # what the readout sees: no activation follows
        return math.sqrt(ck), growth
    layers = architecture.layers(function.width)
    argument_variance, change = entering_variance(layers, square, ck), 0.0
    if layers.injection is not None:
        change = entering_variance(layers, 1.0, growth) - float(layers.cells[0].bias_variance)
    variance, mean = 1.0 if layers.gated else square, 0.0
    for cell, following in pairwise(layers.cells):
        m = moments(cell.activation, math.sqrt(argument_variance))
        cross = 2 * cell.skip * cell.gain * mean * float(m.mean)
        variance = cell.skip**2 * variance + cross + cell.gain**2 * float(m.square)
        mean = cell.skip * mean + cell.gain * float(m.mean)
        change *= float(following.weights.variance) * cell.gain**2 * float(m.square_second) / 2
        argument_variance = seen_variance(following, variance)
    return math.sqrt(argument_variance), change


def _shift(phi: Activation) -> float:
    return phi.shift if isinstance(phi, Affine) else 0.0


def _gradients(value: Tensor, *variables: Tensor) -> tuple[Tensor, ...]:
    """Derivatives of a scalar that can be differentiated again; zero where it is constant."""
    if not value.requires_grad:  # the derivative of something linear
        return tuple(torch.zeros_like(variable) for variable in variables)
    return torch.autograd.grad(value, variables, create_graph=True, materialize_grads=True)
