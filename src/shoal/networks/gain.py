r"""The gain of recurrent layers, between certified bounds, and well-posedness.

The norm of a weight matrix is bounded by products of matrices. A circular convolution of a torus of
$N$ pixels along each axis is diagonal in frequencies $\omega$: there it multiplies channels by its
symbol $\hat W(\omega) = \sum_k W_k e^{i k \cdot \omega}$, so that its norm is the largest
$\|\hat W(\omega)\|$ of the torus. With zeros beyond the border, images of $n$ pixels lie in a torus
of $n + r$ pixels, $r$ the reach of a patch, whose other pixels are zero. The convolution is then a
part of the circular one and has at most its norm.

For images of any size, the symbol is bounded at all frequencies. Along each axis it is a
trigonometric polynomial of degree $r$, and so is the real part of $u^* \hat W v$ for all vectors.
By Ehlich and Zeller (1964) such a polynomial nowhere exceeds the largest of its values at $N > 2r$
places, equally far apart, by more than the factor $1/\cos(\pi r/N)$.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.architectures import ImplicitArchitecture
from shoal.core.checks import float_tensor
from shoal.networks.recurrent_layers import Layer, Padding, convolve
from shoal.numerics.norms import (
    NormBounds,
    dominant_singular_pair,
    operator_norm_bounds,
    start_vector,
)

_PLACES = 32  # frequencies along an axis for one pixel of reach, for images of any size


@dataclass(frozen=True)
class MatrixNorm:
    """The norm of weights as a matrix, with a row for each entry of their first dimension.

    Attributes:
        groups: Number of matrices, one below the other, that act on separate entries.
    """

    groups: int = 1

    @property
    def drift(self) -> float:
        """One: no norm of a matrix exceeds its Frobenius norm."""
        return 1.0

    def bounds(self, weight: Tensor, *, tightness: float = 1e-3) -> NormBounds:
        """Certified bounds of the norm, by products of matrices."""
        rows = weight.flatten(1)
        if self.groups > 1:
            rows = rows.reshape(self.groups, len(rows) // self.groups, -1)
        return operator_norm_bounds(rows, tightness=tightness)

    def estimate(self, weight: Tensor) -> float:
        """An estimate of the norm, by Lanczos iteration."""
        return dominant_singular_pair(weight).value


@dataclass(frozen=True)
class ConvolutionNorm:
    """The norm of a convolution with stride one.

    Attributes:
        padding: The pixels beyond the border.
        positions: The number of pixels of a patch, along all axes together.
        sides: The number of pixels of the images along each axis; empty if they are of any size.
    """

    padding: Padding
    positions: int
    sides: tuple[int, ...] = ()

    @property
    def drift(self) -> float:
        r"""The ratio by which the Frobenius norm of a change bounds the change of the norm.

        $\|\hat W(\omega)\| \le \sum_k \|W_k\|_F \le \sqrt{q}\,\|W\|_F$ for $q$ positions.
        """
        return math.sqrt(self.positions)

    def bounds(self, weight: Tensor, *, tightness: float = 1e-3) -> NormBounds:
        """Bounds of the norm for these images, or for images of all sizes.

        Args:
            weight: Shape: (channels, channels, patch...).
            tightness: Largest relative excess of the upper bound over the largest norm of a symbol.
        """
        weight = weight.detach().double()
        reach, axes = weight.shape[2] // 2, weight.dim() - 2
        places, factor = self._places(reach, axes)
        least, most = 0.0, 0.0
        for symbols in _symbols(weight, places):
            norm = operator_norm_bounds(symbols, tightness=0.3)  # enough for most frequencies
            if norm.upper > least:
                norm = operator_norm_bounds(symbols, tightness=tightness)
            least, most = max(least, norm.lower), max(most, norm.upper)
        eps = torch.finfo(torch.float64).eps
        size = float(torch.linalg.vector_norm(weight))
        rounding = 8 * eps * self.positions * math.sqrt(self.positions) * size
        upper, lower = factor * (most + rounding), self.estimate(weight) * (1 - 1e-12)
        if self.sides and self.padding == "circular":
            lower = max(lower, least - rounding)
        return NormBounds(min(lower, upper), upper)

    def estimate(self, weight: Tensor) -> float:
        """The largest length to which power iteration stretches an image of length one."""
        weight = weight.detach().double()
        shape = (1, weight.shape[1], *(self.sides or (_PLACES,) * (weight.dim() - 2)))
        image = start_vector(math.prod(shape), weight).view(shape)
        back, length = weight.transpose(0, 1).flip(*range(2, weight.dim())), 0.0
        for _ in range(30):
            stretched = convolve(image / torch.linalg.vector_norm(image), weight, self.padding)
            length = float(torch.linalg.vector_norm(stretched))
            if not 0 < length < math.inf:
                break
            image = convolve(stretched, back, self.padding)
        return length

    def _places(self, reach: int, axes: int) -> tuple[tuple[int, ...], float]:
        """The frequencies along each axis, and the factor of the largest norm there."""
        if not self.sides:
            count = max(1, _PLACES * reach)
            return (count,) * axes, math.cos(math.pi * reach / count) ** -axes
        if self.padding == "circular":
            return self.sides, 1.0
        return tuple(side + reach for side in self.sides), 1.0


def _symbols(weight: Tensor, places: tuple[int, ...]) -> Iterator[Tensor]:
    """The symbols at all frequencies of a torus, as real matrices, in blocks.

    Those at opposite frequencies are conjugate and have one norm: half of them suffice. A complex
    matrix $X + iY$ has the norm of the real one of the blocks $X$, $-Y$ and $Y$, $X$.
    """
    reach, axes = weight.shape[2] // 2, weight.dim() - 2
    taps = weight.flatten(2)
    steps = torch.tensor(
        list(itertools.product(range(-reach, reach + 1), repeat=axes)), dtype=torch.float64
    )
    halves = [range(places[0] // 2 + 1), *(range(count) for count in places[1:])]
    angles = 2 * math.pi * torch.tensor(list(itertools.product(*halves)), dtype=torch.float64)
    phases = (angles / torch.tensor(places, dtype=torch.float64)) @ steps.T
    rows, columns = taps.shape[:2]
    for some in phases.to(weight.device).split(max(1, 2**21 // (rows * columns))):
        x, y = (torch.einsum("oik,fk->foi", taps, part) for part in (some.cos(), some.sin()))
        yield torch.cat([torch.cat([x, -y], 2), torch.cat([y, x], 2)], 1)


def gain_factor(layer: Layer) -> float:
    r"""$s L$, the ratio of the gain to the norm of the weights."""
    return layer.scale * layer.activation.lipschitz if layer.scale else 0.0


class GainBound:
    r"""Bounds the gain of recurrent layers from above while weights change, rounding included.

    The gain is $s L \|W\|$; for several layers, the product of their gains. Since
    $\|W'\| \le \|W\| + c\,\|W' - W\|_F$ ($c = 1$ for matrices), the norms themselves are bounded
    anew only when the weights have moved far enough for it to matter.

    Args:
        factors: $s L$ of each layer.
        norm: The norm of each layer's weights.
        weights: A function that returns the present weights of each layer.
        name: Name of the weights, for errors.
    """

    def __init__(
        self,
        factors: Sequence[float],
        norm: MatrixNorm | ConvolutionNorm,
        weights: Callable[[], list[Tensor]],
        *,
        name: str = "recurrent weights",
    ) -> None:
        self.factors, self.norm, self.weights, self.name = tuple(factors), norm, weights, name
        self.snapshots: list[tuple[Tensor, float]] = []  # weights, and bounds of their gains

    @torch.no_grad()
    def upper(self, limit: float) -> float:
        """An upper bound; above ``limit`` only if it is within a thousandth of the gain."""
        if math.inf in self.factors:
            return math.inf
        weights = [weight.detach() for weight in self.weights()]
        if self.snapshots:
            bound = 1.0
            for factor, weight, (before, gain) in zip(
                self.factors, weights, self.snapshots, strict=True
            ):
                drift = float(torch.linalg.vector_norm((weight - before).double()))
                rounding = 1 + 1e-9 + torch.finfo(weight.dtype).eps
                bound *= gain + factor * self.norm.drift * drift * rounding
            if bound <= limit:
                return bound
        self.snapshots = [
            (weight.clone(), factor * self.norm.bounds(float_tensor(self.name, weight)).upper)
            for factor, weight in zip(self.factors, weights, strict=True)
        ]
        return math.prod(bound for _, bound in self.snapshots)

    def estimate(self) -> float:
        """An estimate of the gain."""
        pairs = zip(self.factors, self.weights(), strict=True)
        return math.prod(f * self.norm.estimate(weight.detach()) for f, weight in pairs)


@dataclass(frozen=True)
class WellPosedness:
    r"""Whether the recurrent layer of a network, or a loop of several, is a contraction.

    Attributes:
        gain_lower: A lower bound of the gain $s L \|W\|$, $L$ the activation's Lipschitz constant;
            for several layers the product of their gains.
        gain_upper: An upper bound of it. Below one, the layer is a contraction: the equilibrium
            exists, is unique, and Picard iteration converges to it at least at this rate.
        contraction: Whether ``gain_upper`` is below one.
        sufficient: Whether the architecture satisfies $4\sigma_a^2L^2 < 1$, which makes wide
            networks contractions at initialization with high probability (Ling 2024).
        kernel: Whether it satisfies $\sigma_a^2L^2 < 1$, the condition of the infinite-width
            kernel.
    """

    gain_lower: float
    gain_upper: float
    contraction: bool
    sufficient: bool
    kernel: bool

    def __str__(self) -> str:
        """The report, in a few lines."""
        contraction = "undecided: one lies between the bounds; ask for a smaller tightness"
        if self.contraction:
            contraction = "yes, certified; the equilibrium is unique"
        elif self.gain_lower >= 1:
            contraction = (
                "not certified: the gain is at least one, so the layer may expand. An equilibrium "
                "may still exist, but uniqueness is not guaranteed"
            )
        words = ("does not hold", "holds")
        return (
            f"gain: between {self.gain_lower:.6g} and {self.gain_upper:.6g}\n"
            f"contraction: {contraction}\n"
            f"sufficient condition of the theory, at initialization: {words[self.sufficient]}\n"
            f"condition of the infinite-width kernel: {words[self.kernel]}"
        )


def well_posedness(
    gain: GainBound, architecture: ImplicitArchitecture, tightness: float
) -> WellPosedness:
    """The report for recurrent layers."""
    lower = upper = 1.0
    for factor, weight in zip(gain.factors, gain.weights(), strict=True):
        bounds = gain.norm.bounds(weight, tightness=tightness)
        least, most = (0.0 if bound == 0 else factor * bound for bound in bounds)
        lower, upper = lower * least, upper * most
    upper = math.inf if math.isnan(upper) else upper
    sufficient, kernel = architecture.contraction_guaranteed, architecture.kernel_guaranteed
    return WellPosedness(lower, upper, upper < 1, sufficient, kernel)
