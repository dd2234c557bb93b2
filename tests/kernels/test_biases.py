"""Kernels of loops with biases, against scalar equations."""

import pytest
import torch

import shoal


def points(count: int) -> torch.Tensor:
    x = torch.randn(count, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[3] = 0
    x[5] = 2 * x[4]
    return x


@pytest.mark.parametrize(
    "phi", [shoal.activations.ReLU(), shoal.activations.LeakyReLU(0.1)], ids=repr
)
@pytest.mark.parametrize("trainable", [None, ("readout", "recurrent")], ids=["all", "some"])
def test_matrices_and_gradients_are_those_of_scalar_equations(phi, trainable):
    deq = shoal.DEQ(phi, 0.3, 0.7, bias_variance=0.2)
    names = ("recurrent_variance", "input_variance", "bias_variance")
    i, j = torch.triu_indices(20, 20, 1)
    weights = torch.randn(
        2, len(i), dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )

    def whole(x, variances):
        return [k[i, j] for k in shoal.kernel(deq, x, trainable=trainable, variances=variances)]

    def directly(x, variances):
        function = shoal.kernel_function(deq, trainable=trainable, variances=variances)
        square = (x * x).sum(1)
        return list(function(square[i], square[j], (x[i] * x[j]).sum(1)))

    found = []
    for matrices in (whole, directly):
        x = points(20).requires_grad_()
        values = torch.tensor([0.3, 0.7, 0.2], dtype=torch.float64, requires_grad=True)
        both = torch.stack(matrices(x, dict(zip(names, values, strict=True))))
        found.append((both.detach(), *torch.autograd.grad((weights * both).sum(), (x, values))))
    for own, exact in zip(*found, strict=True):
        torch.testing.assert_close(own, exact, rtol=1e-8, atol=1e-8)
