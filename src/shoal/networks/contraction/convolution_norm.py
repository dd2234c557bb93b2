r"""The operator norm of a convolution of images, between certified bounds.

A circular convolution of a torus of $N$ pixels along each axis is diagonal in frequencies $\omega$:
there it multiplies channels by its symbol $\hat W(\omega) = \sum_k W_k e^{i k \cdot \omega}$, so
that its norm is the largest $\|\hat W(\omega)\|$ of the torus. With zeros beyond the border, images
of $n$ pixels lie in a torus of $n + r$ pixels, $r$ the reach of a patch, whose other pixels are
zero: what is seen across the border is zero there too, so that the convolution is a part of the
circular one and has at most its norm.

For images of any size, the symbol is bounded at all frequencies. Along each axis it is a
trigonometric polynomial of degree $r$, and so is the real part of $u^* \hat W v$ for all vectors;
by Ehlich and Zeller (1964) such a polynomial nowhere exceeds the largest of its values at $N > 2r$
places, equally far apart, by more than the factor $1/\cos(\pi r/N)$.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.networks.recurrent_layers import Padding, convolve
from shoal.numerics.norms import Eigenpair, NormBounds, operator_norm_bounds, start_vector

_PLACES = 32  # frequencies along an axis for one pixel of reach, where images have any size
_BLOCK = 2**26  # bytes of symbols at once
_COARSE = 0.3  # tightness at which most frequencies are seen to have smaller norms
_STEPS = 30  # of an estimate
_ROUNDING = 8.0  # in units of machine precision


@dataclass(frozen=True)
class ConvolutionNorm:
    """How the norm of a convolution with stride one is bounded.

    Attributes:
        padding: What lies beyond the border.
        positions: The pixels of a patch, along all axes together.
        sides: The pixels of the images along each axis; empty if they are of any size.
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
            tightness: By what fraction the upper bound may exceed the largest norm of a symbol.
        """
        weight = weight.detach().double()
        reach, axes = weight.shape[2] // 2, weight.dim() - 2
        places, factor = self._places(reach, axes)
        least, most = 0.0, 0.0
        for symbols in _symbols(weight, places):
            found = operator_norm_bounds(symbols, tightness=_COARSE)
            if found.upper > least:
                found = operator_norm_bounds(symbols, tightness=tightness)
            least, most = max(least, found.lower), max(most, found.upper)
        eps = torch.finfo(torch.float64).eps
        size = float(torch.linalg.vector_norm(weight))
        rounding = _ROUNDING * eps * self.positions * math.sqrt(self.positions) * size
        upper, lower = factor * (most + rounding), self.estimate(weight).value * (1 - 1e-12)
        if self.sides and self.padding == "circular":
            lower = max(lower, least - rounding)
        return NormBounds(min(lower, upper), upper)

    def estimate(self, weight: Tensor, near: Tensor | None = None) -> Eigenpair:
        """The length that some image is stretched to: hardly below the norm, never above it.

        Args:
            weight: The weights.
            near: The image that a similar convolution stretches most, if it is known.
        """
        weight = weight.detach().double()
        sides = self.sides or (_PLACES,) * (weight.dim() - 2)
        shape = (1, weight.shape[1], *sides)
        start = start_vector(math.prod(shape), weight)
        image = start if near is None or len(near) != len(start) else near + 1e-3 * start
        back, length = weight.transpose(0, 1).flip(*range(2, weight.dim())), 0.0
        image = (image / torch.linalg.vector_norm(image)).view(shape)
        for _ in range(_STEPS):
            made = convolve(image, weight, self.padding)
            length = float(torch.linalg.vector_norm(made))
            if not 0 < length < math.inf:
                break
            above = convolve(made, back, self.padding)
            image = above / torch.linalg.vector_norm(above)
        return Eigenpair(length, image.flatten())

    def _places(self, reach: int, axes: int) -> tuple[tuple[int, ...], float]:
        """The frequencies along each axis, and the factor of the largest norm there."""
        if not self.sides:
            count = max(1, _PLACES * reach)
            return (count,) * axes, math.cos(math.pi * reach / count) ** -axes
        if self.padding == "circular":
            return self.sides, 1.0
        return tuple(side + reach for side in self.sides), 1.0


def _symbols(weight: Tensor, places: tuple[int, ...]) -> Iterator[Tensor]:
    """The symbols at all frequencies of a torus, as real matrices, some at once.

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
    for some in phases.to(weight.device).split(max(1, _BLOCK // (32 * rows * columns))):
        x, y = (torch.einsum("oik,fk->foi", taps, part) for part in (some.cos(), some.sin()))
        yield torch.cat([torch.cat([x, -y], 2), torch.cat([y, x], 2)], 1)
