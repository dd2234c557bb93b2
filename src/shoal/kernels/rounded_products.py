r"""Products with a kernel matrix in reduced precision, whose entries are made and dropped.

Where all inputs have one norm, or norms are but factors, a kernel divided by the roots of its
diagonal is an analytic function of the angle, and up to angles near $\pi$ of $\sin\tfrac\theta2$,
the root of $(1 - \cos\theta)/2$. A polynomial of that, a dozen multiplications, gives entries with
an error of about 1e-7, and blocks of them are multiplied from both sides and forgotten. On a GPU
cosines come from products of half-precision numbers: see
:mod:`shoal.kernels.backends.half_precision`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from shoal.kernels.approximations.surface import Surface
from shoal.kernels.backends import Polynomial, Rounded
from shoal.kernels.images.matrix import ImagePlan
from shoal.kernels.plan import Plan
from shoal.kernels.strips import assign_strips, strips
from shoal.numerics import chebyshev_nodes, coefficients_from_values

_DEGREE, _LAST = 8, 32  # of the polynomial: the first that is tried, and the last
_ENOUGH = 3e-8  # the last coefficients of its series in Chebyshev's form, where they are enough
_WIDE = -0.7  # cosine below which polynomials are those of the angle itself
_MARGIN = 0.01  # of the least cosine, which is found in half precision


@dataclass(frozen=True, eq=False)
class RoundedProducts:
    """A symmetric kernel matrix, for products in float32.

    Attributes:
        plan: The matrix.
        surface: Its kernels as functions of the angle.
        kernel: Which of them: 0 for the CK, 1 for the NTK.
    """

    plan: Plan
    surface: Surface
    kernel: int

    def product(self, vectors: Tensor, rank: int, num_processes: int) -> Tensor:
        """What one of several processes has of the product with columns, in float64."""
        inputs, scale = self._inputs, self.plan.rows.scale[self.kernel].double()[:, None]
        size = len(inputs.rows)
        given = vectors.new_zeros(size, vectors.shape[1], dtype=torch.float32)
        given[: len(vectors)] = scale * vectors
        result = torch.zeros_like(given, dtype=torch.float64)
        multiply, polynomial = self.plan.backend.multiply, self._polynomial
        parts = list(strips((size, size), inputs.block[0], symmetric=True))
        for (rows, across), owner in zip(parts, assign_strips(parts, num_processes), strict=True):
            if owner == rank:
                own = inputs[rows], given[rows]
                result[rows] += multiply(polynomial, own, own, diagonal=True)[0]
                for columns in _blocks(rows.stop, across.stop, inputs.block[1]):
                    other = inputs[columns], given[columns]
                    down, along = multiply(polynomial, own, other, diagonal=False)
                    result[rows] += down
                    result[columns] += along
        return scale * result[: len(vectors)]

    @cached_property
    def _inputs(self) -> Rounded:
        return self.plan.backend.rounded(self.plan.left.unit)

    @cached_property
    def _polynomial(self) -> Polynomial:
        found = _fitted(self.surface, self.kernel, self._least_cosine())
        return found._replace(numbers=found.numbers.to(self._inputs.scale))

    def _least_cosine(self) -> float:
        """A bound of all cosines from below; none is negative if no input has a negative number."""
        if bool((self.plan.left.points >= 0).all()):
            return -1e-4
        inputs, least = self._inputs, 0.0
        for rows in _blocks(0, len(inputs.rows), inputs.block[0]):
            for columns in _blocks(rows.start, len(inputs.rows), inputs.block[1]):
                found = inputs.rows[rows] @ inputs.columns[columns].T
                cosine = found.float() * inputs.scale[rows, None] * inputs.scale[columns]
                least = min(least, float(cosine.min()))
        return max(least - _MARGIN, -1.0)


def rounded_products(plan: Plan | ImagePlan, kernel: int) -> RoundedProducts | None:
    """Products in reduced precision, where there is a way to them."""
    if isinstance(plan, ImagePlan) or not plan.symmetric or not isinstance(plan.wide, Surface):
        return None
    known = plan.function.architecture.positively_homogeneous or bool((plan.left.norm > 0).all())
    return RoundedProducts(plan, plan.wide, kernel) if known else None


def _blocks(start: int, stop: int, step: int) -> Iterator[slice]:
    return (slice(begin, min(begin + step, stop)) for begin in range(start, stop, step))


def _fitted(surface: Surface, kernel: int, least: float) -> Polynomial:
    """The kernel as a polynomial, for cosines from the least one on."""
    of_angle = least < _WIDE  # where the half sine is stationary, and angles are not analytic in it
    end = math.acos(least) if of_angle else math.sqrt((1 - least) / 2)
    for degree in range(_DEGREE, _LAST + 1, 2):
        nodes = chebyshev_nodes(degree, 0.0, end)
        one = nodes.new_ones(degree + 1, 1)
        values = surface.pairs(one, one, nodes if of_angle else 2 * nodes.asin())[kernel]
        series = coefficients_from_values(values)
        if float(series[-2:].abs().max()) < _ENOUGH:
            break
    powers = np.polynomial.chebyshev.cheb2poly(series.numpy())
    numbers = torch.from_numpy(np.concatenate([[2 / end], powers[::-1]])).float()
    return Polynomial(numbers, of_angle)
