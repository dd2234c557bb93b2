r"""Both duals of an activation as series in the angle, for pairs out of a few variances.

Divided by the roots of the mean squares, $D_\varphi$ and $D_{\varphi'}$ are smooth functions of the
logarithms of both variances and of the angle. One series of three variables is fitted to each for a
range of variances, verified off its grid and kept: the pairs of any variances in it, such as those
that an optimizer tries, have short series in the angle, which need no integrals.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.core.caches import cached
from shoal.gaussian.moments import mean_square, slope_square
from shoal.numerics import chebyshev_basis, chebyshev_nodes, coefficients_from_values
from shoal.numerics.sampling import off_grid

Duals = Callable[[Activation, Tensor, Tensor, Tensor], Tensor]
"""Both duals, (2, pairs, m), given variances, their places in pairs, covariances, (pairs, m)."""

_STEP, _WIDEST = 2, 6  # ranges of log₂ of variances end at multiples, and are at most so wide
_DEGREES = 24, 64  # in the variances and in the angle
_CHECKS = 6, 16  # the same of points off the grid
_ERROR = 1e-13  # relative to the root of both mean squares
_NEGLIGIBLE = 1e-15  # sum of what is left out of a series


@dataclass(frozen=True, eq=False)
class AngularSeries:
    """Series in the angle of some pairs.

    Attributes:
        angles: The range of the angles.
        coefficients: Those of both duals, divided by ``sizes``. shape: (pairs, 2, terms)
        root: The roots of the products of both variances. shape: (pairs, 1)
        sizes: The roots of the products of both mean squares. shape: (2, pairs, 1)
    """

    angles: tuple[float, float]
    coefficients: Tensor
    root: Tensor
    sizes: Tensor

    @classmethod
    def of(
        cls, phi: Activation, variances: Tensor, places: Tensor, inset: float, exact: Duals
    ) -> "AngularSeries | None":
        """Those of some pairs; ``None`` if there are none for such variances.

        Args:
            phi: The activation, which does not jump.
            variances: All different ones. shape: (v,)
            places: Which of them both sides of each pair have. shape: (2, pairs)
            inset: Angles next to 0 and π that are left out.
            exact: What is fitted.
        """
        smallest, largest = (float(end) for end in torch.aminmax(variances))
        if not smallest > 0:
            return None
        low, high = math.log2(smallest) / _STEP, math.log2(largest) / _STEP
        span = _STEP * math.floor(low), _STEP * max(math.ceil(high), math.floor(low) + 1)
        if span[1] - span[0] > _WIDEST:
            return None
        angles = inset, math.pi - inset
        core = _core(phi, span, angles, exact)
        if core is None:
            return None
        across = chebyshev_basis(_unit(variances.log2(), span), core.shape[1] - 1).T
        sides = torch.tensordot(across, core.to(across), ([1], [1]))  # (v, 2, norms, terms)
        i, j = places
        found = torch.einsum("pqjk,pj->pqk", sides[i], across[j])
        sizes = _sizes(phi, variances)
        return cls(
            angles,
            found,
            (variances[i] * variances[j]).sqrt()[:, None],
            (sizes[:, i] * sizes[:, j])[..., None],
        )

    def __call__(self, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Both duals, of shape (2, pairs, m), and at which covariances they are known."""
        angle = (covariance / self.root).clamp(-1.0, 1.0).acos_()
        known = (angle >= self.angles[0]) & (angle <= self.angles[1])
        pairs, _, terms = self.coefficients.shape
        basis = chebyshev_basis(_unit(angle, self.angles).reshape(-1), terms - 1)
        basis = basis.view(terms, pairs, -1).transpose(0, 1)
        return torch.bmm(self.coefficients, basis).transpose(0, 1) * self.sizes, known


@cached
def _core(
    phi: Activation, span: tuple[int, int], angles: tuple[float, float], exact: Duals
) -> Tensor | None:
    """Coefficients of both. shape: (2, norms, norms, terms); ``None`` if they miss a dual."""
    degree, around = _DEGREES
    nodes, angle = chebyshev_nodes(degree, *span), chebyshev_nodes(around, *angles)
    i, j = torch.triu_indices(degree + 1, degree + 1)
    half = _normalized(phi, nodes, (i, j), angle, exact)
    values = half.new_empty(2, degree + 1, degree + 1, around + 1)
    values[:, i, j], values[:, j, i] = half, half
    for dim in (1, 2, 3):
        values = coefficients_from_values(values, dim)
    for dims in ((1, 2), (3,)):  # both variances alike
        sizes = values.abs().movedim(dims[0], 0).flatten(1).amax(1)
        needed = max(1, int((sizes.flip(0).cumsum(0).flip(0) > _NEGLIGIBLE).sum()))
        for dim in dims:
            values = values.narrow(dim, 0, needed)
    off, angle = (
        off_grid((s,), count)[0] for s, count in zip((span, angles), _CHECKS, strict=True)
    )
    i, j = torch.triu_indices(len(off), len(off))
    basis = chebyshev_basis(_unit(off, span), values.shape[1] - 1)
    found = torch.einsum(
        "qrsk,rp,sp,km->qpm",
        values,
        basis[:, i],
        basis[:, j],
        chebyshev_basis(_unit(angle, angles), values.shape[3] - 1),
    )
    error = (found - _normalized(phi, off, (i, j), angle, exact)).abs().max()
    return values.contiguous() if float(error) <= _ERROR else None


def _normalized(
    phi: Activation, logs: Tensor, pairs: tuple[Tensor, Tensor], angle: Tensor, exact: Duals
) -> Tensor:
    """Both duals, divided by the roots of mean squares, at pairs of variances and angles."""
    variances, (i, j) = logs.exp2(), pairs
    root, sizes = (variances[i] * variances[j]).sqrt(), _sizes(phi, variances)
    found = exact(phi, variances, torch.stack(pairs), root[:, None] * angle.cos())
    return found / (sizes[:, i] * sizes[:, j])[..., None]


def _sizes(phi: Activation, variances: Tensor) -> Tensor:
    """Roots of the mean squares of an activation and of its derivative. shape: (2, v)."""
    return torch.stack([mean_square(phi, variances)[0], slope_square(phi, variances)]).sqrt()


def _unit(x: Tensor, span: tuple[float, float]) -> Tensor:
    """A range as [-1, 1]."""
    low, high = span
    return (((x - low) - (high - x)) / (high - low)).clamp(-1.0, 1.0)
