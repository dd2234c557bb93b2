r"""Kernels of convolutional residual networks, pair of pixels by pair of pixels.

Du 2018, Theorem D.1; its equation 6 sums over all pairs of a patch's pixels where both must have
moved by the same step, and lets the skip carry sums over patches instead of features. With
$H^{(h)}_{pq}$ the inner product of the features of layer $h$ at pixel $p$ of one image and $q$ of
another, $b^{(h)}_p$ their sum over channels divided by $\sqrt m$, $\mathcal P$ the sum over both
pixels' patches, $s_1 = \sqrt{c_\sigma}$, $s_h = s/H$ for $h > 1$, and $(u, v)$ centered Gaussian
with the covariances $K^{(h-1)}$,

$$K^{(0)} = \mathcal P(x^\top x'), \qquad K^{(h)} = \mathcal P(H^{(h)}), \qquad
b^{(h)} = b^{(h-1)} + s_h \mathbb E[\sigma(u)],$$
$$H^{(h)} = H^{(h-1)} + s_h \bigl(b^{(h-1)} \mathbb E[\sigma(v)]
+ \mathbb E[\sigma(u)]\, b'^{(h-1)}\bigr) + s_h^2\, \mathbb E[\sigma(u)\sigma(v)],$$
$$\Theta^{(h)} = \Theta^{(h-1)} + s_h^2\, \mathbb E[\sigma'(u)\sigma'(v)]
\bigl(\mathcal P(\Theta^{(h-1)}) + K^{(h-1)}\bigr)$$

from $H^{(0)} = b^{(0)} = \Theta^{(0)} = 0$, the last $K^{(h-1)}$ only for layers that are trained.
Biases add their variance to $K$.
The readout has one sign per channel, so that both kernels are sums over all pairs of pixels, of
$H$ and of $\Theta$ of the last layer.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import ConvResNet
from shoal.gaussian import dual, dual_derivative
from shoal.gaussian.domain import within_bound
from shoal.gaussian.moments import mean
from shoal.kernels.pixel_pairs import PixelPairs
from shoal.kernels.result import Kernels

__all__ = ["Images", "patch_grams", "pixel_pairs", "summed_kernels"]

_SMALLEST = 1e-300  # a variance of zero


class _Layer(NamedTuple):
    r"""What a layer makes of single images, at every pixel. shapes: (n, *sides).

    Attributes:
        variance: Of $u$.
        mean: $\mathbb E[\sigma(u)]$.
        total: $b$ of the layer below.
    """

    variance: Tensor
    mean: Tensor
    total: Tensor


@dataclass(frozen=True, eq=False)
class Images:
    """Images, and what the layers make of each alone.

    Attributes:
        points: The images. shape: (n, channels, *sides)
        layers: From the first to the last.
        spans: The smallest and the largest variance of each, empty pixels aside. shapes: (2,)
        squares: The squared norms of the last layer's features at each pixel. shape: (n, *sides)
    """

    points: Tensor
    layers: list[_Layer]
    spans: list[Tensor]
    squares: Tensor

    @classmethod
    def of(cls, architecture: ConvResNet, points: Tensor) -> "Images":
        """Pass images through all layers; pairs of a pixel with itself need no others."""
        pairs = pixel_pairs(architecture, points, torch.zeros(1, dtype=torch.int64))
        square = _products(points, points, pairs)
        total, layers = torch.zeros_like(square), []
        for cell in architecture.layers().cells:
            sigma, skip, k = cell.activation, cell.skip, cell.gain
            variance = pairs.patch_sum(square) + architecture.bias_variance
            average = mean(sigma, variance.clamp(min=_SMALLEST))
            second = dual(sigma, variance, variance, variance)
            layers.append(_Layer(*(t[:, 0] for t in (variance, average, total))))
            square = skip * square + 2 * k * total * average + k**2 * second
            total = skip * total + k * average
        filled = (torch.where(t.variance > 0, t.variance, 1.0) for t in layers)
        spans = [torch.stack(torch.aminmax(t)) for t in filled]
        return cls(points, layers, spans, square[:, 0])


def pixel_pairs(architecture: ConvResNet, points: Tensor, displacements: Tensor) -> PixelPairs:
    """The pairs of some displacements in images of this shape."""
    return PixelPairs(
        tuple(points.shape[2:]),
        architecture.patch_size,
        architecture.padding,
        displacements.to(points.device),
    )


def summed_kernels(
    architecture: ConvResNet,
    trainable: frozenset[str],
    left: Images,
    right: Images,
    index: tuple[Tensor, Tensor],
    pairs: PixelPairs,
) -> Kernels:
    """Both kernels of some pairs of images, as far as some pairs of pixels contribute to them.

    Args:
        architecture: The network.
        trainable: The groups that the NTK counts.
        left: Images, and ...
        right: ... others.
        index: The numbers of the images of each pair. shapes: (pairs,)
        pairs: The pairs of pixels.

    Returns:
        In float64, of shape (pairs,).
    """
    i, j = index
    first, second = left.points[i], right.points[j]
    # the angle between equal patches is lost to rounding, but that of an image with itself is known
    same = (first == second).flatten(1).all(1)[:, None] & (pairs.displacements == 0)
    same = same.view(*same.shape, *[1] * len(pairs.sides))
    covariance = _products(first, second, pairs)
    tangent = torch.zeros_like(covariance)
    reached = False  # whether a layer up to here is trained
    bias = architecture.bias_variance
    for layer, cell in enumerate(architecture.layers().cells):
        sigma, skip, k = cell.activation, cell.skip, cell.gain
        trained = cell.weights.group in trainable
        biased = cell.bias is not None and cell.bias.group in trainable
        mine = _Layer(*(t[i, None] for t in left.layers[layer]))
        theirs = _Layer(*(pairs.of_partner(t[j]) for t in right.layers[layer]))
        below = torch.where(same, mine.variance, pairs.patch_sum(covariance) + bias)
        below = within_bound(mine.variance, theirs.variance, below)
        points = _Points.of(mine, theirs, below, torch.cat([left.spans[layer], right.spans[layer]]))
        covariance = skip * covariance + k**2 * points.values(sigma)
        covariance += k * (mine.total * theirs.mean + mine.mean * theirs.total)
        reached = reached or trained or biased
        if reached:
            from_below = pairs.patch_sum(tangent)
            if trained:
                from_below += below - bias
            if biased:
                from_below += bias
            tangent += k**2 * points.slopes(sigma) * from_below
    return Kernels(covariance.flatten(1).sum(1), tangent.flatten(1).sum(1))


def patch_grams(architecture: ConvResNet, first: Tensor, second: Tensor) -> Tensor:
    r"""$K^{(0)}$ of pairs of images, in float64.

    Args:
        architecture: The network, for its patches.
        first: Images. shape: (n, channels, *sides)
        second: Their partners.

    Returns:
        Shape: (n, pixels, pixels).
    """
    pixels = torch.arange(first[0, 0].numel(), device=first.device)
    pairs = pixel_pairs(architecture, first, pixels)
    values = pairs.patch_sum(_products(first, second, pairs)).flatten(2)
    grams = values.new_empty(len(first), len(pixels), len(pixels))
    grams[:, pixels, pairs.partner.flatten(1)] = values
    return grams


class _Points(NamedTuple):
    """Where the duals of a layer are wanted: all pairs of pixels neither of which is empty.

    Attributes:
        a: Variances.
        b: The partners' variances.
        c: Covariances.
        where: Which pairs of pixels they belong to; ``None`` for all.
        elsewhere: The products of the means, which are the duals at the others.
        added: How many points stand at the end for the extreme variances of all images: duals
            make tables for the range that they see, and all blocks shall share them.
    """

    a: Tensor
    b: Tensor
    c: Tensor
    where: Tensor | None
    elsewhere: Tensor
    added: int

    @classmethod
    def of(cls, mine: _Layer, theirs: _Layer, covariance: Tensor, extremes: Tensor) -> "_Points":
        """Those of some pairs of pixels."""
        triple = torch.broadcast_tensors(mine.variance, theirs.variance, covariance)
        empty = bool((mine.variance == 0).any()) or bool((theirs.variance == 0).any())
        where = (triple[0] > 0) & (triple[1] > 0) if empty else None
        chosen = (t.reshape(-1) if where is None else t[where] for t in triple)
        ends = (extremes, extremes, torch.zeros_like(extremes))
        a, b, c = (torch.cat(both) for both in zip(chosen, ends, strict=True))
        return cls(a, b, c, where, mine.mean * theirs.mean, len(extremes))

    def values(self, sigma: Activation) -> Tensor:
        r"""$\mathbb E[\sigma(u)\sigma(v)]$."""
        return self._spread(dual(sigma, self.a, self.b, self.c), self.elsewhere)

    def slopes(self, sigma: Activation) -> Tensor:
        r"""$\mathbb E[\sigma'(u)\sigma'(v)]$; zero where it only multiplies zeros."""
        found = dual_derivative(sigma, self.a, self.b, self.c)
        return self._spread(found, torch.zeros_like(self.elsewhere))

    def _spread(self, found: Tensor, elsewhere: Tensor) -> Tensor:
        found = found[: len(found) - self.added]
        if self.where is None:
            return found.view(elsewhere.shape)
        return elsewhere.masked_scatter_(self.where, found)


def _products(first: Tensor, second: Tensor, pairs: PixelPairs) -> Tensor:
    """Inner products of pixels over channels. shape: (pairs of images, displacements, *sides)."""
    products = torch.zeros((), dtype=torch.float64, device=first.device)
    for mine, theirs in zip(first.unbind(1), second.unbind(1), strict=True):
        products = products + mine.double()[:, None] * pairs.of_partner(theirs.double())
    return products
