"""The last activation of an architecture, and the scale of its arguments."""

from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from torch import Tensor

from shoal.activations import Activation, ReLU
from shoal.architectures import DEQ, Architecture, FullyConnected, ImplicitNetwork, ResNet
from shoal.equivalents.autograd import gradients
from shoal.gaussian import moments
from shoal.kernels.fixed_points import fixed_variance
from shoal.kernels.fully_connected import layer_factor
from shoal.kernels.function import own_kernels
from shoal.kernels.implicit_network import state_square

__all__ = ["LastLayer", "last_activation", "last_layer"]


@dataclass(frozen=True)
class LastLayer:
    r"""The last activation $\varphi$ at inputs of norm $\tau_0$.

    Attributes:
        tau: The standard deviation $\tau$ of the arguments of $\varphi$.
            For an implicit network, whose arguments have a mean, it is their root mean square.
        growth: $\alpha_4$, a derivative in the squared norm of the input: that of $\tau_*^2$ for an
            implicit architecture, that of the CK of an input with itself for an explicit one.
    """

    tau: float
    growth: float


@singledispatch
def last_layer(architecture: Architecture, tau0: float) -> LastLayer:  # noqa: ARG001
    r"""The last layer at inputs of norm $\tau_0$; one of the things a new type must supply."""
    raise TypeError(f"no coefficients are known for {type(architecture).__name__}")


@last_layer.register
def _(architecture: DEQ, tau0: float) -> LastLayer:
    phi, squared = architecture.activation, _squared(tau0)
    recurrent = squared.new_tensor(architecture.recurrent_variance)
    with torch.enable_grad():
        injected = architecture.input_variance * squared
        variance = fixed_variance(phi, recurrent, injected, differentiable=True)
        return LastLayer(float(variance.detach()) ** 0.5, _slope(variance, squared))


@last_layer.register
def _(architecture: FullyConnected, tau0: float) -> LastLayer:
    squared = _squared(tau0)
    with torch.enable_grad():
        below = variance = squared
        for sigma in architecture.activations:
            below = variance
            factor = layer_factor(architecture, sigma)
            variance = factor * moments(sigma, below.sqrt()).square
        tau, growth = float(below.detach()) ** 0.5, _slope(variance, squared)
    return LastLayer(tau, growth)


@last_layer.register
def _(architecture: ResNet, tau0: float) -> LastLayer:
    squared = _squared(tau0)
    with torch.enable_grad():
        variance = own_kernels(architecture, squared, frozenset(), None).ck
        growth = _slope(variance, squared)
    depth = architecture.depth - 1
    if depth == 0:
        return LastLayer(tau0, growth)
    share = depth / architecture.depth  # residual scales are relative to the depth
    below = replace(
        architecture,
        activation=architecture.activations[:-1],
        depth=depth,
        residual_scale=architecture.residual_scale * share,
    )
    inner = own_kernels(below, squared.detach(), frozenset(), None).ck
    return LastLayer(float(inner) ** 0.5, growth)


@last_layer.register
def _(architecture: ImplicitNetwork, tau0: float) -> LastLayer:
    growth = architecture.gamma**2 * state_square(architecture.gamma) + 0.5
    return LastLayer(tau0 * growth**0.5, growth)


@singledispatch
def last_activation(architecture: Architecture) -> Activation:
    """The activation of the last layer."""
    raise TypeError(f"no coefficients are known for {type(architecture).__name__}")


@last_activation.register
def _(architecture: DEQ) -> Activation:
    return architecture.activation


@last_activation.register
def _(architecture: FullyConnected) -> Activation:
    return architecture.activations[-1]


@last_activation.register
def _(architecture: ResNet) -> Activation:
    return architecture.activations[-1]


@last_activation.register
def _(architecture: ImplicitNetwork) -> Activation:  # noqa: ARG001
    return ReLU()


def _squared(tau0: float) -> Tensor:
    return torch.tensor(tau0**2, dtype=torch.float64, requires_grad=True)


def _slope(value: Tensor, variable: Tensor) -> float:
    (slope,) = gradients(value, variable)
    return float(slope.detach())
