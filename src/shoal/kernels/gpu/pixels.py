r"""The kernels of convolutional ReLU networks on a GPU: one program for a pair of images.

The field of pairs of pixels stays in registers from the first product to the last sum. Sums over
patches are products with band matrices of small integers from both sides, which tensor cores make
in float16: the integers are exact, and a field in two parts, in units of its largest number, keeps
its digits up to 3e-8 of that.

*Equilibria*: with the variances known, covariances solve $\Lambda = \sigma_a^2 P(D(\Lambda)) +
\beta$, and tangents $T = F + \sigma_a^2 \dot D \circ P(T)$. Both maps have eigenvalues between
$-s/3$ and $s$, $s = \sigma_a^2 \rho(P)/2$ (that of a band matrix of ones is at least minus a third
of the largest), so that Chebyshev's semi-iteration applies: a two-term recurrence that takes about
the square root of the steps that plain iteration takes near the edge of existence, until the
largest change is negligible in float32.

*Explicit networks*: covariances and tangents go through the layers side by side,

$$\Lambda_l = v_l P(\Sigma_{l-1}) + \beta_l, \quad \Sigma_l = k_l^2 D(\Lambda_l), \quad
\Theta_l = k_l^2 \dot D(\Lambda_l) \circ (v_l P(\Theta_{l-1}) + w_l P(\Sigma_{l-1}) + w'_l),$$

so that no layer has to be kept. Each layer reads the variances of both images.
"""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from shoal.kernels.images.fused_passes import MOST_STEPS, EquilibriumConstants

_TOLERANCE = 3e-6  # the largest residual, relative to the largest number, that ends an iteration
_STALLED = 4e-6  # that rounding may have left


def pixel_tiles(
    images: Tensor,
    variances: Tensor,
    index: tuple[Tensor, Tensor],
    displacements: Tensor,
    bands: tuple[Tensor, Tensor],
    network: EquilibriumConstants,
    *,
    share: float,
) -> Tensor:
    """Sums of both kernels over all pairs of pixels, computed in float32 and added in float64.

    Args:
        images: The images, contiguous. shape: (n, channels, height, width)
        variances: Variances of their pre-activations. shape: (n, height, width)
        index: The numbers of the images of each pair. shapes: (pairs,)
        displacements: Numbers of pixels that partners are displaced by.
        bands: For each displacement along either axis, the matrix that sums along it. shapes:
            (height, height, height), (width, width, width)
        network: The equilibrium.
        share: The weight of a pixel in the average over a patch.

    Returns:
        Sums of CK and NTK. shape: (2, pairs)

    Raises:
        ArithmeticError: If an iteration did not end.
    """
    sizes = _launch_sizes(images)
    padded = _padded_bands(bands, sizes)
    pairs, steps = len(index[0]), len(displacements)
    out = images.new_empty(3, pairs * steps)
    readout, entering, injected, biases = network.shares
    # elsewhere there is Triton's interpreter
    with torch.cuda.device(images.device) if images.is_cuda else nullcontext():
        _equilibrium_pair[(pairs * steps,)](
            images,
            variances,
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
            injected * share,
            biases,
            *network.chebyshev(),
            MOST_STEPS,
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
def _equilibrium_pair(
    images,
    variances,
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
    first_band = _band(down_bands, down, rows)
    second_band = _band(across_bands, along, columns)

    products = _products_of(images, i, j, here, there, inside, size, channels)
    a = tl.load(variances + i * size + here, mask=inside, other=0.0)
    b = tl.load(variances + j * size + there, mask=inside, other=0.0)
    root = tl.sqrt(a) * tl.sqrt(b)
    unit = _largest(root) + 1e-30  # of all that follows
    root = root / unit
    inverse = tl.where(root > 0, 1.0 / root, 0.0)
    size_of_products = _largest(products) + 1e-30
    given = _sums(products / size_of_products, first_band, second_band) * (size_of_products / unit)
    entering = tl.where(inside, injected * given + bias / unit, 0.0)

    now = tl.minimum(tl.maximum(entering, -root), root)
    move = tl.zeros_like(now)  # from the last iterate
    weight, change, last, count = 1.0, 1.0, 2.0, 0
    while (change > tolerance) & (count < most_steps) & ((change < last) | (change > stalled)):
        last = change
        value, _ = _dual(now, root, inverse)
        residual = recurrent * _sums(value, first_band, second_band) + entering - now
        weight = tl.where(count == 0, 1.0, 1.0 / (1.0 - spread * weight * 0.25))
        weight = tl.where(count == 1, 1.0 / (1.0 - 0.5 * spread), weight)
        new = now + weight * relaxation * residual + (weight - 1.0) * move
        new = tl.minimum(tl.maximum(new, -root), root)
        move = new - now
        now = new
        change = _largest(residual)
        count += 1
    worst = change

    value, slope = _dual(now, root, inverse)
    slope = tl.where(inside, slope, 0.0)
    seen = _sums(value, first_band, second_band)
    own = slope * (recurrent_share * seen + input_share * given + bias_share / unit)
    ratio = recurrent * slope
    tangent_unit = _largest(own) + 1e-30
    own = own / tangent_unit
    now, move = own, tl.zeros_like(own)
    weight, change, last, count = 1.0, 1.0, 2.0, 0
    while (change > tolerance) & (count < most_steps) & ((change < last) | (change > stalled)):
        last = change
        residual = own + ratio * _sums(now, first_band, second_band) - now
        weight = tl.where(count == 0, 1.0, 1.0 / (1.0 - spread * weight * 0.25))
        weight = tl.where(count == 1, 1.0 / (1.0 - 0.5 * spread), weight)
        move = weight * relaxation * residual + (weight - 1.0) * move
        now = now + move
        change = _largest(residual)
        count += 1
    ck = unit * tl.sum(tl.sum(tl.where(inside, value, 0.0), 1), 0)
    ntk = unit * (tangent_unit * tl.sum(tl.sum(now, 1), 0))
    tl.store(out + place, ck)
    tl.store(out + total + place, readout_share * ck + ntk)
    tl.store(out + 2 * total + place, tl.maximum(worst, change))


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

    See :func:`pixel_tiles`. Variances have the shape (n, layers, height, width). ``layers`` has
    $v$, $\beta$, $k^2$, $w$ and $w'$ of each layer, shape (layers, 5); factors of sums over patches
    include the weight of a pixel in an average. ``readout`` is the share of the readout in the NTK.
    """
    sizes = _launch_sizes(images)
    padded = _padded_bands(bands, sizes)
    pairs, steps = len(index[0]), len(displacements)
    out = images.new_empty(2, pairs * steps)
    # elsewhere there is Triton's interpreter
    with torch.cuda.device(images.device) if images.is_cuda else nullcontext():
        _chain_pair[(pairs * steps,)](
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
def _chain_pair(
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
    first_band = _band(down_bands, down, rows)
    second_band = _band(across_bands, along, columns)

    value = _products_of(images, i, j, here, there, inside, size, channels)
    unit = _largest(value) + 1e-30  # of covariances and tangents
    value = value / unit
    tangent = tl.zeros_like(value)
    for layer in range(depth):
        weights, bias = tl.load(layers + 5 * layer), tl.load(layers + 5 * layer + 1)
        gain, share = tl.load(layers + 5 * layer + 2), tl.load(layers + 5 * layer + 3)
        bias_share = tl.load(layers + 5 * layer + 4)
        a = tl.load(variances + (i * depth + layer) * size + here, mask=inside, other=0.0)
        b = tl.load(variances + (j * depth + layer) * size + there, mask=inside, other=0.0)
        root = tl.sqrt(a) * tl.sqrt(b)
        new = _largest(root) + 1e-30
        root, change = root / new, unit / new
        inverse = tl.where(root > 0, 1.0 / root, 0.0)
        seen = _sums(value, first_band, second_band) * change
        longest = _largest(tangent) + 1e-30
        moved = _sums(tangent / longest, first_band, second_band) * (longest * change)
        covariance = tl.minimum(tl.maximum(weights * seen + bias / new, -root), root)
        value, slope = _dual(covariance, root, inverse)
        value = gain * value
        tangent = gain * slope * (weights * moved + share * seen + bias_share / new)
        unit = new
    ck = unit * tl.sum(tl.sum(value, 1), 0)
    tl.store(out + place, ck)
    tl.store(out + total + place, readout_share * ck + unit * tl.sum(tl.sum(tangent, 1), 0))


def _launch_sizes(images: Tensor) -> dict[str, int]:
    """The sizes of images, of the tiles that hold a field of them, and the warps of a program."""
    channels, height, width = images.shape[1:]
    # tensor cores multiply squares of 16, and repeat work where a thread holds fewer numbers
    rows, columns = (max(16, triton.next_power_of_2(side)) for side in (height, width))
    warps = max(1, rows * columns // (32 * 16))
    return {
        "channels": channels,
        "height": height,
        "width": width,
        "rows": rows,
        "columns": columns,
        "num_warps": warps,
    }


def _padded_bands(bands: tuple[Tensor, Tensor], sizes: dict[str, int]) -> list[Tensor]:
    """The matrices that sum along both axes, with zeros up to the sides of tiles."""
    padded = []
    for band, side in zip(bands, (sizes["rows"], sizes["columns"]), strict=True):
        padded.append(band.new_zeros(len(band), side, side))
        padded[-1][:, : band.shape[1], : band.shape[2]] = band
    return padded


@triton.jit
def _parts(field):
    """The leading digits of numbers, as many as float16 has, and the next."""
    leading = field.to(tl.float16)
    return leading, (field - leading.to(tl.float32)).to(tl.float16)


@triton.jit
def _sums(field, down, across):
    """Sums over patches."""
    leading, rest = _parts(field)
    field = tl.dot(down, leading)
    field = tl.dot(down, rest, field)
    leading, rest = _parts(field)
    field = tl.dot(leading, across)
    return tl.dot(rest, across, field)


@triton.jit
def _band(bands, number, side: tl.constexpr):
    """The matrix that sums along an axis; it is symmetric."""
    square = tl.arange(0, side)[:, None] * side + tl.arange(0, side)[None, :]
    return tl.load(bands + number * side * side + square).to(tl.float16)


@triton.jit
def _products_of(images, i, j, here, there, inside, size, channels: tl.constexpr):
    """Inner products of pixels over channels."""
    first, second = images + i * channels * size + here, images + j * channels * size + there
    products = tl.load(first, mask=inside, other=0.0) * tl.load(second, mask=inside, other=0.0)
    for channel in tl.static_range(1, channels):
        mine = tl.load(first + channel * size, mask=inside, other=0.0)
        products += mine * tl.load(second + channel * size, mask=inside, other=0.0)
    return products


@triton.jit
def _largest(field):
    """The largest size of a number."""
    return tl.max(tl.max(tl.abs(field), 1), 0)


@triton.jit
def _angle(cosine):
    """The angle of a cosine, within 2e-8 (Abramowitz and Stegun 1964, 4.4.46)."""
    x = tl.abs(cosine)
    series = -0.0012624911 * x + 0.0066700901
    series = series * x - 0.0170881256
    series = series * x + 0.0308918810
    series = series * x - 0.0501743046
    series = series * x + 0.0889789874
    series = series * x - 0.2145988016
    series = series * x + 1.5707963050
    angle = tl.sqrt(tl.maximum(1.0 - x, 0.0)) * series
    return tl.where(cosine < 0, 3.14159265358979 - angle, angle)


@triton.jit
def _dual(covariance, root, inverse):
    """E[φ(u) φ(v)] and E[φ'(u) φ'(v)] of the ReLU (Cho and Saul 2009)."""
    cosine = covariance * inverse  # by rounding beyond one, if at all
    rest = 3.14159265358979 - _angle(cosine)
    sine = tl.sqrt(tl.maximum(1.0 - cosine * cosine, 0.0))
    value = root * (sine + rest * cosine) * 0.15915494309189535
    return value, tl.where(root > 0, rest * 0.15915494309189535, 0.0)
