"""The base class of all networks, their description and random weights, and their traces."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from shoal.architectures import Architecture
from shoal.core.checks import float_tensor, known_tensor, room, seeded
from shoal.core.torch_compat import is_wrapped

A = TypeVar("A", bound=Architecture)
WeightLaw = Literal["gaussian", "rademacher", "uniform", "orthogonal", "symmetric"]


@dataclass(frozen=True)
class NetworkSpec(Generic[A]):
    """The description of a network without its weights.

    Attributes:
        architecture: The architecture.
        in_features: The size of an input; for images its number of channels.
        width: $m$, the number of units, or channels, of each hidden layer.
        out_features: The number of outputs.
        weights: The law of the random weights.
        readout_scale: The factor of the readout at initialization.
        trainable: The groups that are trained.
        pixel_axes: The number of axes of pixels; zero for vectors.
        pixels: The number of pixels along each axis; empty if images may have any size.
    """

    architecture: A
    in_features: int
    width: int
    out_features: int
    weights: WeightLaw
    readout_scale: float
    trainable: frozenset[str]
    pixel_axes: int = 0
    pixels: tuple[int, ...] = ()


class Source:
    """A stream of random weights of mean zero and unit variance.

    They are drawn on the CPU in float64, then rounded and moved, so that a seed gives the same
    numbers on every device and in every dtype.

    Args:
        seed: Seed of the stream.
        dtype: Dtype of the weights.
        device: Device of the weights.
    """

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self._generator = seeded("seed", seed)
        self._dtype, self._device = dtype, device

    def draw(self, law: WeightLaw, *shape: int, scale: float = 1.0, square: bool = False) -> Tensor:
        """The next weights.

        Args:
            law: Their law. A law of matrices applies to square ones; other shapes are Gaussian.
            shape: Their shape.
            scale: A factor.
            square: Whether they are the square matrix of a recurrent layer.
        """
        if self._device.type == "meta":  # for shapes alone
            return torch.empty(shape, dtype=self._dtype, device="meta")
        room("width (or another size)", *shape)
        generator, dtype = self._generator, torch.float64
        if law == "uniform":
            weights = torch.rand(shape, generator=generator, dtype=dtype)
            weights = weights.mul_(2).sub_(1).mul_(math.sqrt(3))
        elif law == "rademacher":
            weights = torch.randint(0, 2, shape, generator=generator).to(dtype).mul_(2).sub_(1)
        else:
            weights = torch.randn(shape, generator=generator, dtype=dtype)
        if square and law == "symmetric":
            weights = (weights + weights.T).mul_(math.sqrt(0.5))
        elif square and law == "orthogonal":  # uniform among rotations and reflections, times √m
            q, r = torch.linalg.qr(weights)
            signs = r.diagonal().sign()  # they make QR unique, so that q is uniform
            weights = torch.mul(q, signs).mul_(math.sqrt(len(q)))
        return weights.mul_(scale).to(dtype=self._dtype, device=self._device)


class LinearMap(NamedTuple):
    r"""The action of a group of weights $W$: $y = s W h$, at each pixel if there are any.

    Attributes:
        input: $h$, of shape (samples, pixels, size).
        output: $y$, or a sum with the term $y$, in autograd's graph; (samples, units, ...).
        scale: $s$.
    """

    input: Tensor
    output: Tensor
    scale: float

    @classmethod
    def from_bias(cls, output: Tensor, scale: float) -> "LinearMap":
        """The action of biases on ones, at each pixel if there are any."""
        return cls(output.new_ones(len(output), output[0, 0].numel(), 1), output, scale)


class NetworkTrace(NamedTuple):
    """The quantities of a pass through a network that its kernels require.

    Attributes:
        output: The output of the network; shape (samples, outputs).
        features: The input of the readout, in the scale of the conjugate kernel.
        maps: The action of each group of weights.
    """

    output: Tensor
    features: Tensor
    maps: Mapping[str, LinearMap]


class Network(Module, ABC, Generic[A]):
    """A finite network of an architecture: an ordinary module, made by ``shoal.build``.

    Its parameters are named like the architecture's ``parameter_groups``; those that are not
    trained have ``requires_grad=False``, and a readout that is fixed is a buffer.

    Attributes:
        spec: Its description.
        readout: Its last weights, fixed or not.
    """

    readout: Tensor

    def __init__(self, spec: NetworkSpec[A], weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.spec = spec
        for name, value in weights.items():
            if name in spec.architecture.parameter_groups or name in spec.trainable:
                trained = name in spec.trainable
                self.register_parameter(name, Parameter(value, requires_grad=trained))
            else:
                self.register_buffer(name, value)

    @staticmethod
    @abstractmethod
    def draw(spec: NetworkSpec[Any], source: Source) -> dict[str, Tensor]:
        """The initial weights of such a network, by the names of their groups."""

    @property
    def architecture(self) -> A:
        """The architecture."""
        return self.spec.architecture

    @property
    def groups(self) -> dict[str, Parameter]:
        """The parameters by the name of their group, trained or not."""
        return dict(self.named_parameters())

    def _weight(self, group: str) -> Tensor:
        """The weights of a group, also under a parametrization."""
        weight: Tensor = getattr(self, group)
        return weight

    def forward(self, x: Tensor) -> Tensor:
        """The network's outputs, of shape (samples, outputs)."""
        return self._forward(self.check_input(x))

    @abstractmethod
    def _forward(self, x: Tensor) -> Tensor:
        """The outputs for inputs that were checked."""

    @abstractmethod
    def trace(self, x: Tensor) -> NetworkTrace:
        """A pass that keeps the inputs and outputs of all groups of weights."""

    def check_input(self, x: Tensor, name: str = "x") -> Tensor:
        """Return inputs that fit the network, perhaps of no sample, or raise."""
        if torch.compiler.is_compiling() or (isinstance(x, Tensor) and is_wrapped(x)):
            return x  # without known values
        empty = isinstance(x, Tensor) and x.shape[:1] == (0,)
        x = known_tensor(name, x) if empty else float_tensor(name, x)
        shape = "(samples, in_features" + ", pixels" * self.spec.pixel_axes + ")"
        if x.dim() != 2 + self.spec.pixel_axes or x.shape[1] != self.spec.in_features:
            raise ValueError(
                f"{name} must have shape {shape} with in_features = {self.spec.in_features}, "
                f"got {tuple(x.shape)}"
            )
        weight = self.readout  # also present in replicas of a module
        if (x.dtype, x.device) != (weight.dtype, weight.device):
            raise TypeError(
                f"{name} must have the network's dtype and device, {weight.dtype} on "
                f"{weight.device}, got {x.dtype} on {x.device}"
            )
        return x

    def extra_repr(self) -> str:
        """The sizes, and the trained groups."""
        spec = self.spec
        groups = ", ".join(name for name, p in self.groups.items() if p.requires_grad)
        return (
            f"{spec.architecture!r}, in_features={spec.in_features}, width={spec.width}, "
            f"out_features={spec.out_features}, trainable: {groups or 'nothing'}"
        )


def chosen_groups(architecture: Architecture, trainable: Iterable[str] | None) -> frozenset[str]:
    """The groups of an argument; a fixed readout only by its name or with ``"all"``."""
    if trainable == "all":
        return frozenset(architecture.parameter_groups) | {"readout"}
    if trainable is None or isinstance(trainable, str) or not isinstance(trainable, Iterable):
        return architecture.check_trainable(trainable)
    names = tuple(trainable)
    groups = tuple(name for name in names if name != "readout")
    if "readout" in names and groups:
        return architecture.check_trainable(groups) | {"readout"}
    return frozenset(names) if names == ("readout",) else architecture.check_trainable(names)
