"""Fields of pairs of pixels in the registers of a GPU: what passes over pairs of images share.

Sums over patches are products with band matrices of small integers from both sides, which tensor
cores make in float16: the integers are exact, and a field in two parts, in units of its largest
number, keeps its digits up to 3e-8 of that.
"""

import triton
import triton.language as tl
from torch import Tensor

_LEAST_SIDE = 16  # of a matrix that tensor cores multiply
_HELD = 16  # numbers of a field that a thread holds: with less, tensor cores repeat their work


def launch_sizes(images: Tensor) -> dict[str, int]:
    """The sizes of images, of the tiles that hold a field of them, and the warps of a program."""
    channels, height, width = images.shape[1:]
    rows, columns = (max(_LEAST_SIDE, triton.next_power_of_2(side)) for side in (height, width))
    warps = max(1, rows * columns // (32 * _HELD))
    return {
        "channels": channels,
        "height": height,
        "width": width,
        "rows": rows,
        "columns": columns,
        "num_warps": warps,
    }


def padded_bands(bands: tuple[Tensor, Tensor], sizes: dict[str, int]) -> list[Tensor]:
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
def sums(field, down, across):
    """Sums over patches."""
    leading, rest = _parts(field)
    field = tl.dot(down, leading)
    field = tl.dot(down, rest, field)
    leading, rest = _parts(field)
    field = tl.dot(leading, across)
    return tl.dot(rest, across, field)


@triton.jit
def band(bands, number, side: tl.constexpr):
    """The matrix that sums along an axis; it is symmetric."""
    square = tl.arange(0, side)[:, None] * side + tl.arange(0, side)[None, :]
    return tl.load(bands + number * side * side + square).to(tl.float16)


@triton.jit
def products_of(left, right, i, j, here, there, inside, size, channels: tl.constexpr):
    """Inner products of pixels over channels."""
    first, second = left + i * channels * size + here, right + j * channels * size + there
    products = tl.load(first, mask=inside, other=0.0) * tl.load(second, mask=inside, other=0.0)
    for channel in tl.static_range(1, channels):
        mine = tl.load(first + channel * size, mask=inside, other=0.0)
        products += mine * tl.load(second + channel * size, mask=inside, other=0.0)
    return products


@triton.jit
def largest(field):
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
def dual(covariance, root, inverse):
    """E[φ(u) φ(v)] and E[φ'(u) φ'(v)] of the ReLU (Cho and Saul 2009)."""
    cosine = covariance * inverse  # by rounding beyond one, if at all
    rest = 3.14159265358979 - _angle(cosine)
    sine = tl.sqrt(tl.maximum(1.0 - cosine * cosine, 0.0))
    value = root * (sine + rest * cosine) * 0.15915494309189535
    return value, tl.where(root > 0, rest * 0.15915494309189535, 0.0)
