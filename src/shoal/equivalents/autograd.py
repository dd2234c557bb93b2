"""Derivatives of scalars."""

import torch
from torch import Tensor

__all__ = ["gradients"]


def gradients(value: Tensor, *variables: Tensor) -> tuple[Tensor, ...]:
    """Derivatives of a scalar that can be differentiated again; zero where it is constant."""
    if not value.requires_grad:  # the derivative of something linear
        return tuple(torch.zeros_like(variable) for variable in variables)
    return torch.autograd.grad(value, variables, create_graph=True, materialize_grads=True)
