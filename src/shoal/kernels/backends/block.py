r"""What back ends take and give: blocks of kernel matrices, and their entries to first order.

Entries are $K_{ij} = s_i s_j \sum_{rsk} C_{rsk} f_r(u_i) f_s(v_j) T_k(\theta_{ij})$, linear in each
factor. So the derivatives of a block are sums of the same kind, and gradients and tangents are
these times what they are summed against: a back end need not know of either.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from shoal.kernels.approximations.surface import Span, Surface


class Directions(Protocol):
    """Unit vectors in the form that products of a back end take."""

    def __getitem__(self, rows: slice, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class Factors:
    """What the rows or the columns of a matrix contribute, in the dtype of the matrix.

    Attributes:
        scale: Roots of the diagonals of both kernels. shape: (2, n)
        features: Functions of the norms. shape: (n, rank)
    """

    scale: Tensor
    features: Tensor

    def __getitem__(self, part: slice) -> "Factors":
        return Factors(self.scale[:, part], self.features[part])


class Block(NamedTuple):
    """A part of a matrix, before it is evaluated.

    Attributes:
        surface: Both kernels.
        rows: What the rows contribute.
        columns: What the columns contribute.
        cosine: Cosines of the angles; their rows are contiguous. shape: (n, m)
    """

    surface: Surface
    rows: Factors
    columns: Factors
    cosine: Tensor


class EvaluatedBlock(NamedTuple):
    """What is known of a block that has been evaluated.

    Attributes:
        cosines: Tells the least and the largest cosine.
        beyond: Tells whether some of them are beyond those that the surface knows.
        mirrored: Whether the entries above the diagonal are below it too.
    """

    cosines: Callable[[], Span]
    beyond: Callable[[], bool]
    mirrored: bool = False


class Polynomial(NamedTuple):
    r"""A kernel of unit diagonal as a polynomial of $u = st - 1$.

    Attributes:
        numbers: $s$, and then the coefficients, the highest powers first, in float32.
        of_angle: Whether $t$ is the angle $\theta$; otherwise it is $\sin\tfrac\theta2$.
    """

    numbers: Tensor
    of_angle: bool


@dataclass(frozen=True, eq=False)
class Rounded:
    """Directions in reduced precision: as rows and as columns of a symmetric matrix.

    Attributes:
        rows: Multiples of the directions; rows of zeros may follow them. shape: (n, k)
        columns: Numbers whose products with these are multiples of cosines. shape: (n, k)
        scale: What makes cosines of the products, for rows and columns alike. shape: (n,)
        block: How many rows and columns are best multiplied together.
    """

    rows: Tensor
    columns: Tensor
    scale: Tensor
    block: tuple[int, int]

    def __getitem__(self, part: slice) -> "Rounded":
        return Rounded(self.rows[part], self.columns[part], self.scale[part], self.block)


@dataclass(frozen=True, eq=False)
class DifferentiableFactors:
    """What rows or columns contribute where derivatives are wanted.

    Attributes:
        values: Scales times functions of the norms. shape: (2, n, rank)
        slopes: The derivatives of these in the logarithms of the norms, of the same shape.
        norm: Norms, those of zero replaced. shape: (n,)
        own: Conjugate kernels of inputs with themselves. shape: (n,)
        plain: Scales and functions apart.
    """

    values: Tensor
    slopes: Tensor
    norm: Tensor
    own: Tensor
    plain: Factors

    def __getitem__(self, part: slice) -> "DifferentiableFactors":
        return DifferentiableFactors(
            self.values[:, part],
            self.slopes[:, part],
            self.norm[part],
            self.own[part],
            self.plain[part],
        )


class DifferentiableBlock(NamedTuple):
    """A part of a matrix whose derivatives are wanted.

    Attributes:
        surface: Both kernels.
        rows: What the rows contribute.
        columns: What the columns contribute.
        cosine: Cosines of the angles, none of which is ±1. shape: (n, m)
    """

    surface: Surface
    rows: DifferentiableFactors
    columns: DifferentiableFactors
    cosine: Tensor

    @property
    def plain(self) -> Block:
        """The block without derivatives, to be evaluated."""
        return Block(self.surface, self.rows.plain, self.columns.plain, self.cosine)


class Entries(NamedTuple):
    """Entries of both kernels to first order.

    Attributes:
        cosine: Cosines of the angles. shape: (n, m)
        ck: The conjugate kernel. shape: (n, m)
        in_left: Derivatives of both kernels in the logarithms of the rows' norms. shape: (2, n, m)
        in_right: In those of the columns.
        in_cosine: In the cosines.
    """

    cosine: Tensor
    ck: Tensor
    in_left: Tensor
    in_right: Tensor
    in_cosine: Tensor


class Adjoint(NamedTuple):
    """What the gradients of both kernels of a block come to.

    Attributes:
        cosine: Gradients of the cosines. shape: (n, m)
        left: Gradients of the logarithms of the rows' norms, in float64. shape: (n,)
        right: Those of the columns' norms. shape: (m,)
        ck: The conjugate kernel and its derivative in the cosine, where they come with them. shape:
            (2, n, m)
    """

    cosine: Tensor
    left: Tensor
    right: Tensor
    ck: Tensor | None = None
