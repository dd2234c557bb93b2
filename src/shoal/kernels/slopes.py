r"""Slopes of a kernel: its first derivatives as surfaces, divided by the roots of the diagonals.

They are those in the logarithms $u$, $v$ of both norms at a fixed angle, in the angle $\theta$, and
in variances. For inputs of one norm they are sampled at angles and fitted. For inputs of different
norms they are sampled where the surface of the values has nodes, and a variance needs no equations
of its own: a loop of one layer sees its inputs as $\alpha = \sigma_b^2 a$, $\beta = \sigma_b^2 b$,
$\gamma = \sigma_b^2 c$, and a change of $\sigma_a^2$ moves its fixed points as a change of these by
the conjugate kernels $G_{ii}$, $G_{jj}$, $G_{ij}$ does, so that

$\partial_{\sigma_a^2} \kappa = G_{ii}\,\partial_\alpha \kappa + G_{jj}\,\partial_\beta \kappa
+ G_{ij}\,\partial_\gamma \kappa$,

up to the places where $\sigma_a^2$ and $c$ stand in the NTK themselves, beside $G$ and $M =
\partial_\gamma G$: it is $w_r G + M (w_a G + w_b c + w_0)$ with the shares $w$ of the groups. A
bias is added to all three. For other networks the derivatives in variances are sampled, too.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.architectures import ImplicitNetwork, Weights
from shoal.core.exceptions import AccuracyError
from shoal.kernels.approximations.choice import TOLERANCE
from shoal.kernels.approximations.surface import (
    Span,
    Surface,
    compressed,
    to_unit,
    trimmed,
)
from shoal.kernels.edges import derivatives, own_derivatives
from shoal.kernels.function import KernelFunction
from shoal.kernels.plan import Plan
from shoal.kernels.result import Kernels
from shoal.numerics import (
    chebyshev_basis,
    chebyshev_nodes,
    differentiate,
)
from shoal.numerics.sampling import off_grid

_INSET = 1e-3  # next to 0 and π derivatives in norms and variances are lost
_CHECKS = 4  # norms, off the grid, at which the error is measured, at as many angles as it has
_WORST = 10  # error of slopes, in the tolerance of values and in the largest slope


@dataclass(frozen=True, eq=False)
class Slopes:
    """Derivatives of both kernels, as surfaces with the same functions of the norms.

    Attributes:
        left: In the logarithm of the rows' norms.
        right: In that of the columns' norms; the same object if norms are but factors.
        angle: In the angle.
        variances: In each variance.
        diagonal: Of kernels of inputs with themselves, in the logarithm of the norm and in each
            variance, divided by these kernels: Chebyshev series. shape: (1 + variances, 2, terms)
    """

    left: Surface
    right: Surface
    angle: Surface
    variances: tuple[Surface, ...]
    diagonal: Tensor

    def own(self, norm: Tensor) -> Tensor:
        """Values of ``diagonal`` at some norms. shape: (1 + variances, 2, n)."""
        if self.left.norms is None:
            return self.diagonal.expand(-1, -1, len(norm)).to(norm.device)
        place = to_unit(norm.log2(), self.left.norms)
        basis = chebyshev_basis(place, self.diagonal.shape[-1] - 1)
        return self.diagonal.to(norm.device) @ basis


def slopes(plan: Plan, names: tuple[str, ...]) -> Slopes:
    """The slopes of a matrix, at the angles of its surface but 0 and π.

    Raises:
        AccuracyError: If the kernel is too rough at these angles.
    """
    base, tolerance = plan.surface, TOLERANCE[plan.like.dtype]
    assert base is not None
    angles = max(base.angles[0], _INSET), min(base.angles[1], math.pi - _INSET)
    around = base.coefficients.shape[-1] + 1
    nodes = chebyshev_nodes(around, *angles)
    if base.norms is None:
        assert plan.squared_norm is not None
        log = other = torch.tensor([math.log2(plan.squared_norm) / 2], dtype=torch.float64)
        between = off_grid((angles,), around)[0]
    else:
        log = chebyshev_nodes(base.basis.shape[1] + 1, *base.norms)
        between = off_grid((base.norms, angles), around)[1]
        other = off_grid((base.norms,), _CHECKS)[0]
    own = own_derivatives(plan, names, torch.cat([log, other]).exp2())
    samples = _sampled(plan.function, names, base, log, own[..., : len(log)], nodes)
    exact = _sampled(plan.function, names, base, other, own[..., len(log) :], between)
    ratio = own[1:] / torch.where(own[0] == 0, 1.0, own[0])
    ratio, off = ratio[..., : len(log)], ratio[..., len(log) :]
    size = max(1.0, float(samples.abs().max()))
    core = samples.flatten(0, 1) @ _inverse(nodes, angles)
    basis = base.basis
    if base.norms is not None:
        inverse = _inverse(log, base.norms)
        core = torch.einsum("cijk,ir,js->crsk", core, inverse, inverse)
        basis, core = compressed(core, tolerance * size)
        ratio = ratio @ inverse
    core, _ = trimmed(core, tolerance * size)
    parts = [
        replace(base, angles=angles, basis=basis, coefficients=part.contiguous())
        for part in core.split(2)
    ]
    right = parts[0] if base.norms is None else parts[1]
    found = Slopes(parts[0], right, parts[2], tuple(parts[3:]), ratio)
    features = parts[0].features(other.exp2())
    series = core @ chebyshev_basis(to_unit(between, angles), core.shape[-1] - 1)
    values = _between(features, features, series)
    errors = (values - exact.flatten(0, 1)).abs().max(), (found.own(other.exp2()) - off).abs().max()
    error = max(map(float, errors))
    if not error <= _WORST * tolerance * size:
        raise AccuracyError(f"slopes of {plan.function.architecture!r} are met to {error:.1e} only")
    return found


def _between(left: Tensor, right: Tensor, core: Tensor) -> Tensor:
    """Sums over functions of both norms. shape: (q, n, m, k)."""
    half = torch.einsum("ir,qrsk->qisk", left, core)  # one side at a time
    return torch.einsum("qisk,js->qijk", half, right)


def _inverse(nodes: Tensor, span: Span) -> Tensor:
    """The matrix that maps values at some nodes to coefficients of Chebyshev polynomials."""
    inverse: Tensor = torch.linalg.inv(chebyshev_basis(to_unit(nodes, span), len(nodes) - 1))
    return inverse


def _sampled(
    function: KernelFunction,
    names: tuple[str, ...],
    base: Surface,
    log: Tensor,
    own: Tensor,
    angle: Tensor,
) -> Tensor:
    """All slopes at pairs of norms and at angles.

    Args:
        function: The kernels.
        names: Of the variances.
        base: The surface of the values.
        log: Binary logarithms of the norms. shape: (n,)
        own: Kernels of these inputs with themselves, and derivatives. shape: (2 + names, 2, n)
        angle: The angles. shape: (k,)

    Returns:
        Derivatives in both log norms, in the angle and in variances. shape: (3 + names, 2, n, n, k)
    """
    norm, diagonal = log.exp2(), torch.where(own[0] == 0, 1.0, own[0])
    root = diagonal.sqrt()
    scale = (root[:, :, None] * root[:, None])[..., None]
    loop, features = _is_loop(function, names), base.features(norm)
    terms = chebyshev_basis(to_unit(angle, base.angles), base.coefficients.shape[-1] - 1)
    turned = differentiate(base.coefficients) * (2 / (base.angles[1] - base.angles[0]))

    def values(left: Tensor, series: Tensor) -> Tensor:
        core = series @ terms[: series.shape[-1]]
        return _between(left, features, core)

    def scalar(names: tuple[str, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        a, b, cosine = torch.broadcast_tensors(
            norm[:, None, None] ** 2, norm[:, None] ** 2, angle.cos()
        )
        point = a, b, (a * b).sqrt() * cosine
        return point, derivatives(function, names, _at, *point)[1] / scale

    value, around, others = values(features, base.coefficients), values(features, turned), None
    if base.norms is not None:
        slope = differentiate(base.basis) * (2 / (base.norms[1] - base.norms[0]) / math.log(2))
        radial = values(replace(base, basis=slope).features(norm), base.coefficients)
        radial = radial + (own[1] / diagonal / 2)[:, :, None, None] * value
    elif function.architecture.positively_homogeneous:
        radial = value
    else:  # half of what both norms do
        (a, _, c), found = scalar(() if loop else names)
        radial, others = a * (found[0] + found[1]) + c * found[2], found[3:]
    first = torch.stack([radial, radial.transpose(1, 2), around])
    if loop:
        at = _Samples(norm, own[0, 0], angle, scale, scale[0] * value[0], first)
        return torch.stack([*first, *_in_variances(function, names, at)])
    if names and others is None:
        others = scalar(names)[1][3:]
    return first if others is None else torch.cat([first, others])


def _at(function: KernelFunction, *point: Tensor) -> Kernels:
    return function(*point)


def _is_loop(function: KernelFunction, names: tuple[str, ...]) -> bool:
    """Whether the network is a loop of one layer with inputs."""
    if isinstance(function.architecture, ImplicitNetwork):
        return False
    layers = function.architecture.layers(function.width)
    readout, injection = layers.readout, layers.injection
    if readout is not None and (readout.variance != 1 or readout.field in names):
        return False
    seen = injection is not None and injection.variance > 0 and not layers.gated
    return bool(seen) and len(layers.cells) == 1


class _Samples(NamedTuple):
    """Kernels to first order at pairs of norms and at angles.

    Attributes:
        norm: Norms. shape: (n,)
        own: Conjugate kernels of inputs with themselves. shape: (n,)
        angle: Angles. shape: (k,)
        scale: Roots of the products of the diagonals. shape: (2, n, n, 1)
        ck: The conjugate kernel. shape: (n, n, k)
        slopes: In both log norms and in the angle, divided by ``scale``. shape: (3, 2, n, n, k)
    """

    norm: Tensor
    own: Tensor
    angle: Tensor
    scale: Tensor
    ck: Tensor
    slopes: Tensor


def _in_variances(
    function: KernelFunction, names: tuple[str, ...], at: _Samples
) -> Iterator[Tensor]:
    """Derivatives of a loop of one layer in variances, divided by scales. shapes: (2, n, n, k)."""
    layers = function.architecture.layers(function.width)
    (cell,), injection = layers.cells, layers.injection
    assert injection is not None
    recurrent, inputs, bias = (
        _Share.of(weights, function) for weights in (cell.weights, injection, cell.bias)
    )
    spread = float(injection.variance)
    square, cosine = spread * at.norm**2, at.angle.cos()  # α or β, and the cosine
    size = (square.sqrt()[:, None] * square.sqrt())[..., None]
    in_cosine = at.slopes[2] / -at.angle.sin()
    through = at.scale[0] * in_cosine[0] / size  # M

    def moved(own: Tensor, pair: Tensor, growth: float) -> Tensor:
        """If α, β and γ grow by these: norms and cosines move with them, but c does not."""
        log = own / (2 * square)
        left, right = log[:, None, None], log[:, None]
        turn = pair / size - cosine * (left + right)
        change = at.slopes[0] * left + at.slopes[1] * right + in_cosine * turn
        change[1] += (growth - inputs.value / spread) * pair * through / at.scale[1]
        return change

    def in_recurrent() -> Tensor:
        change = moved(at.own, at.ck, recurrent.growth)
        shares = recurrent.value * at.ck + inputs.value / spread * size * cosine + bias.value
        change[1] += shares * through**2 / at.scale[1]
        return change

    def in_injection() -> Tensor:
        change = (at.slopes[0] + at.slopes[1]) / (2 * spread)
        share = (inputs.growth - inputs.value / spread) / spread
        change[1] += share * size * cosine * through / at.scale[1]
        return change

    def in_bias() -> Tensor:
        return moved(torch.ones_like(at.own), torch.ones_like(at.ck), bias.growth)

    ways: tuple[tuple[Weights | None, Callable[[], Tensor]], ...]
    ways = ((cell.weights, in_recurrent), (injection, in_injection), (cell.bias, in_bias))
    for name in names:
        total = torch.zeros_like(in_cosine)
        for weights, way in ways:
            if weights is not None and weights.field == name:
                total = total + way()
        yield total


class _Share(NamedTuple):
    """How much weights count in the NTK, and how fast that grows with their variance."""

    value: float
    growth: float

    @classmethod
    def of(cls, weights: Weights | None, function: KernelFunction) -> "_Share":
        """None at all if they are not there, or not trained."""
        if weights is None or weights.group not in function.trainable:
            return cls(0.0, 0.0)
        return cls(float(weights.share), float(weights.tangent is None))
