"""shoal finds the shallow network inside an infinitely deep one."""

from shoal import gaussian
from shoal.activations import (
    ELU,
    GELU,
    Activation,
    Affine,
    Cosine,
    Erf,
    HardTanh,
    Hermite,
    Identity,
    Kink,
    LeakyReLU,
    ReLU,
    Sigmoid,
    Sine,
    Softplus,
    Swish,
    Tanh,
)
from shoal.architectures import (
    DEQ,
    Architecture,
    ConvResNet,
    FullyConnected,
    ImplicitArchitecture,
    ImplicitNetwork,
    ResNet,
)
from shoal.exceptions import AccuracyError, ConvergenceError
from shoal.kernels import KernelFunction, Kernels, kernel, kernel_function

__all__ = [
    "DEQ",
    "ELU",
    "GELU",
    "AccuracyError",
    "Activation",
    "Affine",
    "Architecture",
    "ConvResNet",
    "ConvergenceError",
    "Cosine",
    "Erf",
    "FullyConnected",
    "HardTanh",
    "Hermite",
    "Identity",
    "ImplicitArchitecture",
    "ImplicitNetwork",
    "KernelFunction",
    "Kernels",
    "Kink",
    "LeakyReLU",
    "ReLU",
    "ResNet",
    "Sigmoid",
    "Sine",
    "Softplus",
    "Swish",
    "Tanh",
    "gaussian",
    "kernel",
    "kernel_function",
]

__version__ = "0.1.0.dev0"
