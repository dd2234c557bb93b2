r"""Slopes of a kernel: its first derivatives as surfaces, divided by the roots of the diagonals.

Derivatives are taken in the logarithms $u$, $v$ of both norms at a fixed angle, in the angle
$\theta$, and in variances. For inputs of one norm they are sampled at angles and fitted. For
inputs of different norms they are sampled at the nodes of the surface of the values, without
further equations for variances: a loop of one layer depends on its inputs through
$\alpha = \sigma_b^2 a$, $\beta = \sigma_b^2 b$ and $\gamma = \sigma_b^2 c$. A change of
$\sigma_a^2$ moves its fixed points like a change of these by the conjugate kernels $G_{ii}$,
$G_{jj}$, $G_{ij}$, so that

$\partial_{\sigma_a^2} \kappa = G_{ii}\,\partial_\alpha \kappa + G_{jj}\,\partial_\beta \kappa
+ G_{ij}\,\partial_\gamma \kappa$,

up to the places where $\sigma_a^2$ and $c$ stand in the NTK themselves, beside $G$ and $M =
\partial_\gamma G$: it is $w_r G + M (w_a G + w_b c + w_0)$ with the shares $w$ of the groups. A
bias is added to all three. For other networks the derivatives in variances are sampled, too.

At single pairs, derivatives follow from the implicit function theorem. They are exact also where a
surface has none: near angles of 0 and π, at inputs of zero, and at inputs with themselves.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.architectures import Weights
from shoal.core.caches import cached
from shoal.core.exceptions import AccuracyError
from shoal.kernels.arguments import Kernels, on_host
from shoal.kernels.function import KernelFunction
from shoal.kernels.plan import Plan
from shoal.kernels.surface import Span, Surface, compressed, to_unit, trimmed
from shoal.numerics import chebyshev_basis, chebyshev_nodes, differentiate, off_grid

_SMALLEST_ANGLE = 1e-7  # that c resolves; larger if biases hide it
_SMALLEST_NORM = 1e-100  # replaces a norm of zero, of an input with itself
_ZERO_NORM_RATIO = 1e-8  # replaces a norm of zero, relative to the other norm
_INSET = 1e-3  # next to 0 and π derivatives in norms and variances are lost
_CHECKS = 4  # norms off the grid at which the error is measured, with as many angles as nodes


def derivatives(
    function: KernelFunction,
    names: tuple[str, ...],
    kernels: Callable[..., Kernels],
    *point: Tensor,
) -> tuple[Tensor, Tensor]:
    """Both kernels and their derivatives in the point and in variances, elementwise.

    Args:
        function: The kernels.
        names: Names of the variances.
        kernels: Maps a function, in which tensors stand for the variances, and a point to kernels.
        point: Tensors of one shape, in float64.

    Returns:
        Values, of shape (2, ...), and derivatives, of shape (len(point) + len(names), 2, ...).
    """
    device, point = point[0].device, tuple(on_host(*point))
    values = [torch.full_like(point[0], getattr(function.architecture, name)) for name in names]
    with torch.enable_grad():
        leaves = [t.detach().clone().requires_grad_() for t in (*point, *values)]
        tensors = tuple(zip(names, leaves[len(point) :], strict=True))
        result = kernels(replace(function, variances=tensors), *leaves[: len(point)])
        slopes = [
            torch.stack(
                torch.autograd.grad(k.sum(), leaves, retain_graph=True, materialize_grads=True)
            )
            for k in result
        ]
    value = torch.stack([k.detach() for k in result])
    return value.to(device), torch.stack(slopes, dim=1).to(device)


def diagonal_derivatives(
    function: KernelFunction, names: tuple[str, ...], norm: Tensor, squared_norm: float | None
) -> Tensor:
    """Kernels of inputs with themselves and their derivatives in the norm's log and in variances.

    Args:
        function: The kernels.
        names: Names of the variances.
        norm: Norms in float64. shape: (n,)
        squared_norm: The squared norm at which inputs of one norm are taken.

    Returns:
        Values, then derivatives. shape: (2 + len(names), 2, n)
    """
    if function.architecture.positively_homogeneous:
        return _diagonal_at(function, names, 0.0).to(norm.device) * norm**2
    if squared_norm is not None:
        common = math.sqrt(squared_norm)
        norm = torch.where(norm > common / 2, common, norm)  # the others stand for zero
    norm = norm.clamp(min=_SMALLEST_NORM)
    distinct, inverse = norm.unique(return_inverse=True)
    if len(distinct) <= 2:  # inputs of one norm, and zero
        values = [_diagonal_at(function, names, point) for point in distinct.log().tolist()]
        return torch.cat(values, -1).to(norm.device)[..., inverse]
    return _solve_diagonal(function, names, distinct.cpu().log()).to(norm.device)[..., inverse]


@cached
def _diagonal_at(function: KernelFunction, names: tuple[str, ...], log_norm: float) -> Tensor:
    """Diagonal derivatives at one norm; cached. shape: (2 + len(names), 2, 1)."""
    return _solve_diagonal(function, names, torch.tensor([log_norm], dtype=torch.float64))


def _solve_diagonal(function: KernelFunction, names: tuple[str, ...], log_norm: Tensor) -> Tensor:
    """Diagonal derivatives, given the logarithms of the norms."""

    def kernels(f: KernelFunction, log: Tensor) -> Kernels:
        return f.diagonal(torch.exp(2 * log))

    values, slopes = derivatives(function, names, kernels, log_norm)
    return torch.cat([values[None], slopes])


def pair_derivatives(
    plan: Plan, names: tuple[str, ...], i: Tensor, j: Tensor, angle: Tensor
) -> Tensor:
    """Derivatives of both kernels at some pairs of rows and columns, whose angles are known.

    Returns:
        Derivatives in the logarithms of both norms at a fixed angle, in variances, and in the
        angle at fixed norms, finite also where inputs are parallel. shape: (3 + len(names), 2, n)
    """
    result = angle.new_zeros(3 + len(names), 2, len(i))
    # Where c does not resolve the angle, pairs of one norm, and all pairs of a positively
    # homogeneous kernel, are treated as an input with itself.
    norms = plan.row_inputs.norm[i], plan.column_inputs.norm[j]
    separation = angle
    if not plan.function.architecture.positively_homogeneous:
        separation = torch.maximum(angle, (norms[0] - norms[1]).abs() / torch.maximum(*norms))
        separation = separation.nan_to_num(0.0)  # both are zero
    along = separation == 0 if _smooth(plan.function) else separation < _SMALLEST_ANGLE
    distinct = (separation > 0).nonzero()[:, 0]
    if len(distinct):
        result[..., distinct] = _distinct_pairs(
            plan, names, i[distinct], j[distinct], angle[distinct]
        )
    if bool(along.any()):
        mean = norms[0][along].sqrt() * norms[1][along].sqrt()
        parallel = diagonal_derivatives(plan.function, names, mean, plan.squared_norm)
        exact = torch.cat([parallel[1:2] / 2, parallel[1:2] / 2, parallel[2:]])
        share = separation[along] / _SMALLEST_ANGLE
        result[:-1, :, along] = exact + share * (result[:-1, :, along] - exact)
    return result


def _distinct_pairs(
    plan: Plan, names: tuple[str, ...], i: Tensor, j: Tensor, angle: Tensor
) -> Tensor:
    """Derivatives at the nearest angles at which all layers separate a pair's inputs."""
    smallest, unsolved = _SMALLEST_ANGLE, torch.arange(len(i), device=i.device)
    result = _pairs_apart(plan, names, i, j, angle, smallest)
    while smallest < 0.1:
        unsolved = unsolved[(~result[..., unsolved].isfinite()).flatten(0, -2).any(0)]
        if not len(unsolved):
            return result
        smallest *= 10
        result[..., unsolved] = _pairs_apart(
            plan, names, i[unsolved], j[unsolved], angle[unsolved], smallest
        )
    raise AccuracyError("the derivatives of the kernel at nearly equal inputs are lost to rounding")


def _pairs_apart(
    plan: Plan, names: tuple[str, ...], i: Tensor, j: Tensor, angle: Tensor, smallest: float
) -> Tensor:
    """Derivatives at angles at least ``smallest`` away from 0 and π."""
    first, second = _nonzero_norms(plan, i, j)
    nearest = angle.clamp(smallest, math.pi - smallest)
    a, b, c = first**2, second**2, first * second * nearest.cos()
    _, slopes = derivatives(plan.function, names, lambda f, *point: f(*point), a, b, c)
    in_a, in_b, in_c = slopes[:3]
    sine_angle = angle.expand_as(in_c).clone()
    if not _smooth(plan.function):  # with kinks the NTK's in_c grows as 1/sin θ
        corner = (first - second).abs() < 1e-3 * torch.maximum(first, second)  # at an angle of zero
        corner |= plan.function.architecture.positively_homogeneous
        sine_angle[1] = torch.where(corner, nearest, angle)
    angle_slope = -first * second * sine_angle.sin() * in_c
    if plan.wide is not None:  # its series is exact at small angles too
        ordinary = (plan.row_inputs.norm[i] > 0) & (plan.column_inputs.norm[j] > 0)
        angle_slope = torch.where(ordinary, _angle_slope(plan, plan.wide, i, j, angle), angle_slope)
    logs = torch.stack([2 * a * in_a + c * in_c, 2 * b * in_b + c * in_c])
    return torch.cat([logs, slopes[3:], angle_slope[None]])


def _smooth(function: KernelFunction) -> bool:
    """Whether no activation has kinks: derivatives in c are finite and continuous at all angles."""
    return not any(phi.kinks for phi in function.architecture.cell_activations)


def _nonzero_norms(plan: Plan, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    """Norms of pairs, with a tiny norm in place of zero."""
    first, second = plan.row_inputs.norm[i], plan.column_inputs.norm[j]
    return (
        torch.where(first > 0, first, _ZERO_NORM_RATIO * torch.where(second > 0, second, 1.0)),
        torch.where(second > 0, second, _ZERO_NORM_RATIO * torch.where(first > 0, first, 1.0)),
    )


def angle_gradients(plan: Plan, i: Tensor, j: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the angles of some pairs in both inputs; zero where there is none.

    An input of zero is replaced by a small one, orthogonal to its partner.
    """
    first, second = (
        inputs.points[k].double() / inputs.norm[k, None].clamp(min=1e-300)
        for inputs, k in ((plan.row_inputs, i), (plan.column_inputs, j))
    )
    sign = torch.where(angle < math.pi / 2, 1.0, -1.0)[:, None]
    gap, (row_norms, column_norms) = second - sign * first, _nonzero_norms(plan, i, j)
    both = []
    for unit, direction, norm, other_norm in (
        (first, gap, row_norms, plan.column_inputs.norm[j]),
        (second, -sign * gap, column_norms, plan.row_inputs.norm[i]),
    ):
        direction = direction - (direction * unit).sum(-1, keepdim=True) * unit
        size = (norm * torch.linalg.vector_norm(direction, dim=-1)).clamp(min=1e-300)
        both.append(torch.where((other_norm > 0)[:, None], -direction / size[:, None], 0.0))
    return both[0], both[1]


def _angle_slope(plan: Plan, wide: Surface, i: Tensor, j: Tensor, angle: Tensor) -> Tensor:
    """The derivative in the angle by the series for all angles. shape: (2, n)."""
    low, high = wide.angles
    series = differentiate(wide.coefficients[:, 0, 0]).to(angle) * (2 / (high - low))
    slopes = series @ chebyshev_basis(to_unit(angle, wide.angles), series.shape[1] - 1)
    return slopes * plan.rows.scale[:, i].double() * plan.columns.scale[:, j].double()


@dataclass(frozen=True, eq=False)
class Slopes:
    """Derivatives of both kernels, as surfaces with the same functions of the norms.

    Attributes:
        row_logs: Slopes in the logarithm of the rows' norms.
        column_logs: Slopes in the logarithm of the columns' norms; the same object if norms are
            factors.
        angle: Slopes in the angle.
        variances: Slopes in each variance.
        diagonal: Slopes of kernels of inputs with themselves, in the logarithm of the norm and in
            each variance, divided by these kernels: Chebyshev series.
            shape: (1 + variances, 2, terms)
    """

    row_logs: Surface
    column_logs: Surface
    angle: Surface
    variances: tuple[Surface, ...]
    diagonal: Tensor

    def diagonal_at(self, norm: Tensor) -> Tensor:
        """Values of ``diagonal`` at some norms. shape: (1 + variances, 2, n)."""
        if self.row_logs.norms is None:
            return self.diagonal.expand(-1, -1, len(norm)).to(norm.device)
        place = to_unit(norm.log2(), self.row_logs.norms)
        basis = chebyshev_basis(place, self.diagonal.shape[-1] - 1)
        return self.diagonal.to(norm.device) @ basis


@cached
def slopes(
    function: KernelFunction,
    names: tuple[str, ...],
    base: Surface,
    tolerance: float,
    squared_norm: float | None,
) -> Slopes:
    """The slopes at the norms and angles of a surface except 0 and π; cached.

    Args:
        function: The kernels.
        names: Names of the variances.
        base: The surface of the values.
        tolerance: Error of the surface, relative to the diagonal.
        squared_norm: The squared norm of all inputs, if they have one.

    Raises:
        AccuracyError: If the kernel is too rough at these angles.
    """
    angles = max(base.angles[0], _INSET), min(base.angles[1], math.pi - _INSET)
    num_angles = base.coefficients.shape[-1] + 1
    nodes = chebyshev_nodes(num_angles, *angles)
    if base.norms is None:
        assert squared_norm is not None
        log = check_logs = torch.tensor([math.log2(squared_norm) / 2], dtype=torch.float64)
        check_angles = off_grid((angles,), num_angles)[0]
    else:
        log = chebyshev_nodes(base.basis.shape[1] + 1, *base.norms)
        check_angles = off_grid((base.norms, angles), num_angles)[1]
        check_logs = off_grid((base.norms,), _CHECKS)[0]
    diagonal = diagonal_derivatives(
        function, names, torch.cat([log, check_logs]).exp2(), squared_norm
    )
    samples = _sampled(function, names, base, log, diagonal[..., : len(log)], nodes)
    exact = _sampled(function, names, base, check_logs, diagonal[..., len(log) :], check_angles)
    ratio = diagonal[1:] / torch.where(diagonal[0] == 0, 1.0, diagonal[0])
    ratio, exact_ratio = ratio[..., : len(log)], ratio[..., len(log) :]
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
    result = Slopes(parts[0], right, parts[2], tuple(parts[3:]), ratio)
    features = parts[0].features(check_logs.exp2())
    series = core @ chebyshev_basis(to_unit(check_angles, angles), core.shape[-1] - 1)
    values = _products_of_features(features, features, series)
    errors = (
        (values - exact.flatten(0, 1)).abs().max(),
        (result.diagonal_at(check_logs.exp2()) - exact_ratio).abs().max(),
    )
    error = max(map(float, errors))
    if not error <= 10 * tolerance * size:
        raise AccuracyError(f"slopes of {function.architecture!r} are accurate only to {error:.1e}")
    return result


def _products_of_features(first: Tensor, second: Tensor, core: Tensor) -> Tensor:
    """Sums over functions of both norms. shape: (q, n, m, k)."""
    half = torch.einsum("ir,qrsk->qisk", first, core)  # one side at a time
    return torch.einsum("qisk,js->qijk", half, second)


def _inverse(nodes: Tensor, span: Span) -> Tensor:
    """The matrix that maps values at some nodes to coefficients of Chebyshev polynomials."""
    inverse: Tensor = torch.linalg.inv(chebyshev_basis(to_unit(nodes, span), len(nodes) - 1))
    return inverse


def _sampled(
    function: KernelFunction,
    names: tuple[str, ...],
    base: Surface,
    log: Tensor,
    diagonal: Tensor,
    angle: Tensor,
) -> Tensor:
    """All slopes at pairs of norms and at angles.

    Args:
        function: The kernels.
        names: Names of the variances.
        base: The surface of the values.
        log: Binary logarithms of the norms. shape: (n,)
        diagonal: Kernels of these inputs with themselves, and derivatives. shape: (2 + names, 2, n)
        angle: The angles. shape: (k,)

    Returns:
        Derivatives in both log norms, in the angle and in variances. shape: (3 + names, 2, n, n, k)
    """
    norm, safe_diagonal = log.exp2(), torch.where(diagonal[0] == 0, 1.0, diagonal[0])
    root = safe_diagonal.sqrt()
    scale = (root[:, :, None] * root[:, None])[..., None]
    loop, features = _is_loop(function, names), base.features(norm)
    terms = chebyshev_basis(to_unit(angle, base.angles), base.coefficients.shape[-1] - 1)
    turned = differentiate(base.coefficients) * (2 / (base.angles[1] - base.angles[0]))

    def values(row_features: Tensor, series: Tensor) -> Tensor:
        core = series @ terms[: series.shape[-1]]
        return _products_of_features(row_features, features, core)

    def scalar(names: tuple[str, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        a, b, cosine = torch.broadcast_tensors(
            norm[:, None, None] ** 2, norm[:, None] ** 2, angle.cos()
        )
        point = a, b, (a * b).sqrt() * cosine
        return point, derivatives(function, names, _evaluate, *point)[1] / scale

    value, angle_slope, rates = (
        values(features, base.coefficients),
        values(features, turned),
        None,
    )
    if base.norms is not None:
        slope = differentiate(base.basis) * (2 / (base.norms[1] - base.norms[0]) / math.log(2))
        radial = values(replace(base, basis=slope).features(norm), base.coefficients)
        radial = radial + (diagonal[1] / safe_diagonal / 2)[:, :, None, None] * value
    elif function.architecture.positively_homogeneous:
        radial = value
    else:  # half of what both norms do
        (a, _, c), direct = scalar(() if loop else names)
        radial, rates = (a * (direct[0] + direct[1]) + c * direct[2], direct[3:])
    first = torch.stack([radial, radial.transpose(1, 2), angle_slope])
    if loop:
        at = _Samples(norm, diagonal[0, 0], angle, scale, scale[0] * value[0], first)
        return torch.stack([*first, *_in_variances(function, names, at)])
    if names and rates is None:
        rates = scalar(names)[1][3:]
    return first if rates is None else torch.cat([first, rates])


def _evaluate(function: KernelFunction, *point: Tensor) -> Kernels:
    return function(*point)


def _is_loop(function: KernelFunction, names: tuple[str, ...]) -> bool:
    """Whether the network is a loop of one layer with inputs."""
    if not function.architecture.layered:
        return False
    layers = function.layers
    readout, injection = layers.readout, layers.injection
    if readout is not None and (readout.variance != 1 or readout.field in names):
        return False
    inputs_enter = injection is not None and injection.variance > 0 and not layers.gated
    return bool(inputs_enter) and len(layers.cells) == 1


class _Samples(NamedTuple):
    """Kernels to first order at pairs of norms and at angles.

    Attributes:
        norm: Norms. shape: (n,)
        self_ck: Conjugate kernels of inputs with themselves. shape: (n,)
        angle: Angles. shape: (k,)
        scale: Roots of the products of the diagonals. shape: (2, n, n, 1)
        ck: The conjugate kernel. shape: (n, n, k)
        slopes: Derivatives in both log norms and in the angle, divided by ``scale``.
            shape: (3, 2, n, n, k)
    """

    norm: Tensor
    self_ck: Tensor
    angle: Tensor
    scale: Tensor
    ck: Tensor
    slopes: Tensor


def _in_variances(
    function: KernelFunction, names: tuple[str, ...], samples: _Samples
) -> Iterator[Tensor]:
    """Derivatives of a loop of one layer in variances, divided by scales. shapes: (2, n, n, k)."""
    layers = function.layers
    (cell,), injection = layers.cells, layers.injection
    assert injection is not None
    recurrent, inputs, bias = (
        _TrainedShare.from_weights(weights, function)
        for weights in (cell.weights, injection, cell.bias)
    )
    spread = float(injection.variance)
    square, cosine = spread * samples.norm**2, samples.angle.cos()  # α or β, and the cosine
    size = (square.sqrt()[:, None] * square.sqrt())[..., None]
    in_cosine = samples.slopes[2] / -samples.angle.sin()
    through = samples.scale[0] * in_cosine[0] / size  # M

    def response(squares: Tensor, products: Tensor, share_growth: float) -> Tensor:
        """The effect of growing α, β and γ, which move norms and cosines, but not c."""
        log = squares / (2 * square)
        first, second = log[:, None, None], log[:, None]
        turn = products / size - cosine * (first + second)
        change = samples.slopes[0] * first + samples.slopes[1] * second + in_cosine * turn
        change[1] += (share_growth - inputs.value / spread) * products * through / samples.scale[1]
        return change

    def in_recurrent() -> Tensor:
        change = response(samples.self_ck, samples.ck, recurrent.growth)
        shares = recurrent.value * samples.ck + inputs.value / spread * size * cosine + bias.value
        change[1] += shares * through**2 / samples.scale[1]
        return change

    def in_injection() -> Tensor:
        change = (samples.slopes[0] + samples.slopes[1]) / (2 * spread)
        share = (inputs.growth - inputs.value / spread) / spread
        change[1] += share * size * cosine * through / samples.scale[1]
        return change

    def in_bias() -> Tensor:
        return response(torch.ones_like(samples.self_ck), torch.ones_like(samples.ck), bias.growth)

    ways: tuple[tuple[Weights | None, Callable[[], Tensor]], ...]
    ways = ((cell.weights, in_recurrent), (injection, in_injection), (cell.bias, in_bias))
    for name in names:
        total = torch.zeros_like(in_cosine)
        for weights, way in ways:
            if weights is not None and weights.field == name:
                total = total + way()
        yield total


class _TrainedShare(NamedTuple):
    """The share of weights in the NTK, and its derivative in their variance."""

    value: float
    growth: float

    @classmethod
    def from_weights(cls, weights: Weights | None, function: KernelFunction) -> "_TrainedShare":
        """Zero for absent or untrained weights."""
        if weights is None or weights.group not in function.trainable:
            return cls(0.0, 0.0)
        return cls(float(weights.share), float(weights.tangent is None))
