r"""The Jacobian of the cell at equilibria: norms, spectral radii and eigenvalues of each sample.

Small states have theirs formed. Of larger ones only products are made: $\|J\|$ by Lanczos on
$J^\top J$ and eigenvalues by Arnoldi, each sample with a Krylov space of its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.equilibrium.problem import Linearization, Problem
from shoal.numerics.krylov import RowSpaces
from shoal.numerics.norms import norms_from_below

_FORMED = 128  # entries of a state up to which the Jacobian is formed
_ROUNDING = 500  # units of rounding in a product of many terms
_STEPS = 48  # products in each Krylov space
_SAMPLES = 16  # at most
_ENTRIES = 2**24  # of a Krylov space, of all samples together: those of large states are fewer


@dataclass(frozen=True, eq=False)
class JacobianSpectrum:
    r"""The Jacobian $J$ of the cell at the equilibria of some samples.

    Attributes:
        samples: Which samples.
        norms: $\|J\|$ of each; from below, unless ``exact``.
        radii: The spectral radius of each.
        eigenvalues: Those of each that were found, by their modulus, largest first.
        nearest_one: The least $|1 - \lambda|$ of each: at zero the equilibrium has no gradient.
        residuals: How far the largest is from an eigenvalue of a matrix near by, relatively; zero
            if ``exact``.
        exact: Whether the Jacobian was formed, so that all eigenvalues are there.
    """

    samples: tuple[int, ...]
    norms: tuple[float, ...]
    radii: tuple[float, ...]
    eigenvalues: tuple[tuple[complex, ...], ...]
    nearest_one: tuple[float, ...]
    residuals: tuple[float, ...]
    exact: bool

    @property
    def norm(self) -> float:
        """The largest norm."""
        return max(self.norms)

    @property
    def radius(self) -> float:
        """The largest spectral radius."""
        return max(self.radii)


def jacobian_spectrum(problem: Problem, z: Tensor, rows: Tensor) -> JacobianSpectrum:
    """Norms and eigenvalues of the Jacobian at some samples.

    Args:
        problem: The map.
        z: Equilibria, in rows.
        rows: Which of them.
    """
    size = z.shape[1]
    most = min(len(rows), _SAMPLES, max(1, _ENTRIES // (_STEPS * size)))
    chosen = rows[torch.linspace(0, len(rows) - 1, most).round().long()]
    near = _Rows(problem.linearize(z.detach()), chosen)
    if size <= _FORMED:
        matrix = near.formed(size).cpu()  # where eigenvalues are always at hand
        values = [*torch.linalg.eigvals(matrix)]
        norms = torch.linalg.matrix_norm(matrix, 2)
        residuals = torch.zeros_like(norms)
    else:
        start = _start(len(chosen), size, z)
        norms = norms_from_below(near.push, near.pull, start, _STEPS, rounding=near.rounding)
        values, residuals = _arnoldi(near, start)
    values = [one[one.abs().argsort(descending=True)] for one in values]
    return JacobianSpectrum(
        tuple(chosen.tolist()),
        tuple(norms.tolist()),
        tuple(float(one[0].abs()) for one in values),
        tuple(tuple(complex(v) for v in one.tolist()) for one in values),
        tuple(float((1 - one).abs().min()) for one in values),
        tuple(residuals.tolist()),
        size <= _FORMED,
    )


class _Rows:
    """Products with the Jacobians of some samples, in float64."""

    def __init__(self, near: Linearization, rows: Tensor) -> None:
        self.near, self.rows = near, rows

    @property
    def rounding(self) -> float:
        """Of a product's length, what is made by rounding in the cell's dtype."""
        return _ROUNDING * torch.finfo(self.near.z.dtype).eps

    def push(self, k: Tensor) -> Tensor:
        return self._among(self.near.push, k)

    def pull(self, g: Tensor) -> Tensor:
        return self._among(self.near.pull, g)

    def _among(self, product: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        whole = torch.zeros_like(self.near.z)
        whole[self.rows] = v.to(whole)
        return product(whole)[self.rows].detach().double()

    def formed(self, size: int) -> Tensor:
        """The Jacobians; shape (samples, size, size)."""
        units = torch.eye(size, dtype=torch.float64, device=self.rows.device)
        return torch.stack([self.pull(unit.expand(len(self.rows), size)) for unit in units], 1)


def _start(count: int, size: int, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(count, size, generator=generator, dtype=torch.float64).to(like.device)


def _arnoldi(near: _Rows, start: Tensor) -> tuple[list[Tensor], Tensor]:
    """Ritz values of each sample, and the relative residual of the largest.

    A Krylov space that holds its own image ends there, with eigenvalues.
    """
    spaces = RowSpaces(start)
    counts, grows = torch.zeros(len(start)).long(), torch.ones(len(start)).bool()
    for _ in range(_STEPS):
        # the transposed one, which has the same eigenvalues, and needs no second derivatives
        image = near.pull(spaces.basis[-1])
        counts += grows
        new = spaces.add(image) > near.rounding * torch.linalg.vector_norm(image, dim=1)
        grows &= new.cpu()
        if not bool(grows.any()):
            break
    found, residuals = [], []
    for matrix, count, more in zip(spaces.coordinates.cpu(), counts, grows, strict=True):
        values, vectors = torch.linalg.eig(matrix[:count, :count])
        top = values.abs().argmax()
        beyond = vectors[-1, top].abs() * matrix[count, count - 1] * more
        found.append(values)
        residuals.append(beyond / values[top].abs().clamp_min(math.ulp(0.0)))
    return found, torch.stack(residuals)
