r"""The coefficients of high-dimensional equivalents.

One identity is behind all of them. In high dimension, norms concentrate at $\tau_0$ and inner
products at zero, so a kernel $\kappa(a, b, c)$ is its expansion at $(\tau_0^2, \tau_0^2, 0)$, and
its diagonal is $\kappa(\tau_0^2, \tau_0^2, \tau_0^2)$: $\alpha_1 = \kappa_c$, $\alpha_2 =
\kappa_{ab}$, $\alpha_3 = \tfrac12\kappa_{cc}$, for every architecture and all trained groups.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from shoal.architectures import Architecture, ImplicitArchitecture
from shoal.asymptotics.centering import added_shift, centered, norm_of_inputs
from shoal.core.checks import flag, one_of
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction, Kernels, kernel_function
from shoal.kernels.calculi.jets import Jet, Jets, gradients
from shoal.kernels.calculi.own import Own
from shoal.kernels.function import kernels_in


@dataclass(frozen=True)
class KernelCoefficients:
    r"""One kernel for high-dimensional inputs of norm about $\tau_0$.

    Attributes:
        gamma2: $\gamma^2$, the kernel of an input with itself.
        alpha1: $\alpha_1$, its derivative in $c$.
        alpha2: $\alpha_2$, that in $a$ and $b$.
        alpha3: $\alpha_3$, half the second one in $c$.
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

    @classmethod
    def of(cls, own: float, jet: Jet) -> "KernelCoefficients":
        """The coefficients of a kernel with these derivatives."""
        return cls(own, jet.c, jet.ab, jet.cc / 2, jet.value, jet.a, jet.aa)


def _one(kernel: str, name: str) -> property:
    """A paper's name for a coefficient of one of the kernels."""

    def value(self: "Coefficients") -> float:
        found: float = getattr(getattr(self, kernel), name)
        return found

    value.__doc__ = f"``{kernel}.{name}``."
    return property(value)


@dataclass(frozen=True)
class Coefficients:
    r"""What the kernels of an architecture are for high-dimensional inputs of norm about $\tau_0$.

    For $i \ne j$ and $\chi_i = \|x_i\|^2 - \tau_0^2$, the CK is approximately
    $$\kappa_0 + \kappa_a(\chi_i + \chi_j) + \tfrac12\kappa_{aa}(\chi_i^2 + \chi_j^2)
    + \alpha_1 x_i^\top x_j + \alpha_2\chi_i\chi_j + \alpha_3 (x_i^\top x_j)^2$$
    and $\gamma^2$ on the diagonal; so is the NTK with coefficients of its own, which Ling 2024
    calls $\beta$ and $\kappa_*^2$. Where all layers are centered, the first three terms vanish.

    The papers' names are there as properties: ``gamma2``, ``alpha1`` to ``alpha3`` of the CK,
    ``kappa2``, ``beta1`` to ``beta3`` of the NTK, and ``ck_offset``, ``ntk_offset`` and so on.

    Attributes:
        function: The kernels; its architecture is centered if ``center``.
        input_norm: The norm $\tau_0$ of the inputs.
        center: Whether the kernels of orthogonal inputs of norm $\tau_0$ vanish: the architecture
            was centered, and has no biases.
        tau: $\tau_*$, the standard deviation of the last activation's arguments (their root mean
            square for an ``ImplicitNetwork``, where they have a mean).
        shift: What centering added to the last activation.
        alpha4: $\alpha_4$, the derivative in $\tau_0^2$ of $\tau_*^2$ for an implicit architecture,
            and of $\gamma^2$ for an explicit one.
        ck: The coefficients of the CK.
        ntk: Those of the NTK.
    """

    function: KernelFunction
    input_norm: float
    center: bool
    tau: float
    shift: float
    alpha4: float
    ck: KernelCoefficients
    ntk: KernelCoefficients

    gamma2 = _one("ck", "gamma2")
    alpha1 = _one("ck", "alpha1")
    alpha2 = _one("ck", "alpha2")
    alpha3 = _one("ck", "alpha3")
    kappa2 = _one("ntk", "gamma2")
    beta1 = _one("ntk", "alpha1")
    beta2 = _one("ntk", "alpha2")
    beta3 = _one("ntk", "alpha3")
    ck_offset = _one("ck", "offset")
    ck_slope = _one("ck", "slope")
    ck_bend = _one("ck", "bend")
    ntk_offset = _one("ntk", "offset")
    ntk_slope = _one("ntk", "slope")
    ntk_bend = _one("ntk", "bend")

    @property
    def architecture(self) -> Architecture:
        """Whose kernels these are."""
        return self.function.architecture

    @property
    def trainable(self) -> frozenset[str]:
        """The groups of parameters that the NTK counts."""
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
    method: Literal["derivatives", "closed"] = "derivatives",
) -> Coefficients:
    r"""The coefficients of an architecture's high-dimensional equivalents.

    Args:
        architecture: An architecture with a kernel; it is centered first (see
            :func:`~shoal.asymptotics.centered`).
        input_norm: The norm $\tau_0$ of the inputs, from 1e-6 to 1e8;
            $\operatorname{tr} C^\circ/p = \tau_0^2$.
        trainable: Names out of ``architecture.parameter_groups``, for the NTK; all by default.
        width: As for :func:`~shoal.kernels.kernel_function`.
        center: Whether to center the architecture, or take it as it is.
        method: ``"derivatives"`` differentiates the kernel function; ``"closed"`` uses moments of
            the activations alone (see :mod:`shoal.kernels.calculi.jets`). They agree to round-off.

    Raises:
        TypeError: If no kernel or centering is known for the architecture.
        ValueError: If an argument is out of its range.
        ConvergenceError: If a DEQ has no kernel, or none when centered.

    Example:
        >>> import shoal
        >>> deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
        >>> c = shoal.coefficients(deq, input_norm=1.0, trainable={"readout", "recurrent"})
        >>> f"{c.alpha1:.6f} {c.alpha2:.6f} {c.alpha3:.6f} {c.beta3:.6f}"
        '0.210526 0.035957 0.069190 0.080115'
    """
    input_norm = norm_of_inputs(input_norm)
    one_of("method", method, ("derivatives", "closed"))
    flag("center", center)
    function = kernel_function(architecture, trainable=trainable, width=width)
    architecture = function.architecture
    if architecture.ignores_input:
        raise ValueError("input_variance must be > 0, got 0")
    chosen = centered(architecture, input_norm) if center else architecture
    function = replace(function, architecture=chosen, variances=())
    vanishing = center and not chosen.layers().biased
    if method == "closed":
        found = kernels_in(chosen, Jets(input_norm, vanishing), function)
        ck, ntk = found.ck, found.ntk
    else:
        ck, ntk = _differentiated(function, input_norm, vanishing)
    own, tau, growth = _own(function, input_norm)
    shift = 0.0
    if center:
        before, after = (network.layers().cells[-1] for network in (architecture, chosen))
        shift = added_shift(before.activation, after.activation)
    return Coefficients(
        function,
        input_norm,
        vanishing,
        tau,
        shift,
        growth,
        KernelCoefficients.of(float(own.ck), ck),
        KernelCoefficients.of(float(own.ntk), ntk),
    )


def _own(function: KernelFunction, input_norm: float) -> tuple[Kernels, float, float]:
    r"""Both kernels of an input with itself, $\tau_*$ and $\alpha_4$."""
    with torch.enable_grad():
        squared = torch.tensor(input_norm**2, dtype=torch.float64, requires_grad=True)
        network = kernels_in(function.architecture, Own(squared, differentiable=True), function)
        argument = network.features.argument
        implicit = isinstance(function.architecture, ImplicitArchitecture)
        (growth,) = gradients(argument if implicit else network.ck, squared)
    own = Kernels(network.ck.detach(), network.ntk.detach())
    return own, float(argument.detach()) ** 0.5, float(growth.detach())


def _differentiated(
    function: KernelFunction, input_norm: float, vanishing: bool
) -> tuple[Jet, ...]:
    """Both kernels and their derivatives by autograd."""
    squared = torch.tensor(input_norm**2, dtype=torch.float64)
    with torch.enable_grad():
        a, b = (squared.clone().requires_grad_() for _ in range(2))
        c = torch.zeros_like(squared).requires_grad_()
        return tuple(_jet(kappa, a, b, c, vanishing) for kappa in function(a, b, c))


def _jet(kappa: Tensor, a: Tensor, b: Tensor, c: Tensor, vanishing: bool) -> Jet:
    slope_a, slope_c = gradients(kappa, a, c)
    bend_aa, bend_ab = gradients(slope_a, a, b)
    (bend_cc,) = gradients(slope_c, c)
    taken = (kappa, slope_a, slope_c, bend_aa, bend_ab, bend_cc)
    jet = Jet(*(float(t.detach()) for t in taken))
    # centered, the kernel vanishes wherever one norm is input_norm and the inner product zero
    return replace(jet, value=0.0, a=0.0, aa=0.0) if vanishing else jet
