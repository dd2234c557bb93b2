"""Kernels of infinitely wide networks for the Gaussian processes of scikit-learn."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.adapters.networks import (
    as_images,
    described_function,
    kernel_values,
    recurrent_limit,
)
from shoal.architectures import Architecture
from shoal.core.checks import one_of, real, real_array
from shoal.kernels import KernelFunction
from shoal.kernels.gradient import variance_tangents
from shoal.kernels.images.function import ImageKernels

try:
    from sklearn.gaussian_process.kernels import Hyperparameter, Kernel
except ImportError as error:
    raise ImportError(
        "SklearnKernel needs scikit-learn, which is not installed: pip install 'shoal-deq[sklearn]'"
    ) from error

Array = NDArray[np.float64]
Bounds = tuple[float, float] | str


def _hyperparameter(name: str) -> property:
    """A variance with its bounds, optimized by its logarithm; fixed if it is absent."""

    def get(self: "SklearnKernel") -> Hyperparameter:
        bounds, value = getattr(self, f"{name}_bounds"), getattr(self, name)
        if self.architecture is not None or (name == "bias_variance" and value == 0):
            bounds = "fixed"
        elif isinstance(bounds, str) and bounds != "fixed":
            one_of(f"{name}_bounds", bounds, ("fixed", "kernel"))
            limit = recurrent_limit(as_activation("activation", self.activation))
            bounds = (1e-5 * min(1.0, limit), (1 - 1e-6) * min(limit, 1e5))  # below the limit
        if not isinstance(bounds, str):
            real(name, value, above=0)
        return Hyperparameter(name, "numeric", bounds)

    return property(get, doc=f"The ``{name}`` with its bounds; fixed with an architecture.")


class SklearnKernel(Kernel):  # type: ignore[misc]
    r"""The conjugate or neural tangent kernel of a DEQ, with variances to optimize.

    A kernel like those of :mod:`sklearn.gaussian_process.kernels`: add a ``WhiteKernel``, multiply
    by a ``ConstantKernel``, hand it to ``GaussianProcessRegressor`` or
    ``GaussianProcessClassifier``. Gradients in the logarithms of the variances are exact.

    Where the activation is positively homogeneous, the input variance is a factor of the kernel:
    fix it if there is a ``ConstantKernel``.

    Args:
        activation: Activation of the DEQ, or its name, such as ``"tanh"`` or ``"leakyrelu:0.1"``.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        recurrent_variance_bounds: A pair, or ``"fixed"``. By default, ``"kernel"``, the optimizer
            stays where the kernel is known to exist, $\sigma_a^2 L^2 < 1$ with the activation's
            Lipschitz constant $L$.
        input_variance_bounds: A pair, or ``"fixed"``.
        bias_variance: Variance of the biases; none by default. Without biases, kernels of inputs
            with one feature have rank two.
        bias_variance_bounds: A pair, or ``"fixed"``; ignored if ``bias_variance`` is 0.
        which: ``"ck"``, the prior of the network's function at initialization, or ``"ntk"``.
        trainable: The groups of parameters that the NTK counts; all by default.
        architecture: Any architecture, instead of the DEQ. It has no hyperparameters, and the
            activation and the variances above are not used.
        image_shape: For architectures of images, such as a ``ConvDEQ``: channels and pixels along
            each axis, such as ``(1, 28, 28)``. Inputs are rows of numbers as ever.

    Example:
        >>> from sklearn.gaussian_process.kernels import WhiteKernel
        >>> kernel = SklearnKernel("relu", recurrent_variance=0.2) + WhiteKernel(0.1)
        >>> kernel(np.eye(2)).round(3)
        array([[0.656, 0.186],
               [0.186, 0.656]])
    """

    def __init__(
        self,
        activation: Activation | str = "relu",
        recurrent_variance: float = 0.2,
        input_variance: float = 1.0,
        recurrent_variance_bounds: Bounds = "kernel",
        input_variance_bounds: Bounds = (1e-5, 1e5),
        *,
        bias_variance: float = 0.0,
        bias_variance_bounds: Bounds = (1e-5, 1e5),
        which: Literal["ck", "ntk"] = "ck",
        trainable: Iterable[str] | None = None,
        architecture: Architecture | None = None,
        image_shape: Sequence[int] | None = None,
    ) -> None:
        self.activation = activation
        self.recurrent_variance = recurrent_variance
        self.input_variance = input_variance
        self.recurrent_variance_bounds = recurrent_variance_bounds
        self.input_variance_bounds = input_variance_bounds
        self.bias_variance = bias_variance
        self.bias_variance_bounds = bias_variance_bounds
        self.which = which
        self.trainable = trainable
        self.architecture = architecture
        self.image_shape = image_shape

    hyperparameter_recurrent_variance = _hyperparameter("recurrent_variance")
    hyperparameter_input_variance = _hyperparameter("input_variance")
    hyperparameter_bias_variance = _hyperparameter("bias_variance")

    def __call__(
        self, X: Any, Y: Any = None, eval_gradient: bool = False
    ) -> Array | tuple[Array, Array]:
        """The kernel, and its gradient in ``theta`` if that is wanted.

        Args:
            X: Inputs. shape: (n, p)
            Y: Other inputs; ``X`` by default. shape: (m, p)
            eval_gradient: Whether to return the gradient too; only without ``Y``.

        Returns:
            The matrix, of shape (n, m), and the gradient, of shape (n, n, len(theta)).
        """
        function, x = self._function(), _inputs("X", X)
        if Y is not None:
            if eval_gradient:
                raise ValueError("eval_gradient must be False where Y is given, got True")
            return self._kernel(function, x, _inputs("Y", Y))
        matrix = self._kernel(function, x)
        if not eval_gradient:
            return matrix
        names = [h.name for h in self.hyperparameters if not h.fixed]
        gradient = np.empty((*matrix.shape, len(names)))
        tangents = {}
        if names:  # which only a DEQ has
            assert isinstance(function, KernelFunction)
            tangents = variance_tangents(function, torch.from_numpy(x), names)
        for place, name in enumerate(names):
            gradient[..., place] = getattr(tangents[name], self.which).numpy() * getattr(self, name)
        return matrix, gradient

    def diag(self, X: Any) -> Array:
        """The kernel of each input with itself. shape: (n,)."""
        return self._kernel(self._function(), _inputs("X", X), diag=True)

    def is_stationary(self) -> bool:
        """No: it depends on norms and angles, not on differences."""
        return False

    def __repr__(self) -> str:
        if self.architecture is not None:
            return f"{type(self).__name__}({self.architecture!r}, which={self.which!r})"
        activation = as_activation("activation", self.activation)
        biases = f"bias_variance={self.bias_variance:.3g}, " if self.bias_variance else ""
        return (
            f"{type(self).__name__}({activation!r}, "
            f"recurrent_variance={self.recurrent_variance:.3g}, "
            f"input_variance={self.input_variance:.3g}, {biases}which={self.which!r})"
        )

    def _function(self) -> KernelFunction | ImageKernels:
        return described_function(
            self.activation,
            self.recurrent_variance,
            self.input_variance,
            architecture=self.architecture,
            which=self.which,
            trainable=self.trainable,
            bias_variance=self.bias_variance,
        )

    def _kernel(
        self,
        function: KernelFunction | ImageKernels,
        x: Array,
        y: Array | None = None,
        *,
        diag: bool = False,
    ) -> Array:
        inputs = [
            None if rows is None else as_images(rows, function.architecture, self.image_shape)
            for rows in (x, y)
        ]
        values: Array = kernel_values(function, self.which, *inputs, diag=diag).numpy()
        return values


def _inputs(name: str, x: Any) -> Array:
    """Inputs in float64, in which a marginal likelihood is computed."""
    return np.atleast_2d(real_array(name, x))
