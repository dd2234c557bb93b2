r"""The Jacobian of a loop at equilibria: norms, spectral radii and eigenvalues of each sample.

The Jacobian of a small state is formed. For larger ones $\|J\|$ comes from Lanczos on $J^\top J$,
and eigenvalues from Arnoldi, each sample with a Krylov space of its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.numerics.krylov import RowSpaces
from shoal.numerics.norms import norms_from_below

_FORMED = 128  # entries of a state up to which the Jacobian is formed
_ROUNDING = 500  # units of rounding in a product of many terms
_STEPS = 48  # products in each Krylov space
_SAMPLES = 16  # most samples
_ENTRIES = 2**24  # most entries of the Krylov spaces of all samples


@dataclass(frozen=True, eq=False)
class JacobianSpectrum:
    r"""The Jacobian $J$ of a loop at the equilibria of some samples.

    Attributes:
        samples: Places of these samples.
        norms: $\|J\|$ of each; a lower bound, unless ``exact``.
        radii: The spectral radius of each.
        eigenvalues: Eigenvalues of each that were found, the largest modulus first.
        nearest_one: The least $|1 - \lambda|$ of each; at zero the equilibrium has no gradient.
        residuals: Relative residual of the largest eigenvalue; zero if ``exact``.
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

    def document(self) -> dict[str, Any]:
        """Everything as plain values."""
        values = [[[v.real, v.imag] for v in row] for row in self.eigenvalues]
        return {**vars(self), "eigenvalues": values}


def jacobian_spectrum(
    function: Callable[[Tensor], Tensor], z: Tensor, rows: Tensor
) -> JacobianSpectrum:
    """Norms and eigenvalues of the Jacobian at some samples.

    Args:
        function: The map of states in rows.
        z: Equilibria, in rows.
        rows: Places of the samples with an equilibrium.
    """
    size = z.shape[1]
    most = min(len(rows), _SAMPLES, max(1, _ENTRIES // (_STEPS * size)))
    chosen = rows[torch.linspace(0, len(rows) - 1, most).round().long()]
    near = _Products(function, z, chosen)
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


class _Products:
    """Products with the Jacobians of some samples, in float64."""

    def __init__(self, function: Callable[[Tensor], Tensor], z: Tensor, rows: Tensor) -> None:
        self.rows = rows
        with torch.enable_grad():
            self.z = z.detach().requires_grad_()
            self.value = function(self.z)
            self.weights = torch.zeros_like(self.value).requires_grad_()
            (self.back,) = torch.autograd.grad(
                self.value, self.z, self.weights, create_graph=True, materialize_grads=True,
                allow_unused=True,
            )  # fmt: skip

    @property
    def rounding(self) -> float:
        """The share of a product's length that rounding in the dtype of the state makes."""
        return _ROUNDING * torch.finfo(self.z.dtype).eps

    def push(self, k: Tensor) -> Tensor:
        """Products with the Jacobian: derivatives of its transposed product."""
        return self._product(self.back, self.weights, k)

    def pull(self, g: Tensor) -> Tensor:
        """Products with the transposed Jacobian."""
        return self._product(self.value, self.z, g)

    def _product(self, of: Tensor, by: Tensor, v: Tensor) -> Tensor:
        whole = torch.zeros_like(self.z)
        whole[self.rows] = v.to(whole)
        if not of.requires_grad:
            return torch.zeros_like(v)
        (found,) = torch.autograd.grad(
            of, by, whole, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return found[self.rows].double()

    def formed(self, size: int) -> Tensor:
        """The Jacobians; shape (samples, size, size)."""
        units = torch.eye(size, dtype=torch.float64, device=self.rows.device)
        return torch.stack([self.pull(unit.expand(len(self.rows), size)) for unit in units], 1)


def _start(count: int, size: int, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(count, size, generator=generator, dtype=torch.float64).to(like.device)


def _arnoldi(near: _Products, start: Tensor) -> tuple[list[Tensor], Tensor]:
    """Ritz values of each sample, and the relative residual of the largest.

    A Krylov space that contains its image ends there, with exact eigenvalues.
    """
    spaces = RowSpaces(start)
    counts, grows = torch.zeros(len(start)).long(), torch.ones(len(start)).bool()
    for _ in range(_STEPS):
        # the transposed Jacobian has the same eigenvalues, and needs no second derivatives
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
