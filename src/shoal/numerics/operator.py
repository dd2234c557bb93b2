"""Matrices that are known by their products, and those that are easy to invert."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.checks import as_tensor, float_tensor
from shoal.core.settings import in_standard_settings

_NUMBERS = 2**27  # of columns that are converted together


class Operator(ABC):
    """A matrix that is known by its products with vectors.

    Factors are tensors on the operator's device that require no gradients, or NumPy arrays, which
    give NumPy arrays. Some operators have ``diagonal``, ``solve`` and ``logdet`` too.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)}, dtype={self.dtype})"

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Rows and columns."""

    @property
    @abstractmethod
    def _entries(self) -> Tensor:
        """A stored tensor, which determines the dtype and the device."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of products."""
        return self._entries.dtype

    @property
    def device(self) -> torch.device:
        """The device of factors and products."""
        return self._entries.device

    @in_standard_settings
    def __matmul__(self, other: Any) -> Any:
        """The product with a vector or a matrix; NumPy arrays give NumPy arrays."""
        vectors = self._columns(other, self.shape[1]).to(self.dtype)
        return like_factor(other, self._product(vectors))

    @in_standard_settings
    def to_dense(self) -> Any:
        """The matrix itself."""
        return self._product(torch.eye(self.shape[1], dtype=self.dtype, device=self.device))

    @abstractmethod
    def _product(self, vectors: Tensor) -> Tensor:
        """The product with columns that are checked, in the operator's dtype."""

    def _columns(self, other: Any, size: int) -> Tensor:
        """Return a factor as columns of shape (size, q), or raise an error.

        Tensors must be on the device of the operator; arrays are copied there.

        Raises:
            TypeError: If it is no floating-point tensor or array.
            ValueError: If its shape or device does not fit, or gradients of it are wanted.
        """
        if isinstance(other, Tensor) and other.device != self.device:
            raise ValueError(
                f"other must be on the operator's device, {self.device}, got {other.device}"
            )
        vectors = float_tensor("other", as_tensor(other, "other"))
        if vectors.dim() not in (1, 2) or vectors.shape[0] != size:
            raise ValueError(
                f"other must have {size} rows and at most two dimensions, "
                f"got shape {tuple(vectors.shape)}"
            )
        refuse_gradients({"other": vectors}, "operators are not differentiated; detach() it")
        return vectors.detach().to(self.device).reshape(size, -1)


def like_factor(other: Any, result: Tensor) -> Any:
    """The result in the shape and kind of the factor."""
    shaped = result[:, 0] if other.ndim == 1 else result
    return shaped.cpu().numpy() if isinstance(other, np.ndarray) else shaped


def refuse_gradients(arguments: Mapping[str, Tensor | None], why: str) -> None:
    """Refuse tensors, by their names, whose gradients would silently be lost.

    Raises:
        ValueError: If one of them requires gradients where these are enabled.
    """
    for name, tensor in arguments.items():
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name} must not require gradients: {why}")


@dataclass(frozen=True, eq=False, repr=False)
class DiagonalOperator(Operator):
    """A diagonal matrix.

    Attributes:
        values: The diagonal. shape: (n,)
    """

    values: Tensor

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return torch.Size((len(self.values), len(self.values)))

    @property
    def _entries(self) -> Tensor:
        return self.values

    def _product(self, vectors: Tensor) -> Tensor:
        return vectors * self.values[:, None]

    def solve(self, vectors: Tensor) -> Tensor:
        """The inverse times columns."""
        return vectors / self.values[:, None]


@dataclass(frozen=True, eq=False, repr=False)
class LowRankPlusIdentity(Operator):
    r"""$s (FF^T + \rho I)$ for columns $F$ of any kind, which may be kept in half precision.

    Whatever the columns are rounded to, this is a matrix of the same kind, and its inverse is
    exact: by Woodbury's identity $v - F (F^T F + \rho I)^{-1} F^T v$ over $s\rho$, summed in
    float64.

    Attributes:
        columns: $F$, in any floating-point dtype. shape: (n, r)
        gram: $F^T F$ of the columns as they are rounded, in float64. shape: (r, r)
        outside: $\rho > 0$.
        scale: $s > 0$.
    """

    columns: Tensor
    gram: Tensor
    outside: float
    scale: float = 1.0

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        return torch.Size((len(self.columns), len(self.columns)))

    @property
    def _entries(self) -> Tensor:
        return self.gram

    @cached_property
    def _factor(self) -> Tensor:
        inside = self.gram.clone()
        inside.diagonal().add_(self.outside)
        factor: Tensor = torch.linalg.cholesky(inside)
        return factor

    def solve(self, vectors: Tensor) -> Tensor:
        """The inverse times columns."""
        inside = torch.cholesky_solve(self._projected(vectors), self._factor)
        return self._combined(vectors, -inside).div_(self.scale * self.outside)

    def _product(self, vectors: Tensor) -> Tensor:
        return self._combined(self.outside * vectors, self._projected(vectors)).mul_(self.scale)

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of the columns in float64, and their places."""
        step = max(1, _NUMBERS // max(1, self.columns.shape[1]))
        for start in range(0, len(self.columns), step):
            rows = slice(start, start + step)
            yield rows, self.columns[rows].double()

    def _projected(self, vectors: Tensor) -> Tensor:
        result = vectors.new_zeros(self.columns.shape[1], vectors.shape[1])
        for rows, part in self._parts():
            result += part.T @ vectors[rows]
        return result

    def _combined(self, vectors: Tensor, inside: Tensor) -> Tensor:
        result = torch.empty_like(vectors)
        for rows, part in self._parts():
            result[rows] = vectors[rows] + part @ inside
        return result
