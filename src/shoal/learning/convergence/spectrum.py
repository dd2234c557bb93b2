"""The eigendecomposition of an NTK, and how much of it can be told from rounding."""

from dataclasses import dataclass

import torch
from torch import Tensor

_INDEFINITE = 1e-3  # a negative eigenvalue of this share of the largest is no rounding


@dataclass(frozen=True, eq=False)
class Spectrum:
    r"""The eigenvalues and eigenvectors of a positive semidefinite matrix, in float64.

    Attributes:
        values: The eigenvalues, ascending; those that cannot be told from zero are zero.
        vectors: The eigenvectors, in the columns.
        resolution: Below it an eigenvalue cannot be told from zero.
    """

    values: Tensor
    vectors: Tensor
    resolution: float

    @classmethod
    def of(cls, name: str, matrix: Tensor, accuracy: float, divisor: float) -> "Spectrum":
        """Decompose a matrix, divided by a number.

        Errors of the entries up to ``accuracy``, relative to the diagonal, move eigenvalues by up
        to n times that. A negative eigenvalue shows that it is more.
        """
        values, vectors = torch.linalg.eigh(matrix.to(torch.float64))
        smallest, largest = float(values[0]), float(values[-1])
        if smallest < -_INDEFINITE * largest or largest < 0:
            raise ValueError(
                f"{name} must be positive semidefinite, got an eigenvalue of {smallest:g}"
            )
        resolution = max(len(values) * accuracy * float(matrix.diagonal().max()), -smallest)
        values = torch.where(values > resolution, values, 0.0)
        return cls(values / divisor, vectors, resolution / divisor)

    def project(self, values: Tensor) -> Tensor:
        """The components of vectors, given in the columns, along the eigenvectors."""
        return self.vectors.T @ values.to(torch.float64)

    def divide(self, values: Tensor) -> Tensor:
        """Divide by the eigenvalues; zero by zero is zero, as in the limit of null directions."""
        return torch.where(self.values > 0, values / self.values, 0.0)
