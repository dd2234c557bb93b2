r"""The kernels of explicit convolutional ReLU networks on a GPU: a program for a pair of images.

The fields of covariances and of tangents stay in registers from the first layer to the last,

$$\Lambda_l = v_l P(\Sigma_{l-1}) + \beta_l, \quad \Sigma_l = k_l^2 D(\Lambda_l), \quad
\Theta_l = k_l^2 \dot D(\Lambda_l) \circ (v_l P(\Theta_{l-1}) + w_l P(\Sigma_{l-1}) + w'_l),$$

side by side, so that no layer has to be kept. What is read for each layer are the variances of both
images.
"""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.backends.pixel_fields import (
    band,
    dual,
    largest,
    launch_sizes,
    padded_bands,
    products_of,
    sums,
)


def pixel_chains(
    images: Tensor,
    variances: Tensor,
    index: tuple[Tensor, Tensor],
    displacements: Tensor,
    bands: tuple[Tensor, Tensor],
    layers: Tensor,
    *,
    readout: float,
) -> Tensor:
    r"""Sums of both kernels over all pairs of pixels, computed in float32 and added in float64.

    Args:
        images: Contiguous. shape: (n, channels, height, width)
        variances: Of what each of their pixels sees in each layer. shape: (n, layers, height,
            width)
        index: The numbers of the images of each pair. shapes: (pairs,)
        displacements: Numbers of pixels that partners are displaced by.
        bands: For each displacement along either axis, the matrix that sums along it. shapes:
            (height, height, height), (width, width, width)
        layers: For each layer, $v$, $\beta$, $k^2$, $w$ and $w'$; what multiplies sums over
            patches includes what a pixel counts in their average. shape: (layers, 5)
        readout: What the readout counts in the NTK.

    Returns:
        Sums of CK and NTK. shape: (2, pairs)
    """
    sizes = launch_sizes(images)
    padded = padded_bands(bands, sizes)
    pairs, steps = len(index[0]), len(displacements)
    out = images.new_empty(2, pairs * steps)
    # elsewhere there is Triton's interpreter
    with torch.cuda.device(images.device) if images.is_cuda else nullcontext():
        _pair[(pairs * steps,)](
            images,
            variances,
            *index,
            displacements,
            *padded,
            layers,
            out,
            steps,
            pairs * steps,
            len(layers),
            readout,
            **sizes,
        )
    return out.view(2, pairs, steps).double().sum(2)


@triton.jit(do_not_specialize=["steps", "total", "depth", "readout_share"])
def _pair(
    images,
    variances,
    rows_of,
    columns_of,
    displacements,
    down_bands,
    across_bands,
    layers,
    out,
    steps,
    total,
    depth,
    readout_share,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    place = tl.program_id(0)
    i = tl.cast(tl.load(rows_of + place // steps), tl.int64)
    j = tl.cast(tl.load(columns_of + place // steps), tl.int64)
    step = tl.load(displacements + place % steps)
    down, along = step // width, step % width
    p, q = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    inside = (p < height) & (q < width)
    here = p * width + q
    there = (p + down) % height * width + (q + along) % width
    size = height * width
    first_band = band(down_bands, down, rows)
    second_band = band(across_bands, along, columns)

    value = products_of(images, images, i, j, here, there, inside, size, channels)
    unit = largest(value) + 1e-30  # of covariances and tangents
    value = value / unit
    tangent = tl.zeros_like(value)
    for layer in range(depth):
        weights, bias = tl.load(layers + 5 * layer), tl.load(layers + 5 * layer + 1)
        gain, share = tl.load(layers + 5 * layer + 2), tl.load(layers + 5 * layer + 3)
        bias_share = tl.load(layers + 5 * layer + 4)
        a = tl.load(variances + (i * depth + layer) * size + here, mask=inside, other=0.0)
        b = tl.load(variances + (j * depth + layer) * size + there, mask=inside, other=0.0)
        root = tl.sqrt(a) * tl.sqrt(b)
        new = largest(root) + 1e-30
        root, change = root / new, unit / new
        inverse = tl.where(root > 0, 1.0 / root, 0.0)
        seen = sums(value, first_band, second_band) * change
        longest = largest(tangent) + 1e-30
        moved = sums(tangent / longest, first_band, second_band) * (longest * change)
        covariance = tl.minimum(tl.maximum(weights * seen + bias / new, -root), root)
        value, slope = dual(covariance, root, inverse)
        value = gain * value
        tangent = gain * slope * (weights * moved + share * seen + bias_share / new)
        unit = new
    ck = unit * tl.sum(tl.sum(value, 1), 0)
    tl.store(out + place, ck)
    tl.store(out + total + place, readout_share * ck + unit * tl.sum(tl.sum(tangent, 1), 0))
