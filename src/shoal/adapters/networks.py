"""Networks as other packages describe them, by flat parameters, and how large these may be."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.architectures import DEQ, Architecture, ImageArchitecture
from shoal.core.checks import items, one_of, size
from shoal.kernels import KernelFunction, kernel
from shoal.kernels.function import chosen_kernels
from shoal.kernels.images.function import ImageKernels


def described_function(
    activation: Activation | str,
    recurrent_variance: float,
    input_variance: float,
    *,
    architecture: Architecture | None,
    which: str,
    trainable: Iterable[str] | None,
    bias_variance: float = 0.0,
) -> KernelFunction | ImageKernels:
    """The kernels of an architecture, by default of a DEQ."""
    one_of("which", which, ("ck", "ntk"))
    if architecture is None:
        phi = as_activation("activation", activation)
        architecture = DEQ(phi, recurrent_variance, input_variance, bias_variance=bias_variance)
    return chosen_kernels(architecture, trainable=trainable)


def kernel_values(
    function: KernelFunction | ImageKernels,
    which: str,
    x: Any,
    y: Any = None,
    *,
    diag: bool = False,
) -> Tensor:
    """One of the kernels of arrays of inputs."""
    x1, x2 = torch.as_tensor(x), None if y is None else torch.as_tensor(y)
    kernels = kernel(function.architecture, x1, x2, trainable=function.trainable, diag=diag)
    values: Tensor = getattr(kernels, which)
    return values


def as_images(x: Any, architecture: Architecture, image_shape: Sequence[int] | None) -> Any:
    """Rows of numbers as images where an architecture takes these, or an error.

    Args:
        x: A tensor or an array. shape: (n, p)
        architecture: The architecture of the kernel.
        image_shape: Channels, and pixels along each axis; ``None`` for vectors.
    """
    if not isinstance(architecture, ImageArchitecture):
        if image_shape is not None:
            raise ValueError(f"image_shape is for networks of images, got {architecture!r}")
        return x
    if image_shape is None:
        raise ValueError(
            f"image_shape must be given for a {type(architecture).__name__}: channels and pixels "
            "along each axis, such as (1, 28, 28)"
        )
    sides = items("image_shape", image_shape, "channels and pixels along each axis")
    shape = tuple(size("image_shape", side) for side in sides)
    if x.ndim != 2 or x.shape[1] != math.prod(shape):
        raise ValueError(
            f"inputs must have shape (n, {math.prod(shape)}) for images of {shape}, "
            f"got {tuple(x.shape)}"
        )
    return x.reshape(len(x), *shape)


def recurrent_limit(activation: Activation) -> float:
    r"""The recurrent variance up to which the kernel of a DEQ is known to exist: $1/L^2$.

    Raises:
        ValueError: If the activation is not Lipschitz.

    Example:
        >>> from shoal.activations import LeakyReLU, Tanh
        >>> recurrent_limit(Tanh()), recurrent_limit(LeakyReLU(2.0))
        (1.0, 0.25)
    """
    constant = activation.lipschitz
    if not math.isfinite(constant):
        raise ValueError(
            f"recurrent_variance must be fixed or have explicit bounds: {activation!r} is not "
            "Lipschitz, so that no limit guarantees a kernel"
        )
    return 1 / constant**2 if constant > 0 else math.inf
