r"""The one primitive of the Gaussian calculus: a smoothed derivative of an activation.

$S_k(\mu, v) = \mathbb{E}[\varphi^{(k)}(\mu + \sqrt{v}\,\xi)]$, the derivative taken in the sense
of distributions: between its kinks $\varphi^{(k)}$ is a function, at a kink each jump $J_l$ of
$\varphi^{(l)}$, $l < k$, adds $J_l\,\delta^{(k-1-l)}$. Moments are values of $S_k$ at $\mu = 0$,
and duals are one-dimensional integrals of it. It closes under differentiation:
$\partial_\mu S_k = S_{k+1}$ and $\partial_v S_k = \tfrac12 S_{k+2}$.

All integrals are sums over Gauss-Legendre panels, whose edges are those that resolve the activation
(see :mod:`shoal.activations.panels`) and fixed ones that resolve the density. Rows of a batch need
different panels; empty ones are dropped before anything is evaluated.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.consistency import innermost
from shoal.activations.panels import ORDER, REMEDY, breaks, edges, gauss_legendre, jump, reach
from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings

_BLOCK = 256  # rows that are integrated at a time
TINY = 1e-75  # stands in for a standard deviation of zero
DELTA_WINDOW = 40.0  # standard deviations; beyond, the density is zero in float64
_WIDER = (10.0, 20.0, 38.0)  # windows that are tried in turn; beyond the last, exp(-ξ²/2) is zero
_PANEL = 5.0  # the widest panel that resolves the density, in standard deviations
_BEYOND = 1e-17  # how much of the largest squared integrand may be left at the ends of a window


def smoothed(
    phi: Activation, mean: Tensor, variance: Tensor, *, order: int = 0, first_jump: int = 0
) -> Tensor:
    r"""$\mathbb{E}[\varphi^{(k)}(\mu + \sqrt{v}\,\xi)]$, $k$ = ``order``, elementwise in float64.

    Args:
        phi: The activation.
        mean: $\mu$, float64.
        variance: $v \ge 0$, float64, broadcastable with ``mean``.
        order: The derivative $k$.
        first_jump: Jumps of derivatives below this one are left out; so
            ``order=k, first_jump=j`` smooths the $(k-j)$-th distributional derivative of the
            regular part of $\varphi^{(j)}$.
    """
    mean, variance = torch.broadcast_tensors(mean, variance)
    result: Tensor = _Smoothed.apply(  # type: ignore[no-untyped-call]
        mean, variance, phi, order, first_jump
    )
    return result


class _Smoothed(torch.autograd.Function):
    """Autograd for :func:`smoothed`; its derivatives are smoothed derivatives again."""

    @staticmethod
    def forward(
        mean: Tensor,
        variance: Tensor,
        phi: Activation,
        order: int,
        first_jump: int,
    ) -> Tensor:
        shape, mean, variance = mean.shape, mean.reshape(-1), variance.reshape(-1)
        if bool(mean.any()):
            return _integral(phi, mean, variance, order, first_jump).view(shape)
        some, inverse = variance.unique(return_inverse=True)  # pairs of inputs share moments
        total = _integral(phi, torch.zeros_like(some), some, order, first_jump)
        return total[inverse].view(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:2])
        ctx.arguments = inputs[2:]

    @staticmethod
    @in_standard_settings
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        mean, variance = ctx.saved_tensors
        phi, order, first_jump = ctx.arguments
        into: list[Tensor | None] = [None, None]
        if grad is None:
            return (*into, None, None, None)
        if ctx.needs_input_grad[0]:
            slope = smoothed(phi, mean, variance, order=order + 1, first_jump=first_jump)
            into[0] = grad * slope
        if ctx.needs_input_grad[1]:
            bend = smoothed(phi, mean, variance, order=order + 2, first_jump=first_jump)
            into[1] = grad * bend / 2
        return (*into, None, None, None)


def _integral(
    phi: Activation, mean: Tensor, variance: Tensor, order: int, first_jump: int
) -> Tensor:
    std = variance.sqrt().clamp(min=TINY)
    regular = smoothed_regular(phi, mean, std, order=order)
    return regular + _singular(phi, mean, std, order, first_jump)


def smoothed_regular(phi: Activation, mean: Tensor, std: Tensor, *, order: int) -> Tensor:
    """The integral over the smooth pieces alone; ``mean`` and ``std`` are vectors."""
    window = window_edges(phi, order, float(std.max()))
    rows = blocks(_BLOCK, mean, std)
    return torch.cat([_regular_block(phi, m, s, order, window) for m, s in rows])


def spread(std: Tensor, order: int) -> Tensor:
    """Standard deviations, exactly zero where they are: a derivative needs both sides of zero."""
    return std if order else torch.where(std > TINY, std, 0.0)


def _regular_block(
    phi: Activation, mean: Tensor, std: Tensor, order: int, window: tuple[float, ...]
) -> Tensor:
    radius = float((mean.abs() + window[-1] * std).max())
    cuts = resolved_edges(phi, radius, mean.device)
    nodes = panel_nodes((cuts - mean[:, None]) / std[:, None], window)
    x = torch.addcmul(nodes.expand_rows(mean), nodes.expand_rows(spread(std, order)), nodes.xi)
    return nodes.expectation(phi.derivative(x, order), len(mean))


def _singular(phi: Activation, mean: Tensor, std: Tensor, order: int, first_jump: int) -> Tensor:
    r"""The jumps' share: $\mathbb{E}[\delta_t^{(n)}] = He_n(z) p(z) / s^{n+1}$, z = (t-μ)/s."""
    total = torch.zeros_like(mean)
    span = float((mean.abs() + DELTA_WINDOW * std).max())
    for location in nearby_breaks(phi, span) if order > first_jump else ():
        z = (location - mean) / std
        density = normal_density(z)
        for derivative in range(first_jump, order):
            size = jump(phi, location, derivative)
            if size:
                n = order - 1 - derivative
                total = total + size * probabilists_hermite(z, n) * density / std ** (n + 1)
    return total


def probabilists_hermite(x: Tensor, degree: int) -> Tensor:
    r"""The polynomial $He_n(x)$, leading coefficient one."""
    before, value = torch.zeros_like(x), torch.ones_like(x)
    for k in range(degree):
        before, value = value, x * value - k * before
    return value


@dataclass(frozen=True)
class _Composite(Activation):
    """Made of another activation, and smooth where that is."""

    inner: Activation

    @property
    def panels_of(self) -> Activation:
        """The composed activation, whose panels resolve it."""
        return self.inner.panels_of


@dataclass(frozen=True)
class Square(_Composite):
    """The square of an activation."""

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the square."""
        return self.inner.derivative(x, 0) ** 2

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative of the square."""
        return 2 * self.inner.derivative(x, 0) * self.inner.derivative(x, 1)


@dataclass(frozen=True)
class Derivative(_Composite):
    """The pointwise derivative of an activation, of some order."""

    order: int

    def function(self, x: Tensor) -> Tensor:
        """Evaluate the derivative."""
        return self.inner.derivative(x, self.order)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the next derivative."""
        return self.inner.derivative(x, self.order + 1)


@dataclass(frozen=True)
class Nodes:
    """Quadrature nodes for a batch of rows.

    Attributes:
        row: The row that each panel belongs to.
        half: Half the width of each panel, in standard deviations.
        xi: The nodes of each panel, in standard deviations.
    """

    row: Tensor  # shape: (panels,)
    half: Tensor  # shape: (panels,)
    xi: Tensor  # shape: (panels, ORDER)

    def expand_rows(self, rows: Tensor) -> Tensor:
        """Spread one number per row over that row's panels; shape (panels, 1)."""
        return rows[self.row, None]

    def weighted(self, values: Tensor) -> Tensor:
        """Values at the nodes times their weights in integrals with the standard normal density."""
        weights = gauss_legendre(ORDER)[1].to(values.device) * self.half[:, None]
        density = (self.xi * self.xi).mul_(-0.5).exp_()
        return density.mul_(values).mul_(weights / math.sqrt(2 * math.pi))

    def sums(self, values: Tensor, rows: int) -> Tensor:
        """Sum the values at the nodes of each row."""
        return values.new_zeros(rows).index_add_(0, self.row, values.sum(-1))

    def expectation(self, values: Tensor, rows: int) -> Tensor:
        """Integrate ``values`` at the nodes against the standard normal density, row by row."""
        return self.sums(self.weighted(values), rows)


def blocks(rows: int, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut equally long vectors into blocks of some rows; larger ones off the CPU."""
    size = rows if vectors[0].device.type == "cpu" else 256 * rows
    yield from zip(*[vector.split(size) for vector in vectors], strict=True)


def normal_density(x: Tensor) -> Tensor:
    """The standard normal density."""
    return torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def resolved_edges(phi: Activation, radius: float, device: torch.device) -> Tensor:
    """The panel edges of ``phi`` that lie in [-radius, radius], kinks among them."""
    cuts = edges(phi, reach(phi, radius))
    return cuts[cuts.abs() <= radius].to(device)


def nearby_breaks(phi: Activation, radius: float) -> tuple[float, ...]:
    """The places in [-radius, radius] where ``phi`` is not analytic.

    They are looked for in a quarter of that: ten standard deviations, not forty.
    """
    return tuple(x for x in breaks(phi, reach(phi, radius / 4)) if abs(x) <= radius)


def window_edges(phi: Activation, order: int, std: float) -> tuple[float, ...]:
    r"""Edges that resolve the density, as far out as $\varphi^{(k)}(s\xi)$ has weight under it.

    Raises:
        AccuracyError: If the function grows too fast to be integrated at this scale.
    """
    reach(phi, 1.0)  # checks the user's function before it is evaluated
    for window in _WIDER:
        xi = torch.linspace(-window, window, 161, dtype=torch.float64)
        weight = phi.derivative(std * xi, order) ** 2 * torch.exp(-(xi**2) / 2)
        ends = torch.maximum(weight[0], weight[-1])
        if bool(weight.isfinite().all() & (ends <= _BEYOND * weight.max())):
            panels = math.ceil(window / _PANEL)
            return tuple([window * k / panels for k in range(-panels, panels + 1)])
    raise AccuracyError(
        f"{innermost(phi)!r} grows too fast to be integrated under a Gaussian of standard "
        f"deviation {std:.6g}, or autograd loses its derivatives; if so, {REMEDY}"
    )


def panel_nodes(cuts: Tensor, density_edges: tuple[float, ...]) -> Nodes:
    """The nodes of panels with the given edges and those that resolve the density.

    Args:
        cuts: Edges in standard deviations, unsorted; infinite ones are ignored; (rows, edges).
        density_edges: Edges that resolve the rest of the integrand.
    """
    low, high = density_edges[0], density_edges[-1]
    fixed = cuts.new_tensor(density_edges).expand(cuts.shape[0], -1)
    every = torch.cat([cuts.nan_to_num(high, high, low).clamp(low, high), fixed], dim=1)
    every = every.sort(dim=1).values
    width = every.diff(dim=1)
    row, panel = (width > 0).nonzero(as_tuple=True)
    half = width[row, panel] / 2
    nodes = gauss_legendre(ORDER)[0].to(cuts.device)
    return Nodes(row, half, torch.addcmul(every[row, panel, None], half[:, None], 1 + nodes))
