r"""Kernels as functions of the angle between two inputs, represented once and evaluated fast.

For inputs of one norm, and for inputs of any norms if the activations are positively homogeneous,
a kernel is a norm factor times a function of the angle $\theta$. That function is analytic on
$[0, \pi]$, or nearly so, and a short Chebyshev series holds it to nearly all digits.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from shoal.approximation import chebyshev_basis, fit
from shoal.kernels.function import KernelFunction, angular_kernels
from shoal.kernels.result import Kernels
from shoal.kernels.section import HalfAngle

__all__ = ["AngularProfile", "angular_profile"]

_TOLERANCE = 1e-12  # relative to the kernel of an input with itself
_BLOCK = 1 << 13  # entries whose basis stays in the cache


@dataclass(frozen=True, eq=False)
class AngularProfile:
    """Both kernels of inputs of one squared norm, as series in the angle.

    Attributes:
        coefficients: Chebyshev coefficients of CK and NTK; shape (2, degree + 1).
        error: Bound of the error, relative to each kernel at angle zero.
        at_zero: Both kernels of an input with itself, without interpolation.
    """

    coefficients: Tensor
    error: float
    at_zero: tuple[float, float]

    def __call__(self, angle: Tensor) -> Kernels:
        """Evaluate both series, in the dtype of the angles."""
        shape, flat = angle.shape, angle.reshape(-1)
        coefficients = self.coefficients.to(angle)
        out = torch.empty(2, len(flat), dtype=angle.dtype, device=angle.device)
        size = _BLOCK if angle.device.type == "cpu" else max(1, len(flat))
        for start in range(0, len(flat), size):
            part = flat[start : start + size]
            basis = chebyshev_basis(part * (2 / math.pi) - 1, coefficients.shape[1] - 1)
            torch.matmul(coefficients, basis, out=out[:, start : start + size])
        return Kernels(out[0].view(shape), out[1].view(shape))


@lru_cache(maxsize=128)
def angular_profile(function: KernelFunction, squared_norm: float) -> AngularProfile:
    """The profile of a kernel function at one squared norm; kept for later calls."""

    def both(angle: Tensor) -> Kernels:
        return angular_kernels(
            function.architecture,
            squared_norm,
            HalfAngle.of(angle),
            function.trainable,
            function.width,
        )

    zero = both(torch.zeros(1, dtype=torch.float64))
    at_zero = (float(zero.ck), float(zero.ntk))
    series = [
        fit(
            lambda angle, row=row: both(angle)[row],
            ((0.0, math.pi),),
            tolerance=_TOLERANCE * (size or 1.0),
        )
        for row, size in enumerate(at_zero)
    ]
    coefficients = torch.nn.utils.rnn.pad_sequence(
        [s.coefficients for s in series], batch_first=True
    )
    errors = [s.error / (size or 1.0) for s, size in zip(series, at_zero, strict=True)]
    return AngularProfile(coefficients, max(errors), at_zero)
