"""Activation functions as immutable values."""

from shoal.activations.affine import Affine
from shoal.activations.base import Activation
from shoal.activations.hermite import Hermite
from shoal.activations.panels import Kink
from shoal.activations.piecewise import ELU, HardTanh, Identity, LeakyReLU, ReLU
from shoal.activations.piecewise_polynomial import PiecewisePolynomial
from shoal.activations.smooth import (
    GELU,
    Cosine,
    Erf,
    Sigmoid,
    Sine,
    Sinusoid,
    Softplus,
    Swish,
    Tanh,
)

__all__ = [
    "ELU",
    "GELU",
    "Activation",
    "Affine",
    "Cosine",
    "Erf",
    "HardTanh",
    "Hermite",
    "Identity",
    "Kink",
    "LeakyReLU",
    "PiecewisePolynomial",
    "ReLU",
    "Sigmoid",
    "Sine",
    "Sinusoid",
    "Softplus",
    "Swish",
    "Tanh",
]
