"""Matrices of many entries, compiled loops among them, against scalar equations."""

import pytest
import torch

from kernels.points import inputs, norms_between
from shoal import DEQ, FullyConnected, kernel, kernel_function
from shoal.activations import GELU, ReLU, Tanh

ARCHITECTURES = [
    DEQ(ReLU(), 0.2, 0.8),
    DEQ(Tanh(), 0.2, 0.8),
    DEQ(GELU(), 0.3, 0.7, bias_variance=0.1),
    FullyConnected((Tanh(), ReLU())),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=["relu", "tanh", "gelu", "layers"])
@pytest.mark.parametrize("norms", ["one", "any"])
def test_entries_are_those_of_the_scalar_equations(architecture, norms):
    x = inputs(600, 12, one_norm=True) if norms == "one" else norms_between(0.6, 2.5, 600, 12, 0)
    found = kernel(architecture, x)
    i, j = torch.randint(len(x), (2, 300), generator=torch.Generator().manual_seed(0))
    squares = x.square().sum(1)
    exact = kernel_function(architecture)(squares[i], squares[j], (x[i] * x[j]).sum(1))
    for own, true in zip(found, exact, strict=True):
        size = (own.diagonal()[i] * own.diagonal()[j]).sqrt()
        distinct = i != j
        assert ((own[i, j] - true).abs() / size)[distinct].max() <= 1e-11
        assert torch.equal(own, own.T)
