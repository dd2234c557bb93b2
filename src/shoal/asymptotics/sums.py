r"""Sums over the samples of a class, and what they become when one sample is left out.

With the centered samples $c_i$ of a class, $q_i = \|c_i\|^2$ and $W = \sum_i c_i c_i^\top$, all
estimates are made of $q_i$, $c_i^\top W_b c_i$ and a few products of vectors. Leaving out sample
$i$ moves the mean by $-c_i/(n-1)$ and takes $\frac{n}{n-1} c_i c_i^\top$ from $W$, so that the
estimates without each sample cost no more than the estimate itself.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 2**23  # entries of a matrix that is made and dropped


@dataclass(frozen=True, eq=False)
class ClassSums:
    """The samples of a class and their first sums.

    Attributes:
        mean: Of the samples.
        centered: The samples less their mean.
        squares: The squared norms of those.
    """

    mean: Tensor
    centered: Tensor
    squares: Tensor

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self.centered)

    def trace(self) -> Tensor:
        """The trace of the sample covariance."""
        return self.squares.sum() / (self.count - 1)

    def traces_without(self) -> Tensor:
        """The traces without each of the samples."""
        n = self.count
        return (self.squares.sum() - n / (n - 1) * self.squares) / (n - 2)

    def square_mean(self) -> Tensor:
        """The squared norm of the mean, without bias."""
        return self.mean @ self.mean - self.trace() / self.count

    def square_means_without(self) -> Tensor:
        """The square means without each of the samples."""
        n = self.count
        moved = self.mean @ self.mean - 2 / (n - 1) * self.products_with(self.mean)
        return moved + self.squares / (n - 1) ** 2 - self.traces_without() / (n - 1)

    def products_with(self, v: Tensor) -> Tensor:
        """The inner products of the centered samples with a vector."""
        return self.centered @ v


def class_sums(samples: Tensor) -> ClassSums:
    """The sums of one class, of float64 samples in rows, which are centered in place."""
    mean = samples.mean(0)
    samples -= mean
    return ClassSums(mean, samples, torch.linalg.vecdot(samples, samples))


def quadratic_sums(classes: list[ClassSums]) -> list[list[Tensor]]:
    r"""$c_i^\top W_b c_i = \sum_{j \in b} (c_i^\top c_j)^2$ for $i \in a$, as ``result[a][b]``.

    From inner products of samples in $O(n^2 p)$, or from the matrices $W_b$ in $O(n p^2)$ for each
    class, whichever is less. These matrices are formed only if they are smaller than the samples.
    """
    samples = sum(c.count for c in classes)
    dimension = len(classes[0].mean)
    if samples < 2 * len(classes) * dimension:
        return _by_samples(classes)
    scatters = (c.centered.T @ c.centered for c in classes)
    columns = [[_forms(a.centered, w) for a in classes] for w in scatters]
    return [list(row) for row in zip(*columns, strict=True)]


def _by_samples(classes: list[ClassSums]) -> list[list[Tensor]]:
    result = [[torch.zeros_like(a.squares) for _ in classes] for a in classes]
    for i, a in enumerate(classes):
        for j, b in enumerate(classes[: i + 1]):
            rows = max(1, _BLOCK // b.count)
            for start in range(0, a.count, rows):
                products = (a.centered[start : start + rows] @ b.centered.T).square_()
                result[i][j][start : start + rows] = products.sum(1)
                if i != j:
                    result[j][i] += products.sum(0)
    return result


def _forms(rows: Tensor, matrix: Tensor) -> Tensor:
    size = max(1, _BLOCK // len(matrix))
    return torch.cat([((part @ matrix) * part).sum(1) for part in rows.split(size)])


@dataclass(frozen=True, eq=False)
class FourthMoments:
    r"""Unbiased estimates of two fourth moments of $z = x - Ex$, in closed form.

    They are the U-statistics of degree four (Himeno and Yamada 2014), for every law of $z$ with
    such moments and every number $n \ge 4$ of samples, also below the dimension.

    Attributes:
        trace_square: $\operatorname{tr} C^2$.
        excess: $\operatorname{Var} \|z\|^2 - 2 \operatorname{tr} C^2$.
    """

    trace_square: Tensor
    excess: Tensor

    @classmethod
    def of(cls, n: int, scatter_square: Tensor, trace: Tensor, fourth: Tensor) -> "FourthMoments":
        r"""From $\operatorname{tr} W^2$, $\operatorname{tr} W$ and $\sum q_i^2$."""
        products = scatter_square / (n - 1) ** 2
        squared_trace = (trace / (n - 1)) ** 2
        mean_fourth = n * fourth / (n - 1)
        scale = (n - 1) / (n * (n - 2) * (n - 3))
        trace_square = scale * ((n - 1) * (n - 2) * products + squared_trace - mean_fourth)
        square_of_trace = scale * (2 * products + (n**2 - 3 * n + 1) * squared_trace - mean_fourth)
        excess = n * (squared_trace - 2 / (n - 1) * trace_square - square_of_trace)
        return cls(trace_square, excess)

    @classmethod
    def whole(cls, sums: ClassSums, forms: Tensor) -> "FourthMoments":
        r"""The sums of all samples, given their $c_i^\top W c_i$."""
        return cls.of(sums.count, forms.sum(), sums.squares.sum(), sums.squares.square().sum())

    @classmethod
    def without(cls, sums: ClassSums, forms: Tensor) -> "FourthMoments":
        r"""Without each of the samples, given their $c_i^\top W c_i$."""
        n, q = sums.count, sums.squares
        r, s = n / (n - 1), 1 / (n - 1)
        scatter_square = forms.sum() - 2 * r * forms + r**2 * q**2
        # of ‖c_j + s c_i‖⁴ over j, less the term j = i; the c_j sum to zero
        weighted = sums.products_with(q @ sums.centered)
        fourth = q.square().sum() + 4 * s**2 * forms + n * s**4 * q**2
        fourth = fourth + 4 * s * weighted + 2 * s**2 * q * q.sum() - (1 + s) ** 4 * q**2
        return cls.of(n - 1, scatter_square, q.sum() - r * q, fourth)


def spread_rows(sums: ClassSums, most: int) -> Tensor:
    """At most so many centered samples, evenly spread over the class."""
    return sums.centered[:: math.ceil(sums.count / most)]
