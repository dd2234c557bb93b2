"""The kernels of networks of images: which ones are meant, whatever is then made of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shoal.architectures import Architecture, ImageArchitecture, Layers
from shoal.kernels.arguments import checked_image_samples, checked_samples
from shoal.kernels.function import (
    KernelFunction,
    check_width,
    checked_variances,
    kernel_function,
    with_values,
)


@dataclass(frozen=True)
class ImageKernels:
    """Kernels of images: no functions of norms and inner products, but of all pairs of pixels.

    Attributes:
        architecture: Whose kernels they are.
        trainable: The groups of parameters that the NTK counts.
        variances: Tensors that stand for variances of the architecture, which has their values.
        precision: The dtype in which a GPU may compute them, with its errors; that of the images by
            default.
    """

    architecture: ImageArchitecture
    trainable: frozenset[str]
    variances: tuple[tuple[str, Tensor], ...] = field(default=(), compare=False)
    precision: torch.dtype | None = None

    @property
    def width(self) -> None:
        """``None``: kernels of images do not depend on a width."""
        return None

    @property
    def layers(self) -> Layers:
        """The cells, with tensors for variances."""
        return self.architecture.layers().with_variances(dict(self.variances))


def chosen_kernels(
    architecture: "Architecture | KernelFunction | ImageKernels",
    *,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    variances: Mapping[str, Tensor] | None = None,
) -> KernelFunction | ImageKernels:
    """The kernels of an architecture of vectors or of images; see ``kernel_function``."""
    if isinstance(architecture, ImageKernels):
        return architecture
    if not isinstance(architecture, ImageArchitecture):
        return kernel_function(architecture, trainable=trainable, width=width, variances=variances)
    check_width(architecture, width)
    named = checked_variances(architecture, variances)
    changed = with_values(architecture, named)
    assert isinstance(changed, ImageArchitecture)
    return ImageKernels(changed, architecture.check_trainable(trainable), named)


def checked_points(function: KernelFunction | ImageKernels, name: str, x: Any) -> Tensor:
    """Return inputs that kernels take, vectors or images, without batches; or say why not."""
    if isinstance(function, ImageKernels):
        return checked_image_samples(name, x, function.architecture)
    return checked_samples(name, x, batches=False)
