r"""Kernels of inputs of one norm as power series in the cosine $\rho$ of their angle."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shoal.architectures import Architecture
from shoal.core.checks import integer, real
from shoal.kernels import KernelFunction, kernel_function
from shoal.kernels.calculi.power_series import PowerSeries
from shoal.kernels.function import kernels_in
from shoal.numerics.power_series import Series


@dataclass(frozen=True, eq=False)
class KernelSeries:
    r"""Both kernels of inputs of one norm, $\kappa = \sum_k \kappa_k \rho^k$.

    Attributes:
        ck: The coefficients of the conjugate kernel. shape: (degree + 1,)
        ntk: Those of the NTK. shape: (degree + 1,)
        natural: Hermite coefficients of the last activation at its own scale, whose signs are those
            of a function that is known to be usable. shape: (degree + 1,)
    """

    ck: Series
    ntk: Series
    natural: np.ndarray

    def __call__(self, cosine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate both kernels."""
        powers = np.vander(np.asarray(cosine, dtype=np.float64), len(self.ck), increasing=True)
        return powers @ self.ck, powers @ self.ntk


def kernel_series(
    architecture: Architecture,
    *,
    norm: float = 1.0,
    degree: int = 256,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
) -> KernelSeries:
    r"""The kernels of an architecture as power series in the cosine of the angle.

    Each coefficient is nonnegative and accurate in itself, to about twelve digits if its size is
    not below 1e-30. (Those of an ``ImplicitNetwork`` are accurate to 1e-14 of the diagonal.)

    Args:
        architecture: A ``DEQ``, ``FullyConnected``, ``ResNet`` or ``ImplicitNetwork``.
        norm: The common norm of the inputs.
        degree: The last power.
        trainable: The groups that the NTK counts, as for ``kernel_function``.
        width: As for ``kernel_function``.

    Raises:
        TypeError: If no series is known for the architecture.
        ConvergenceError: If the kernel does not exist.
        AccuracyError: If the kernel hardly depends on the angle.

    Example:
        >>> import shoal
        >>> from shoal.designs import kernel_series
        >>> kernel_series(shoal.FullyConnected(["relu"]), degree=4).ck.round(6)
        array([0.159155, 0.25    , 0.079577, 0.      , 0.006631])
    """
    norm = real("norm", norm, above=0.0, below=1e150)
    degree = integer("degree", degree, at_least=2)
    function = kernel_function(architecture, trainable=trainable, width=width)
    return series_of(function, norm, degree)


def series_of(function: KernelFunction, norm: float, degree: int) -> KernelSeries:
    """Both power series of a kernel function; arguments are not checked."""
    found = kernels_in(function.architecture, PowerSeries(norm, degree), function)
    return KernelSeries(found.ck.coefficients, found.ntk.coefficients, found.features.natural)
