r"""Derivatives of whole kernel matrices in variances, entry by entry.

The backward pass of a matrix sums over entries; who asks for each of them, such as scikit-learn,
gets them here, by the same identity (see :mod:`shoal.kernels.sources`): a change of $\sigma_a^2$
moves norms and angles of the inputs, in which the surface of the kernel is differentiated.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from shoal.approximation import chebyshev_basis, differentiate
from shoal.architectures import DEQ
from shoal.kernels.adjoint import padded
from shoal.kernels.arguments import checked_samples
from shoal.kernels.evaluation import mirror
from shoal.kernels.function import KernelFunction
from shoal.kernels.inputs import Inputs
from shoal.kernels.lines import Lines, Weights, own_lines
from shoal.kernels.matrix import strips
from shoal.kernels.plan import Plan
from shoal.kernels.result import Kernels
from shoal.kernels.slopes import Slopes
from shoal.kernels.sources import ntk_factors
from shoal.kernels.special import pair_tangents

__all__ = ["variance_tangents"]

_FEW_PAIRS = 1 << 13  # pairs that are cheaper one by one than by a surface
_WORK = 1 << 21  # numbers of the basis of some rows


def variance_tangents(
    function: KernelFunction, x: Tensor, names: Iterable[str]
) -> dict[str, Kernels]:
    """Derivatives of both kernel matrices of some inputs in variances of the architecture.

    Args:
        function: The kernels.
        x: The inputs. shape: (n, p)
        names: Of the variances, none of which is zero.

    Returns:
        Two symmetric matrices for each name.

    Example:
        >>> import torch, shoal
        >>> f = shoal.kernel_function(shoal.DEQ(shoal.ReLU(), 0.2, 0.8))
        >>> variance_tangents(f, torch.eye(2).double(), ["input_variance"])["input_variance"].ck
        tensor([[0.5556, 0.1863],
                [0.1863, 0.5556]], dtype=torch.float64)
    """
    names = tuple(names)
    inputs = Inputs(checked_samples("x", x))
    plan = Plan.of(function, inputs, inputs, few_pairs=_FEW_PAIRS)
    lines = Lines(plan, names, partial(strips, limit=None))
    result = x.new_empty(len(names), 2, len(inputs), len(inputs))
    terms = 0 if lines.slopes is None else lines.slopes.surface.coefficients[0, 0].numel()
    step = max(1, _WORK // ((terms + 8) * len(inputs)))
    for start in range(0, len(inputs), step):
        rows = slice(start, min(start + step, len(inputs)))
        _fill(lines, result, rows)
        for matrix in result.flatten(0, 1):
            mirror(matrix, rows)
    return {name: Kernels(*matrices) for name, matrices in zip(names, result, strict=True)}


def _fill(lines: Lines, result: Tensor, rows: slice) -> None:
    """Some rows, from the diagonal on."""
    plan, columns = lines.plan, slice(rows.start, None)
    block = result[..., rows, columns]
    cosine = plan.left.unit[rows] @ plan.left.unit[columns].T
    single = lines.special(cosine, rows, columns).triu(1)
    if lines.slopes is not None:
        sides = lines.sides[0][rows], lines.sides[0][columns]
        known = single.logical_not().triu(1)
        entries = _Entries.of(lines.slopes, sides, cosine.masked_fill(~known, 0.0))
        function = plan.function
        found = _tangents(function, entries, sides)
        block.copy_(torch.stack([found[name] for name in lines.names]))
    where = single.nonzero(as_tuple=True)
    if len(where[0]):
        values = pair_tangents(plan, lines.names, *(k + rows.start for k in where))
        block[..., where[0], where[1]] = values.to(block)
    norm = plan.left.norm[rows].clamp(min=1e-100)
    own = own_lines(plan, lines.names, norm)[2:]
    block.diagonal(dim1=-2, dim2=-1).copy_(own)


@dataclass(frozen=True, eq=False)
class _Entries:
    """Entries of both kernels and their derivatives, each of shape (2, n, m)."""

    cosine: Tensor
    values: Tensor
    in_left: Tensor
    in_right: Tensor
    in_cosine: Tensor

    @classmethod
    def of(cls, slopes: Slopes, sides: tuple[Weights, Weights], cosine: Tensor) -> "_Entries":
        """Those that a surface knows; derivatives in the logarithms of norms and in cosines."""
        low, high = slopes.angles
        angle = cosine.clamp(-1.0, 1.0).acos()
        coefficients = slopes.surface.coefficients
        terms = coefficients.shape[-1]
        t = (((angle - low) - (high - angle)) / (high - low)).clamp(-1.0, 1.0)
        basis = chebyshev_basis(t.reshape(-1), terms - 1).view(terms, *t.shape)

        def sums(series: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
            own = torch.einsum("qnr,qrsk->qnsk", rows, series.to(rows))
            inner = torch.einsum("qnsk,knm->qnsm", own, basis)
            return torch.einsum("qnsm,qms->qnm", inner, columns)

        left, right = sides
        turned = padded(differentiate(coefficients) * (2 / (high - low)), terms)
        radial = coefficients if slopes.radial is None else slopes.radial
        return cls(
            cosine,
            sums(coefficients, left.weights, right.weights),
            sums(radial, left.slopes, right.weights),
            sums(radial, left.weights, right.slopes),
            sums(turned, left.weights, right.weights) / -angle.sin(),
        )


def _tangents(
    function: KernelFunction, entries: _Entries, sides: tuple[Weights, Weights]
) -> dict[str, Tensor]:
    """Derivatives in the variances of a DEQ, of shape (2, n, m)."""
    deq = function.architecture
    assert isinstance(deq, DEQ)
    injection, like = deq.input_variance, entries.cosine
    left, right = (s.norm.to(like) for s in sides)
    scale = left[:, None] * right * injection
    ck, through = entries.values[0], entries.in_cosine[0] / scale

    def moved(owns: tuple[Tensor, Tensor], pair: Tensor) -> Tensor:
        """How entries change if sources grow by these amounts: norms and cosines move with them."""
        rates = [
            (own / (2 * injection * s.norm**2)).to(like) for own, s in zip(owns, sides, strict=True)
        ]
        turn = pair / scale - entries.cosine * (rates[0][:, None] + rates[1])
        change = entries.in_left * rates[0][:, None] + entries.in_right * rates[1]
        return change + entries.in_cosine * turn

    f, product = ntk_factors(function), scale * entries.cosine
    recurrent = moved((sides[0].own, sides[1].own), ck)
    recurrent[1] += (f.recurrent * ck + f.inputs * product + f.bias) * through**2
    recurrent[1] += (f.own_recurrent - f.inputs) * ck * through
    ones = torch.ones_like(sides[0].norm), torch.ones_like(sides[1].norm)
    bias = moved(ones, torch.ones_like(ck))
    bias[1] += (f.own_bias - f.inputs) * through
    seen = (entries.in_left + entries.in_right) / 2
    if deq.parametrization == "standard":
        seen[1] -= f.inputs * product * through
    return {
        "recurrent_variance": recurrent,
        "input_variance": seen / injection,
        "bias_variance": bias,
    }
