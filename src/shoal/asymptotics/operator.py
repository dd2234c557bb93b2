r"""Matrices $\alpha X X^T + U S U^T + \delta I$ that are never formed."""

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.core.checks import float_tensor, real
from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings
from shoal.numerics.krylov import relative
from shoal.numerics.operator import Operator, like_factor


class Basis:
    r"""$B = [X, U]$, whose $n$ rows are samples: $X$ the inputs, $U$ a few columns more.

    A matrix $\alpha X X^T + U S U^T$ is the small matrix $\alpha R_X R_X^T + R_U S R_U^T$ seen
    through the orthogonal factor of $B = QR$. So one factorization, which is stable whatever the
    rank of $B$ and the signs of $S$, serves all such matrices, and costs as much memory as $B$.
    If $B$ has as many columns as rows there is nothing to gain, and $Q = I$.

    Factors are in float64 whatever the inputs: a kernel's largest eigenvalue is of the order of
    $n$ times the smallest, too much for float32.

    Attributes:
        inputs: $X$, of shape (n, p).
        columns: $U$, of shape (n, r).
    """

    def __init__(self, inputs: Tensor, columns: Tensor) -> None:
        self.inputs = inputs
        self.columns = columns

    @property
    def samples(self) -> int:
        """The number of rows."""
        return len(self.inputs)

    @property
    def rank(self) -> int:
        """The size of the small matrix, and a bound on the rank of the large one."""
        return min(self.samples, self.inputs.shape[1] + self.columns.shape[1])

    @cached_property
    def factors(self) -> tuple[Tensor | None, Tensor]:
        """$Q$ and $R$; ``None``, the identity, and $B$ if it has no fewer columns than rows."""
        both = torch.cat((self.inputs.double(), self.columns.double()), dim=1)
        if both.shape[1] >= self.samples:
            return None, both
        q, r = torch.linalg.qr(both)
        return q, r


class CrossOperator(Operator):
    r"""A rectangular matrix $\alpha X' X^T + U' S U^T$: an equivalent between new inputs and old.

    Args:
        left: $X'$ and $U'$.
        right: $X$ and $U$.
        scale: $\alpha$.
        core: $S$.
        arrays: Whether ``to_dense`` gives a NumPy array.
    """

    def __init__(
        self, left: Basis, right: Basis, *, scale: float, core: Tensor, arrays: bool = False
    ) -> None:
        self.left, self.right = left, right
        self.scale, self.core = scale, core
        self._arrays = arrays

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return torch.Size((self.left.samples, self.right.samples))

    @property
    def _entries(self) -> Tensor:
        return self.right.inputs

    def _product(self, vectors: Tensor) -> Tensor:
        """The product in the dtype of the columns, which may be wider than that of $X$."""
        left, right = self.left, self.right
        inner = right.inputs.to(vectors).T @ vectors
        through = self.core.to(vectors) @ (right.columns.to(vectors).T @ vectors)
        result = left.columns.to(vectors) @ through
        return result.addmm_(left.inputs.to(vectors), inner, alpha=self.scale)

    @in_standard_settings
    def to_dense(self) -> Any:
        """The matrix itself."""
        return self._out(self._dense())

    def _dense(self) -> Tensor:
        left, right = self.left, self.right
        low = left.columns @ self.core.to(left.columns) @ right.columns.T
        return low.addmm_(left.inputs, right.inputs.T, alpha=self.scale)

    def _out(self, result: Tensor) -> Any:
        return result.cpu().numpy() if self._arrays else result


class EquivalentOperator(CrossOperator):
    r"""A symmetric matrix $\alpha X X^T + U S U^T + \delta I$, in the memory of $X$.

    $X$ has shape (n, p), $U$ a few columns, and $S$ may be indefinite. Products cost $O(np)$.
    Everything else rests on one factorization in float64, of $O(np \min(n, p))$ operations, which
    is made when first needed, kept, and shared with the other kernel of the same data. NumPy
    arrays give NumPy arrays. Factors must be on its device and must not require gradients.

    Args:
        basis: $X$ and $U$.
        scale: $\alpha$.
        core: $S$.
        shift: $\delta$.
        arrays: Whether results that have no argument are NumPy arrays.

    Example:
        >>> import torch
        >>> from shoal.asymptotics import Basis, EquivalentOperator
        >>> x, ones = torch.eye(4, 2).double(), torch.ones(4, 1).double()
        >>> core = torch.tensor([[-1.0]]).double()
        >>> op = EquivalentOperator(Basis(x, ones), scale=2.0, core=core, shift=5.0)
        >>> op.eigvalsh()
        tensor([1.7639, 5.0000, 6.2361, 7.0000], dtype=torch.float64)
        >>> (op @ op.solve(torch.ones(4).double())).round(decimals=9)
        tensor([1., 1., 1., 1.], dtype=torch.float64)
    """

    @in_standard_settings
    def __init__(
        self, basis: Basis, *, scale: float, core: Tensor, shift: float, arrays: bool = False
    ) -> None:
        wide = float_tensor("core", core).double()
        super().__init__(basis, basis, scale=real("scale", scale), core=wide, arrays=arrays)
        self.basis, self.shift = basis, real("shift", shift)
        size = basis.columns.shape[1]
        if self.core.shape != (size, size) or not torch.equal(self.core, self.core.T):
            raise ValueError(
                f"core must be symmetric and of shape {(size, size)}, got {tuple(core.shape)}"
            )

    @property
    def T(self) -> "EquivalentOperator":  # noqa: N802
        """The transpose, which is the same."""
        return self

    def _product(self, vectors: Tensor) -> Tensor:
        return self._shifted_product(vectors, self.shift)

    def _shifted_product(self, vectors: Tensor, shift: float) -> Tensor:
        return super()._product(vectors) + shift * vectors

    def _dense(self) -> Tensor:
        result = super()._dense()
        result.diagonal().add_(self.shift)
        return (result + result.T) / 2  # symmetric to the last digit

    @in_standard_settings
    def diagonal(self) -> Any:
        """The diagonal."""
        x, columns = self.basis.inputs, self.basis.columns
        low = ((columns @ self.core.to(columns)) * columns).sum(1)
        return self._out(self.scale * x.square().sum(1) + low + self.shift)

    @in_standard_settings
    def eigvalsh(self) -> Any:
        """All eigenvalues, ascending; their error is that of a dense method in float64."""
        return self._out(self._eigenvalues.to(self.dtype))

    @in_standard_settings
    def solve(self, other: Any, *, shift: float = 0.0, rtol: float = 1e-6) -> Any:
        r"""Solve $(M + \lambda I) x = b$ directly; $M + \lambda I$ may be indefinite.

        Args:
            other: $b$, a vector or a matrix of columns.
            shift: $\lambda$. Another one costs no new factorization of the data.
            rtol: Largest $\|b - (M + \lambda I) x\| / \|b\|$ of each column that is returned,
                before $x$ is rounded to the dtype.

        Raises:
            AccuracyError: If the matrix is singular, or so nearly that ``rtol`` is not met.
        """
        total = self.shift + real("shift", shift)
        rtol = real("rtol", rtol, above=0.0)
        b = self._columns(other, self.basis.samples).double()
        (values, vectors), (q, _) = self._eigenvectors, self.basis.factors
        self._check_regular(values + total, total)
        inner = b if q is None else q.T @ b
        x = vectors @ ((vectors.T @ inner) / (values + total)[:, None])
        if q is not None:
            x = q @ (x - inner / total) + b / total
        reached = relative(b - self._shifted_product(x, total), b)
        if not bool((reached <= rtol).all()):
            raise AccuracyError(
                f"the solution has a relative residual of {float(reached.max()):.1e}, above the "
                f"rtol of {rtol:.1e}: the matrix is nearly singular, or rtol below round-off"
            )
        return like_factor(other, x.to(self.dtype))

    @in_standard_settings
    def logdet(self, *, shift: float = 0.0) -> Any:
        r"""$\log\det(M + \lambda I)$ of a positive definite matrix, as a number of the dtype.

        Raises:
            ValueError: If it is not positive definite; the message names a shift that makes it so.
        """
        values = self._eigenvalues + real("shift", shift)
        if not bool(values[0] > 0):
            raise ValueError(
                "logdet needs a positive definite matrix, and its least eigenvalue is "
                f"{float(values[0]):.3g}: add a shift above {abs(float(values[0])):.3g} to it"
            )
        return self._out(values.log().sum().to(self.dtype))

    @cached_property
    def _eigenvectors(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of the small matrix."""
        rows = self.basis.factors[1]
        left, right = rows.tensor_split([self.basis.inputs.shape[1]], dim=1)
        small = self.scale * left @ left.T + right @ self.core @ right.T
        values, vectors = torch.linalg.eigh(small)
        return values, vectors

    @property
    def _eigenvalues(self) -> Tensor:
        values = self._eigenvectors[0]
        zeros = values.new_zeros(self.basis.samples - self.basis.rank)
        return torch.cat((values, zeros)).sort().values + self.shift

    def _check_regular(self, shifted: Tensor, total: float) -> None:
        """Refuse a matrix of these eigenvalues, and of this one if the rank is not full."""
        sizes = shifted.abs()
        least, largest = float(sizes.min()), float(sizes.max()) + abs(total)
        if self.basis.rank < self.basis.samples:
            least = min(least, abs(total))
        if least <= torch.finfo(torch.float64).eps * largest:
            raise AccuracyError(
                f"the matrix is singular: it has an eigenvalue of {least:.1e} and a norm of "
                f"about {largest:.1e}; add a shift"
            )


class CrossOperators(NamedTuple):
    """The equivalents of both kernels between new inputs and old.

    Attributes:
        ck: The conjugate kernel's.
        ntk: The neural tangent kernel's.
    """

    ck: CrossOperator
    ntk: CrossOperator
