"""A function of one to three variables as a Chebyshev series with a bound of its error."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from shoal.core import checks
from shoal.core.exceptions import AccuracyError

from .series import chebyshev_basis, differentiate, mode_product, supremum
from .tucker import Tucker, contract, hosvd

Box: TypeAlias = tuple[tuple[float, float], ...]

MAX_AXES = 3
_BLOCK_CPU = 2**21
"""Numbers in the work space of a block on a CPU: measured; fewer cost overhead, more the cache."""
_BLOCK_OTHER = 2**25
"""The same elsewhere: enough to hide the launch of the kernels."""
_EPSILON = torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False, repr=False)
class Chebyshev:
    r"""The series :math:`\sum_{ijk} C_{ijk} T_i(t_0) T_j(t_1) T_k(t_2)`, t the box scaled to ±1.

    Usually made by `fit`. It may also hold the coefficients of several series of the same degrees,
    which are not called.

    Args:
        box: Lower and upper end per axis, for one to three axes.
        coefficients: The tensor C, float64, one dimension per axis; those before count series.
        error: Bound of the distance to the function that the series stands for.
        tucker: The same coefficients at low rank, for fast evaluation; see `compress`.
        sampled: Degrees of the grid on which the function was seen, if it was.

    Example:
        >>> square = Chebyshev(((0.0, 2.0),), torch.tensor([1.5, 2.0, 0.5], dtype=torch.float64))
        >>> square(torch.tensor([0.5, 2.0]))
        tensor([0.2500, 4.0000], dtype=torch.float64)
    """

    box: Box
    coefficients: Tensor
    error: float = 0.0
    tucker: Tucker | None = None
    sampled: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the fields, so that nothing after has to."""
        object.__setattr__(self, "box", checked_box(self.box))
        checks.float_tensor("coefficients", self.coefficients)
        if self.coefficients.dtype != torch.float64 or self.coefficients.ndim < len(self.box):
            raise ValueError(
                f"coefficients must be float64 with {len(self.box)} dimensions or more, got "
                f"{self.coefficients.dtype} of shape {tuple(self.coefficients.shape)}"
            )
        checks.real("error", self.error, at_least=0.0)

    def __repr__(self) -> str:
        """Say what matters and leave out the numbers."""
        ranks = "" if self.tucker is None else f", ranks={tuple(self.tucker.core.shape)}"
        return f"Chebyshev(box={self.box}, degrees={self.degrees}{ranks}, error={self.error:.2g})"

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degree per axis."""
        return tuple(size - 1 for size in self.coefficients.shape[-len(self.box) :])

    def __call__(self, *points: Tensor) -> Tensor:
        """Return the values at broadcastable tensors, one per axis, in float64, by blocks.

        Raises:
            ValueError: The number of axes is wrong, or a point is NaN, outside the box or requires
                gradients, which series do not have.
        """
        if self.coefficients.ndim > len(self.box):
            raise ValueError("several series are not called: make a Chebyshev of each")
        if len(points) != len(self.box):
            raise ValueError(f"points must be given for {len(self.box)} axes, got {len(points)}")
        for axis, (tensor, (low, high)) in enumerate(zip(points, self.box, strict=True)):
            _check_points(axis, tensor, low, high)
        columns = torch.broadcast_tensors(*(tensor.detach() for tensor in points))
        out = torch.empty_like(columns[0], dtype=torch.float64)
        self._fill(out, columns)
        return out

    def _fill(self, out: Tensor, points: Sequence[Tensor]) -> None:
        """Write the values at points of the shape of ``out`` into it.

        Expanded points are cut before they are copied, so that the work space does not depend on
        the number of points.
        """
        numbers = _BLOCK_CPU if out.device.type == "cpu" else _BLOCK_OTHER
        size = max(1, numbers // self.workspace)
        if out.numel() > size:
            dim = max(range(out.ndim), key=out.size)
            step = max(1, size * out.shape[dim] // out.numel())
            parts = [torch.split(t, step, dim) for t in (out, *points)]
            for part, *cut in zip(*parts, strict=True):
                self._fill(part, cut)
        elif out.numel() > 0:
            columns = [p.reshape(-1).to(torch.float64) for p in points]
            out.copy_(self.evaluate_block(columns).view(out.shape))

    def on_grid(self, points: Sequence[Tensor]) -> Tensor:
        """Return the values of all series on the tensor grid of points, one vector per axis."""
        values = self.coefficients
        for dim, x, (low, high) in zip(range(-len(points), 0), points, self.box, strict=True):
            t = ((x - low) - (high - x)) / (high - low)  # exact near both ends
            values = mode_product(chebyshev_basis(t, values.shape[dim] - 1).T, values, dim)
        return values

    @property
    def workspace(self) -> int:
        """Numbers that each point takes while a block is evaluated."""
        ranks = () if self.tucker is None else self.tucker.core.shape
        *others, last = sorted(ranks or self.coefficients.shape)
        return sum(self.coefficients.shape) + sum(ranks) + math.prod(others) + last

    def evaluate_block(self, points: Sequence[Tensor]) -> Tensor:
        """Return the values at equally long float64 vectors, unchecked and in one block."""
        bases = []
        for x, (low, high), degree in zip(points, self.box, self.degrees, strict=True):
            # Exact near both ends, where a series of high degree is most sensitive.
            t = ((x - low) - (high - x)).div_(high - low).clamp_(-1.0, 1.0)
            bases.append(chebyshev_basis(t, degree))
        device = points[0].device
        if self.tucker is None:
            return contract(self.coefficients.to(device), bases)
        factors = self.tucker.factors
        bases = [u.to(device).T @ basis for u, basis in zip(factors, bases, strict=True)]
        return contract(self.tucker.core.to(device), bases)

    def compress(self, tolerance: float) -> "Chebyshev":
        """Return a low-rank (Tucker) series within ``tolerance``, which evaluates faster.

        Args:
            tolerance: Largest change of any value on the box, absolute. What the discarded
                singular values do change is bounded rigorously and added to the error.

        Raises:
            AccuracyError: The tolerance is below the rounding errors of the decomposition.

        Example:
            >>> table = Chebyshev(((0.0, 1.0),) * 2, torch.ones(9, 9, dtype=torch.float64))
            >>> table.compress(1e-9).tucker.core.shape
            torch.Size([1, 1])
        """
        tolerance = checks.real("tolerance", tolerance, above=0.0)
        budget = tolerance
        while True:
            tucker = hosvd(self.coefficients, budget)
            dense = tucker.dense()
            change = supremum(self.coefficients - dense)
            if change <= tolerance:
                error = self.error + change + rounding(dense)
                return replace(self, coefficients=dense, tucker=tucker, error=error)
            if budget < _EPSILON * change:
                raise AccuracyError(
                    f"compression to tolerance {tolerance:.2g} is lost in rounding errors of "
                    f"{change:.2g}; ask for a larger tolerance, or keep the full series"
                )
            budget /= 2


def _check_points(axis: int, points: Tensor, low: float, high: float) -> None:
    """Raise where a point is NaN or beyond the ends by more than their rounding."""
    checks.dense_tensor(f"points of axis {axis}", points)
    if points.requires_grad and torch.is_grad_enabled():
        raise ValueError("points must not require gradients: series are not differentiated")
    if points.numel() == 0:
        return
    smallest, largest = torch.stack(torch.aminmax(points.detach())).tolist()
    slack = 4 * torch.finfo(points.dtype).eps * max(abs(low), abs(high))
    if math.isnan(smallest):
        raise ValueError(f"points of axis {axis} must not be NaN")
    if smallest < low - slack or largest > high + slack:
        raise ValueError(
            f"points of axis {axis} must lie in [{low:g}, {high:g}], "
            f"got values from {smallest:g} to {largest:g}"
        )


def rounding(coefficients: Tensor, axes: int | None = None) -> float:
    r"""Return a bound of the rounding errors that an evaluation makes, in practice.

    Some units in the last place of every term, and of the scaled point through the slope:
    :math:`4 \epsilon (\sum |c| + \sum_a \max |\partial p / \partial t_a|)`. The arguments are those
    of `supremum`.

    Example:
        >>> rounding(torch.ones(1, dtype=torch.float64)) / torch.finfo(torch.float64).eps
        4.0
    """
    axes = coefficients.ndim if axes is None else axes
    slopes = sum(supremum(differentiate(coefficients, dim), axes) for dim in range(-axes, 0))
    sizes = coefficients.abs().sum(tuple(range(-axes, 0)))
    return 4 * _EPSILON * (float(sizes.max()) + slopes)


def checked_box(box: Sequence[Sequence[float]]) -> Box:
    """Return the box as nested tuples of floats, or say what is wrong with it."""
    if not isinstance(box, Sequence) or not all(isinstance(pair, Sequence) for pair in box):
        raise TypeError(f"box must be a sequence of (low, high), one per axis, got {box!r}")
    if not 1 <= len(box) <= MAX_AXES:
        raise ValueError(f"box must have one to {MAX_AXES} axes, got {len(box)}")
    ends = []
    for axis, pair in enumerate(box):
        if len(pair) != 2:
            raise ValueError(f"box[{axis}] must be (low, high), got {pair!r}")
        low = checks.real(f"box[{axis}][0]", pair[0])
        ends.append((low, checks.real(f"box[{axis}][1]", pair[1], above=low)))
    return tuple(ends)
