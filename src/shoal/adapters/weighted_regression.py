"""Kernel ridge regression in which some samples count more than others."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.kernels import KernelFunction, Kernels, kernel
from shoal.kernels.images.function import ImageKernels
from shoal.learning.decomposition import Decomposition, ShiftedDecomposition
from shoal.learning.ridges import Criterion, path_of
from shoal.numerics import CholeskyFactor

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class WeightedRegression:
    r"""$f(x) = k(x, X) \alpha$ with $\alpha = (K + \lambda W^{-1})^{-1} y$.

    It minimizes $\sum_i w_i (y_i - f(x_i))^2 + \lambda \|f\|^2$: a weight of two is a sample that
    is there twice, and samples of weight zero are left out.

    Attributes:
        coefficients: $\alpha$, in the shape of the targets; zero where the weight is.
        ridge: $\lambda$.
        left_out: What is predicted for each sample by all the others, in the shape of the targets;
            zero where the weight is.
        targets: $y$.
        weights: The diagonal of $W$.
    """

    coefficients: Array = field(repr=False)
    ridge: float
    left_out: Array = field(repr=False)
    targets: Array = field(repr=False)
    weights: Array = field(repr=False)
    _function: KernelFunction | ImageKernels = field(repr=False)
    _kernel: str = field(repr=False)
    _x: Array = field(repr=False)

    def predict(self, x: Array) -> Array:
        """The regression function at inputs of shape (m, p)."""
        cross: Tensor = getattr(_kernels(self._function, x, self._x), self._kernel)
        return cross.numpy() @ self.coefficients


def weighted_regression(
    function: KernelFunction | ImageKernels,
    which: str,
    x: Array,
    y: Array,
    ridge: float | Criterion,
    weights: Array,
) -> WeightedRegression:
    r"""Regress targets on inputs, by one factorization of $W^{1/2} K W^{1/2} + \lambda I$.

    With this matrix and targets $W^{1/2} y$ all is as without weights: the squared residuals of
    samples that are left out are those of $y$ times their weights.

    Args:
        function: The kernels.
        which: ``"ck"`` or ``"ntk"``.
        x: Inputs. shape: (n, p)
        y: Targets. shape: (n,) or (n, q)
        ridge: $\lambda$, or how to choose it.
        weights: $w_i \ge 0$, not all of them zero. shape: (n,)

    Raises:
        AccuracyError: If the matrix is not positive definite within rounding.
    """
    some = weights > 0
    root = torch.from_numpy(np.sqrt(weights[some]))[:, None]
    targets = root * torch.from_numpy(y[some].reshape(len(root), -1))
    plain: Tensor = getattr(_kernels(function, x[some]), which)
    matrix = (plain * root * root.T).contiguous()
    factor: CholeskyFactor | ShiftedDecomposition
    if isinstance(ridge, str):
        parts = Decomposition.of(matrix)
        ridge = path_of(parts, targets).best(ridge)
        factor = parts.shifted(ridge)
    else:
        factor = CholeskyFactor(matrix, matrix.diagonal().clone(), ridge)
    solution, inverse = factor.solve(targets), factor.inverse_diagonal()[:, None]
    found = np.zeros((2, *y.shape))
    for place, values in enumerate((root * solution, (targets - solution / inverse) / root)):
        found[place, some] = values.numpy().reshape(-1, *y.shape[1:])
    return WeightedRegression(found[0], ridge, found[1], y, weights, function, which, x)


def _kernels(function: KernelFunction | ImageKernels, x: Array, z: Array | None = None) -> Kernels:
    other = None if z is None else torch.from_numpy(z)
    trainable = function.trainable
    return kernel(function.architecture, torch.from_numpy(x), other, trainable=trainable)
