r"""Cholesky factors in the memory of the matrix."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError
from shoal.numerics.operator import Operator

_PANEL = {"cpu": 1024, "cuda": 4096}  # columns that are eliminated together
_ROWS = 16384  # of a product; BLAS counts some things in 32 bits


class CholeskyFactor(Operator):
    r"""$LL^T = K + \lambda I$, with $L$ below the diagonal of the array that has $K$ above it.

    So nothing but panels is allocated, and products with $K$ remain possible. Panels are eliminated
    from the left, by products of matrices: of $n^3/3$ operations all but a share of panel$/n$.

    Args:
        matrix: $K$ on and above the diagonal, contiguous; overwritten below and on the
            diagonal.
        diagonal: A copy of the diagonal of $K$.
        ridge: $\lambda$.
        on_panel: Called with the share of the work that is done.

    Raises:
        AccuracyError: If the matrix is not positive definite within rounding.

    Example:
        >>> import torch
        >>> from shoal.numerics import CholeskyFactor
        >>> k = torch.tensor([[3.0, 1.0], [1.0, 3.0]]).double()
        >>> factor = CholeskyFactor(k, k.diagonal().clone(), ridge=1.0)
        >>> factor.solve(torch.tensor([[5.0], [5.0]]).double()).T.round(decimals=9)
        tensor([[1., 1.]], dtype=torch.float64)
    """

    def __init__(
        self,
        matrix: Tensor,
        diagonal: Tensor,
        ridge: float,
        *,
        on_panel: Callable[[float], object] | None = None,
    ) -> None:
        self.matrix, self._diagonal, self.ridge = matrix, diagonal.to(matrix), ridge
        for panel in self._panels():
            self._eliminate(panel)
            if on_panel is not None:
                on_panel((panel.stop / len(matrix)) ** 2 * (3 - 2 * panel.stop / len(matrix)))

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return self.matrix.shape

    @property
    def _entries(self) -> Tensor:
        return self.matrix

    def _panels(self) -> Iterator[slice]:
        size, step = len(self.matrix), _PANEL.get(self.matrix.device.type, 1024)
        return (slice(start, min(start + step, size)) for start in range(0, size, step))

    def _eliminate(self, panel: slice) -> None:
        """Columns of the factor, from those before them."""
        matrix, before = self.matrix, self.matrix[panel, : panel.start]
        block = matrix[panel, panel]
        pivot = self._symmetric(panel)
        pivot.diagonal().add_(self.ridge)
        pivot.addmm_(before, before.T, alpha=-1)
        root, failed = torch.linalg.cholesky_ex(pivot)
        if int(failed) or not bool(root.diagonal().isfinite().all()):
            raise AccuracyError(
                f"the kernel matrix plus a ridge of {self.ridge:.3g} is not positive definite in "
                f"{matrix.dtype}: take a larger ridge, or leave out equal samples"
            )
        block.copy_(root.tril() + block.triu(1))
        for start in range(panel.stop, len(matrix), _ROWS):
            rows = slice(start, start + _ROWS)
            below = matrix[rows, panel]
            below.copy_(matrix[panel, rows].T)
            below.addmm_(matrix[rows, : panel.start], before.T, alpha=-1)
            below.copy_(torch.linalg.solve_triangular(root, below.T, upper=False).T)

    def _symmetric(self, panel: slice) -> Tensor:
        """A block of $K$ on the diagonal."""
        upper = self.matrix[panel, panel].triu(1)
        return upper + upper.T + self._diagonal[panel].diag()

    def product(self, vectors: Tensor) -> Tensor:
        r"""$(K + \lambda I) V$."""
        result = self.ridge * vectors
        for panel in self._panels():
            beyond = self.matrix[panel, panel.stop :]
            result[panel] += (
                self._symmetric(panel) @ vectors[panel] + beyond @ vectors[panel.stop :]
            )
            result[panel.stop :] += beyond.T @ vectors[panel]
        return result

    _product = product

    def forward(self, b: Tensor) -> Tensor:
        r"""$L^{-1} B$."""
        result = b.clone()
        for panel in self._panels():
            result[panel] -= self.matrix[panel, : panel.start] @ result[: panel.start]
            block = self.matrix[panel, panel]
            result[panel] = torch.linalg.solve_triangular(block, result[panel], upper=False)
        return result

    def solve(self, b: Tensor) -> Tensor:
        r"""$(K + \lambda I)^{-1} B$."""
        result = self.forward(b)
        for panel in reversed(list(self._panels())):
            below = self.matrix[panel.stop :, panel]
            result[panel] -= below.T @ result[panel.stop :]
            block = self.matrix[panel, panel].T
            result[panel] = torch.linalg.solve_triangular(block, result[panel], upper=True)
        return result

    def quadratic(self, b: Tensor) -> Tensor:
        r"""$b^T (K + \lambda I)^{-1} b$ of each column."""
        return self.forward(b).square().sum(0)

    def inverse_diagonal(self) -> Tensor:
        r"""The diagonal of $(K + \lambda I)^{-1}$: squared norms of columns of $L^{-1}$."""
        parts, size = [], len(self.matrix)
        for panel in self._panels():
            columns = self.matrix.new_zeros(size, panel.stop - panel.start)
            columns[panel].fill_diagonal_(1.0)
            parts.append(self.quadratic(columns))
        return torch.cat(parts)

    def logdet(self) -> float:
        r"""$\log\det(K + \lambda I)$."""
        return 2 * float(self.matrix.diagonal().double().log().sum())
