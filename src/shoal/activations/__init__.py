"""Activation functions as immutable values."""

from shoal.activations.affine import Affine
from shoal.activations.base import Activation
from shoal.activations.bounds import Evaluated, Smoothness
from shoal.activations.closed_forms import ClosedForm
from shoal.activations.hermite import Hermite
from shoal.activations.panels import Kink
from shoal.activations.piecewise import ELU, HardTanh, Identity, LeakyReLU, ReLU
from shoal.activations.piecewise_polynomial import PiecewisePolynomial
from shoal.activations.smooth import (
    GELU,
    Cosine,
    Erf,
    Mish,
    Sigmoid,
    Sine,
    Softplus,
    Swish,
    Tanh,
)

__all__ = [
    "ELU",
    "GELU",
    "Activation",
    "Affine",
    "ClosedForm",
    "Cosine",
    "Erf",
    "Evaluated",
    "HardTanh",
    "Hermite",
    "Identity",
    "Kink",
    "LeakyReLU",
    "Mish",
    "PiecewisePolynomial",
    "ReLU",
    "Sigmoid",
    "Sine",
    "Smoothness",
    "Softplus",
    "Swish",
    "Tanh",
]
