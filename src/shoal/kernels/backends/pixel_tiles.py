r"""The kernels of convolutional ReLU equilibria on a GPU: one program for a pair of images.

The field of pairs of pixels stays in registers from the first product to the last sum. With the
variances known, covariances solve $\Lambda = \sigma_a^2 P(D(\Lambda)) + \beta$, and tangents
$T = F + \sigma_a^2 \dot D \circ P(T)$. Both maps have eigenvalues between $-s/3$ and $s$,
$s = \sigma_a^2 \rho(P)/2$ (that of a band matrix of ones is at least minus a third of the largest),
so that Chebyshev's semi-iteration applies: a two-term recurrence that takes about the square root
of the steps that plain iteration takes near the edge of existence, until the largest change is
negligible in float32.
"""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.backends.pixel_equilibrium import Equilibrium
from shoal.kernels.backends.pixel_fields import (
    band,
    dual,
    largest,
    launch_sizes,
    padded_bands,
    products_of,
    sums,
)

_MOST_STEPS = 1000
_TOLERANCE = 3e-6  # the largest residual, relative to the largest number, that ends an iteration
_STALLED = 4e-6  # that rounding may have left
_LOWEST = -1 / 3  # eigenvalues of averages over patches are at least this times the largest


def pixel_tiles(
    images: tuple[Tensor, Tensor],
    variances: tuple[Tensor, Tensor],
    index: tuple[Tensor, Tensor],
    displacements: Tensor,
    bands: tuple[Tensor, Tensor],
    network: Equilibrium,
    *,
    share: float,
) -> Tensor:
    """Sums of both kernels over all pairs of pixels, computed in float32 and added in float64.

    Args:
        images: Those of rows and columns, contiguous. shape: (n, channels, height, width)
        variances: Of what each of their pixels sees at equilibrium. shape: (n, height, width)
        index: The numbers of the images of each pair. shapes: (pairs,)
        displacements: Numbers of pixels that partners are displaced by.
        bands: For each displacement along either axis, the matrix that sums along it. shapes:
            (height, height, height), (width, width, width)
        network: The equilibrium.
        share: What a pixel counts in the average over a patch.

    Returns:
        Sums of CK and NTK. shape: (2, pairs)

    Raises:
        ArithmeticError: If an iteration did not end.
    """
    sizes = launch_sizes(images[0])
    padded = padded_bands(bands, sizes)
    pairs, steps = len(index[0]), len(displacements)
    out = images[0].new_empty(3, pairs * steps)
    readout, entering, given, biases = network.shares
    # elsewhere there is Triton's interpreter
    with torch.cuda.device(images[0].device) if images[0].is_cuda else nullcontext():
        _pair[(pairs * steps,)](
            *images,
            *variances,
            *index,
            displacements,
            *padded,
            out,
            steps,
            pairs * steps,
            network.recurrent * share,
            network.injected * share,
            network.bias,
            readout,
            entering * share,
            given * share,
            biases,
            *network.chebyshev(_LOWEST),
            _MOST_STEPS,
            _TOLERANCE,
            _STALLED,
            **sizes,
        )
    if not bool((out[2] <= _STALLED).all()):
        raise ArithmeticError("the equilibrium of a pair of images was not reached in float32")
    return out[:2].view(2, pairs, steps).double().sum(2)


@triton.jit(
    do_not_specialize=[
        "steps",
        "total",
        "recurrent",
        "injected",
        "bias",
        "readout_share",
        "recurrent_share",
        "input_share",
        "bias_share",
        "relaxation",
        "spread",
        "most_steps",
        "tolerance",
        "stalled",
    ]
)
def _pair(
    left,
    right,
    left_variance,
    right_variance,
    rows_of,
    columns_of,
    displacements,
    down_bands,
    across_bands,
    out,
    steps,
    total,
    recurrent,
    injected,
    bias,
    readout_share,
    recurrent_share,
    input_share,
    bias_share,
    relaxation,
    spread,
    most_steps,
    tolerance,
    stalled,
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

    products = products_of(left, right, i, j, here, there, inside, size, channels)
    a = tl.load(left_variance + i * size + here, mask=inside, other=0.0)
    b = tl.load(right_variance + j * size + there, mask=inside, other=0.0)
    root = tl.sqrt(a) * tl.sqrt(b)
    unit = largest(root) + 1e-30  # of all that follows
    root = root / unit
    inverse = tl.where(root > 0, 1.0 / root, 0.0)
    size_of_products = largest(products) + 1e-30
    given = sums(products / size_of_products, first_band, second_band) * (size_of_products / unit)
    entering = tl.where(inside, injected * given + bias / unit, 0.0)

    now = tl.minimum(tl.maximum(entering, -root), root)
    move = tl.zeros_like(now)  # from the last iterate
    weight, change, last, count = 1.0, 1.0, 2.0, 0
    while (change > tolerance) & (count < most_steps) & ((change < last) | (change > stalled)):
        last = change
        value, _ = dual(now, root, inverse)
        residual = recurrent * sums(value, first_band, second_band) + entering - now
        weight = tl.where(count == 0, 1.0, 1.0 / (1.0 - spread * weight * 0.25))
        weight = tl.where(count == 1, 1.0 / (1.0 - 0.5 * spread), weight)
        new = now + weight * relaxation * residual + (weight - 1.0) * move
        new = tl.minimum(tl.maximum(new, -root), root)
        move = new - now
        now = new
        change = largest(residual)
        count += 1
    worst = change

    value, slope = dual(now, root, inverse)
    slope = tl.where(inside, slope, 0.0)
    seen = sums(value, first_band, second_band)
    own = slope * (recurrent_share * seen + input_share * given + bias_share / unit)
    ratio = recurrent * slope
    tangent_unit = largest(own) + 1e-30
    own = own / tangent_unit
    now, move = own, tl.zeros_like(own)
    weight, change, last, count = 1.0, 1.0, 2.0, 0
    while (change > tolerance) & (count < most_steps) & ((change < last) | (change > stalled)):
        last = change
        residual = own + ratio * sums(now, first_band, second_band) - now
        weight = tl.where(count == 0, 1.0, 1.0 / (1.0 - spread * weight * 0.25))
        weight = tl.where(count == 1, 1.0 / (1.0 - 0.5 * spread), weight)
        move = weight * relaxation * residual + (weight - 1.0) * move
        now = now + move
        change = largest(residual)
        count += 1
    ck = unit * tl.sum(tl.sum(tl.where(inside, value, 0.0), 1), 0)
    ntk = unit * (tangent_unit * tl.sum(tl.sum(now, 1), 0))
    tl.store(out + place, ck)
    tl.store(out + total + place, readout_share * ck + ntk)
    tl.store(out + 2 * total + place, tl.maximum(worst, change))
