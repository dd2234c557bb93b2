"""Piecewise polynomials as activations: any function, at the price of a table."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from shoal.activations.base import Activation
from shoal.activations.lookup import evaluate
from shoal.core.checks import items, real
from shoal.core.torch_compat import is_batched_by_autograd, uncompiled

_PANEL_DEGREE = 16  # squares of such pieces are integrated exactly on a panel


@dataclass(frozen=True, repr=False, eq=False)
class PiecewisePolynomial(Activation):
    r"""A continuous function that is a polynomial between knots, and linear beyond the last ones.

    Between $t_i$ and $t_{i+1}$ it is $\sum_j p_{ij} s^j$ with $s \in [-1, 1]$ the place between the
    two knots. Below the first knot and above the last it goes on with its value and slope there.

    Args:
        knots: $t_0 < t_1 < \dots$; at least two.
        pieces: The coefficients $p_{i0}, p_{i1}, \dots$ of each piece, equally many.
        corners: The places where it is not smooth, if at other knots the pieces fit to rounding,
            derivatives included; all knots by default.

    Example:
        >>> import torch
        >>> from shoal.activations import PiecewisePolynomial
        >>> bump = PiecewisePolynomial((-1.0, 1.0), ((1.0, 0.0, -1.0),))  # 1 - x², tangents outside
        >>> bump(torch.tensor([-2.0, 0.0, 0.5, 2.0]))
        tensor([-2.0000,  1.0000,  0.7500, -2.0000])
        >>> bump.lipschitz
        2.0
    """

    __slots__ = ("_hash",)

    knots: tuple[float, ...]
    pieces: tuple[tuple[float, ...], ...]
    corners: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        knots = _numbers("knots", self.knots)
        if len(knots) < 2 or any(a >= b for a, b in pairwise(knots)):
            raise ValueError(f"knots must be at least two, ascending, got {knots}")
        if isinstance(self.pieces, str) or not isinstance(self.pieces, Iterable):
            raise TypeError(f"pieces must be a sequence of sequences, got {self.pieces!r}")
        pieces = tuple(_numbers(f"pieces[{i}]", piece) for i, piece in enumerate(self.pieces))
        if len(pieces) != len(knots) - 1:
            raise ValueError(
                f"pieces must be one fewer than the {len(knots)} knots, got {len(pieces)}"
            )
        if len({len(piece) for piece in pieces}) != 1 or not pieces[0]:
            raise ValueError("pieces must have equally many coefficients, at least one")
        object.__setattr__(self, "knots", knots)
        object.__setattr__(self, "pieces", pieces)
        if self.corners is not None:
            object.__setattr__(self, "corners", _numbers("corners", self.corners))

    def __hash__(self) -> int:
        """A hash that is computed once: it is of thousands of numbers, and often asked for."""
        kept: int | None = getattr(self, "_hash", None)
        if kept is None:
            kept = hash((self.knots, self.pieces, self.corners))
            object.__setattr__(self, "_hash", kept)
        return kept

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone."""
        return vars(self)

    def __repr__(self) -> str:
        """Say what matters and leave out the numbers."""
        low, high = self.knots[0], self.knots[-1]
        degree = len(self.pieces[0]) - 1
        mark = zlib.crc32(repr((self.knots, self.pieces)).encode())  # the same in every process
        return (
            f"PiecewisePolynomial({len(self.pieces)} pieces of degree {degree} "
            f"on [{low:.6g}, {high:.6g}], hash {mark:08x})"
        )

    def function(self, x: Tensor) -> Tensor:
        """Look up each entry's piece and evaluate it by Horner's rule."""
        return self._bisected(x) if torch.compiler.is_exporting() else _lookup(x, None, self, 0)

    def _bisected(self, x: Tensor) -> Tensor:
        """The same in operations that every exported program knows."""
        knots, pieces = x.new_tensor(self.knots), x.new_tensor(self.pieces)
        place, last = torch.zeros_like(x, dtype=torch.int64), len(self.knots) - 1
        for power in reversed(range(last.bit_length())):
            further = (place + 2**power).clamp(max=last)
            place = torch.where(knots[further] <= x, further, place)
        place = place.clamp(max=last - 1)
        s = 2 * (x - knots[place]) / (knots[place + 1] - knots[place]) - 1
        inside = s.clamp(-1, 1)
        value = slope = torch.zeros_like(x)
        for power in reversed(range(pieces.shape[1])):
            slope = slope * inside + value
            value = value * inside + pieces[:, power][place]
        return value + slope * (s - inside)

    def first_derivative(self, x: Tensor) -> Tensor:
        """Evaluate the derivative; at a knot, that of the piece above it."""
        return _lookup(x, None, self, 1)

    @property
    def kink_locations(self) -> tuple[float, ...]:
        """The corners."""
        return self.knots if self.corners is None else self.corners

    @property
    def panel_edges(self) -> tuple[float, ...] | None:
        """The knots, unless pieces have so high a degree that their squares need finer panels."""
        return self.knots if len(self.pieces[0]) <= _PANEL_DEGREE + 1 else None


class _Lookup(torch.autograd.Function):
    """A derivative of the function times a weight; its derivatives are of the same kind.

    Only arguments are saved, and each gradient is one more pass over them.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor | None, phi: PiecewisePolynomial, order: int) -> Tensor:
        return evaluate(phi, order, x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])
        ctx.arguments = inputs[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        into_x, into_weight, *_ = ctx.needs_input_grad
        x, weight = ctx.saved_tensors
        return (
            _differential(x, weight, grad, *ctx.arguments) if into_x else None,
            _lookup(x, grad, *ctx.arguments) if into_weight else None,
            None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, change: Tensor | None, *_: None) -> Tensor:
        x, weight = ctx.saved_tensors
        moved = None if tangent is None else _differential(x, weight, tangent, *ctx.arguments)
        if change is None:
            return torch.zeros_like(x) if moved is None else moved
        other = _lookup(x, change, *ctx.arguments)
        return other if moved is None else moved + other

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor | None, *rest: Any
    ) -> tuple[Tensor, int]:
        x = _batched(x, in_dims[0], info.batch_size)
        if weight is not None:
            weight = _batched(weight, in_dims[1], info.batch_size)
        return _lookup(x, weight, *rest), 0


def _batched(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


@uncompiled  # a graph would take in how the table is made
def _lookup(x: Tensor, weight: Tensor | None, phi: PiecewisePolynomial, order: int) -> Tensor:
    if weight is not None and is_batched_by_autograd(weight):
        return weight * _lookup(x, None, phi, order)  # no rule for those of is_grads_batched
    result: Tensor = _Lookup.apply(x, weight, phi, order)  # type: ignore[no-untyped-call]
    return result


def _differential(
    x: Tensor, weight: Tensor | None, tangent: Tensor, phi: PiecewisePolynomial, order: int
) -> Tensor:
    """What a change of ``x`` makes of the weighted derivative."""
    return _lookup(x, tangent if weight is None else tangent * weight, phi, order + 1)


def _numbers(name: str, values: object) -> tuple[float, ...]:
    return tuple(
        real(f"{name}[{k}]", value)
        for k, value in enumerate(items(name, values, "a sequence of numbers"))
    )
