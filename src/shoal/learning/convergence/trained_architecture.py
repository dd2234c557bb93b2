"""The kernels of the network that is really trained: its parametrization, its initial readout."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.core.checks import real
from shoal.kernels import Kernels, kernel
from shoal.kernels.images.function import chosen_kernels
from shoal.networks import Network

_READOUTS = frozenset({"readout", "skip"})  # groups that the output is linear in


@dataclass(frozen=True)
class TrainedArchitecture:
    r"""An architecture, and how it is trained.

    If the initial readout has the factor $s$, the covariance of the initial function has the factor
    $s^2$, and so has the part of the NTK that reaches its weights through the readout: all but the
    readout's own share.

    Attributes:
        architecture: The network.
        trainable: The groups that are trained.
        width: The width, where the NTK depends on it.
        readout_scale: $s$.
    """

    architecture: Architecture
    trainable: frozenset[str]
    width: int | None
    readout_scale: float

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        trainable: Iterable[str] | None,
        width: int | None,
        readout_scale: float,
    ) -> "TrainedArchitecture":
        """Check the parts."""
        function = chosen_kernels(architecture, trainable=trainable, width=width)
        scale = real("readout_scale", readout_scale)
        return cls(function.architecture, function.trainable, function.width, scale)

    @classmethod
    def of_network(
        cls,
        architecture: Architecture,
        network: Network[Any],
        trainable: Iterable[str] | None,
        width: int | None,
        readout_scale: float | None,
    ) -> "TrainedArchitecture":
        """What a given network is, unless something else is asked for."""
        if network.architecture != architecture:
            raise ValueError(
                f"initial must be a network of {architecture!r}, got one of "
                f"{network.architecture!r}"
            )
        if trainable is None:
            trainable = [name for name, p in network.groups.items() if p.requires_grad]
        if width is None and architecture.width_matters:
            width = network.spec.width
        scale = network.spec.readout_scale if readout_scale is None else readout_scale
        return cls.of(architecture, trainable, width, scale)

    def kernels(self, x1: Tensor, x2: Tensor | None = None) -> Kernels:
        """The kernels at initialization, in float64."""
        first, second = x1.to(torch.float64), None if x2 is None else x2.to(torch.float64)
        evaluate = partial(kernel, self.architecture, first, second, width=self.width)
        ck, ntk = evaluate(trainable=self.trainable)
        square = self.readout_scale**2
        if square == 1:
            return Kernels(ck, ntk)
        readouts = self.trainable & _READOUTS
        scaled = ntk * square
        if readouts:
            scaled += (1 - square) * evaluate(trainable=readouts).ntk
        return Kernels(ck * square, scaled)

    def covariance(self, x: Tensor, *, full: bool) -> Tensor:
        """The covariance of the initial function at inputs, or only its diagonal."""
        return kernel(self.architecture, x.to(torch.float64), diag=not full).ck * (
            self.readout_scale**2
        )
