r"""Explicit convolutional networks with nearly the CK of a convolutional equilibrium.

Let pixels have one norm and patches be circular. With $c$ the cosines of equal pixels, $\mathcal P$
the mean over patches and $\kappa$ the CK of the dense DEQ, the CK of the equilibrium is the mean
of $\kappa(Fc)$ up to the third order in $c$, with $F = (1 - r)(1 - r\mathcal P)^{-1}\mathcal P$ and
$r$ the gain of a turn at $c = 0$. Layers of the identity average: $m - 1$ of them, and one with the
activation of the dense DEQ's design on the sphere, have the mean of $\kappa(\mathcal P^m c)$. So
zeroth and first order agree, and cosines that are the same at all pixels are exact; the second
order differs by $\tfrac12\kappa''(0)\langle c, (F^2 - \mathcal P^{2m})c\rangle$, where both
are functions of $\mathcal P$, whose eigenvalues lie between $-\tfrac13$ and one. Nothing differs
where patches are single pixels, where there is no loop, and where the network is linear.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.activations import Identity
from shoal.architectures import DEQ, Architecture, ConvDEQ, ConvNet
from shoal.core.checks import integer, real, shown
from shoal.designs.result import Design
from shoal.designs.sphere import SphereMatching
from shoal.gaussian import dual_derivative
from shoal.kernels import KernelFunction, kernel, kernel_function

_MOST_LAYERS = 8
_LOWEST = -1 / 3  # the least eigenvalue of an average over circular patches
_TRIALS, _PIXELS = 64, 24  # pairs of images on which a design is measured


@dataclass(frozen=True, kw_only=True)
class PatchMatching:
    """A ``ConvNet`` with nearly the CK of a ``ConvDEQ``, for pixels of one norm.

    No explicit network has it exactly: the equilibrium couples pixels however far apart, unless
    patches are single pixels, the recurrent variance is zero or the activation is the identity. Its
    padding must be circular, so that all pixels see as much.

    Args:
        layers: How many layers the network has: all but the last only average over patches. By
            default as many as differ least from the equilibrium in the second order of cosines.

    Example:
        >>> import shoal
        >>> from shoal.designs import PatchMatching
        >>> net = shoal.ConvDEQ("relu", 0.9, 0.5, padding="circular")
        >>> d = shoal.design(net, input_norm=1.0, which="ck", method=PatchMatching(layers=1))
        >>> d.architecture.depth, 1e-4 < d.residual < 1e-2
        (1, True)
    """

    layers: int | None = None

    name: ClassVar[Literal["patches"]] = "patches"

    def __post_init__(self) -> None:
        if self.layers is not None:
            integer("layers", self.layers, at_least=1)

    def design(self, original: Architecture, input_norm: float, which: str | None) -> Design:
        """Design by the dense DEQ's kernel, and measure on images with random cosines."""
        norm = real("input_norm", input_norm, above=0.0)
        if not isinstance(original, ConvDEQ) or original.padding != "circular":
            raise TypeError(
                'architecture must be a ConvDEQ with padding="circular" for method="patches", '
                f"got {shown(original)}"
            )
        if which not in (None, "ck"):
            raise ValueError(
                f'which must be "ck" for method="patches", got {which!r}: the NTK has another '
                "filter in every order, which no one network has"
            )
        function = kernel_function(
            DEQ(
                original.activation,
                original.recurrent_variance,
                original.input_variance,
                bias_variance=original.bias_variance,
            )
        )
        dense = SphereMatching().design(function, norm, "ck")
        gain = _gain(original, function, norm)
        counts = range(1, _MOST_LAYERS + 1) if self.layers is None else (self.layers,)
        apart = {count: _apart(original, gain, count) for count in counts}
        depth = min(apart, key=apart.__getitem__)
        (activation,) = (cell.activation for cell in dense.architecture.layers().cells)
        designed = ConvNet(
            (Identity(),) * (depth - 1) + (activation,),
            kernel_size=original.kernel_size,
            pooling=original.pooling,
            padding="circular",
        )
        bend = abs(_bend(function, norm)) * apart[depth] / 2
        return _verified(original, designed, norm, _Theory(gain, bend, exact=apart[depth] == 0))


class _Theory(NamedTuple):
    """What is known of a design: the gain of small cosines, a bound, and whether it is exact."""

    gain: float
    bend: float
    exact: bool

    def explain(self, designed: ConvNet, original: ConvDEQ, norm: float, error: float) -> str:
        """The design in words, with the error that was measured."""
        nearly = "exactly" if self.exact else "nearly"
        start = (
            f"{designed.depth} hidden layer{'s' * (designed.depth > 1)} with {nearly} the CK of "
            f"{original!r}, for images of pixels of norm {norm:g}. "
        )
        end = f"For images with random cosines the kernels differ by at most {error:.1e} of the "
        if self.exact:
            return f"{start}{end}diagonal: that is how well the activation was found."
        return (
            f"{start}A turn of the loop multiplies small cosines by {self.gain:.3g}. Constant and "
            "linear terms in the cosines are exact, and so are cosines that are the same at all "
            f"pixels; the second order is off by at most {self.bend:.1e} of the diagonal, times "
            f"the mean square of cosines. {end}diagonal. No explicit network has this kernel "
            "exactly."
        )


def _gain(original: ConvDEQ, function: KernelFunction, norm: float) -> float:
    """The factor by which a turn of the loop multiplies small cosines."""
    square, factor = norm**2, original.recurrent_variance
    entering = original.input_variance * square + original.bias_variance
    variance = factor * float(function(square, square, square).ck) + entering
    covariance = factor * float(function(square, square, 0.0).ck) + original.bias_variance
    return factor * float(dual_derivative(original.activation, variance, variance, covariance))


def _apart(original: ConvDEQ, gain: float, layers: int) -> float:
    r"""The largest $|F^2 - \mathcal P^{2m}|$; zero where there is nothing for it to change."""
    if original.kernel_size == 1 or original.activation == Identity():
        return 0.0
    p = np.linspace(_LOWEST, 1.0, 4001)
    return float(np.abs(((1 - gain) * p / (1 - gain * p)) ** 2 - p ** (2 * layers)).max())


def _bend(function: KernelFunction, norm: float) -> float:
    r"""$\kappa''(0)/\kappa(1)$, by a difference of the kernel."""
    square, step = norm**2, 1e-2
    cosines = square * torch.tensor([-step, 0.0, step, 1.0], dtype=torch.float64)
    low, middle, high, own = function(square, square, cosines).ck.tolist()
    return float((low - 2 * middle + high) / step**2 / own)


def _images(norm: float) -> tuple[Tensor, Tensor]:
    """Pairs of images of pixels of one norm, the cosine of each pair of pixels at random."""
    generator = torch.Generator().manual_seed(0)
    shape = (_TRIALS, _PIXELS)
    cosines = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
    first = torch.stack([torch.ones_like(cosines), torch.zeros_like(cosines)], 1)
    second = torch.stack([cosines, (1 - cosines.square()).sqrt()], 1)
    return norm * first, norm * second


def _verified(original: ConvDEQ, designed: ConvNet, norm: float, theory: _Theory) -> Design:
    """Compare the kernels of both networks, which know nothing of how the one was designed."""
    first, second = _images(norm)
    target, obtained = (
        torch.stack([kernel(net, first, other, diag=True).ck for other in (second, first)])
        for net in (original, designed)
    )
    own = float(target[1].mean())
    error = float((target - obtained).abs().max()) / own
    names = {"of random images": (0, 0), "of an image with itself": (1, 0)}
    return Design(
        architecture=designed,
        original=original,
        which="ck",
        method=PatchMatching.name,
        input_norm=norm,
        trainable=frozenset(original.parameter_groups),
        width=None,
        target={name: float(target[place]) for name, place in names.items()},
        obtained={name: float(obtained[place]) for name, place in names.items()},
        residual=error,
        errors={"second order in cosines": theory.bend, "random images": error},
        feasible=theory.exact,
        explanation=theory.explain(designed, original, norm, error),
    )
