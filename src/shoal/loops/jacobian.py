r"""The Jacobian of a loop at equilibria: norms and spectral radii.

The Jacobian of a small state is formed. For larger ones $\|J\|$ comes from Lanczos on $J^\top J$,
and the radius from Arnoldi, each sample with a Krylov space of its own.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.numerics.krylov import RowSpaces
from shoal.numerics.norms import norms_from_below

_FORMED = 128  # entries of a state up to which the Jacobian is formed
_ROUNDING = 500  # units of rounding in a product of many terms
_STEPS = 48  # products in each Krylov space
_SAMPLES = 16  # most samples
_ENTRIES = 2**24  # most entries of the Krylov spaces of all samples


class JacobianSpectrum(NamedTuple):
    r"""The Jacobian $J$ of a loop at the equilibria of some samples.

    Attributes:
        samples: Places of these samples.
        norms: $\|J\|$ of each; a lower bound, unless ``exact``.
        radii: The spectral radius of each; the largest Ritz value, unless ``exact``.
        exact: Whether the Jacobian was formed.
    """

    samples: tuple[int, ...]
    norms: tuple[float, ...]
    radii: tuple[float, ...]
    exact: bool

    @property
    def norm(self) -> float:
        """The largest norm."""
        return max(self.norms)

    @property
    def radius(self) -> float:
        """The largest spectral radius."""
        return max(self.radii)


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
        norms = torch.linalg.matrix_norm(matrix, 2)
        radii = torch.linalg.eigvals(matrix).abs().amax(1)
    else:
        generator = torch.Generator().manual_seed(size)
        start = torch.randn(most, size, generator=generator, dtype=torch.float64).to(z.device)
        norms = norms_from_below(near.push, near.pull, start, _STEPS, rounding=near.rounding)
        radii = _ritz_radii(near, start)
    samples, lengths, largest = (tuple(t.tolist()) for t in (chosen, norms, radii))
    return JacobianSpectrum(samples, lengths, largest, size <= _FORMED)


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


def _ritz_radii(near: _Products, start: Tensor) -> Tensor:
    """The largest modulus of each sample's Ritz values, by Arnoldi.

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
    pairs = zip(spaces.coordinates.cpu(), counts, strict=True)
    return torch.stack([torch.linalg.eigvals(m[:count, :count]).abs().max() for m, count in pairs])
