"""BoTorch: the values of its infinite-width kernel, its models and acquisition with ours."""

import math

import pytest
import torch
from torch import Tensor

import shoal

pytest.importorskip("botorch", reason="BoTorch is not installed")
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.kernels import InfiniteWidthBNNKernel
from botorch.optim import optimize_acqf
from gpytorch.kernels import ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from shoal.adapters import GPyTorchKernel

SUITE = "BoTorch: `InfiniteWidthBNNKernel`, models and acquisition"
PACKAGE = "botorch"

pytestmark = pytest.mark.filterwarnings("default")


def inputs(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize(("weight", "bias"), [(1.0, 0.2), (2.0, 0.5), (10.0, 5.0)])
def test_values_of_the_infinite_width_kernel(depth: int, weight: float, bias: float) -> None:
    """σ_w² is a factor of the inner product over the features, and of every layer; a last bias."""
    theirs = InfiniteWidthBNNKernel(depth=depth, acos_eps=1e-15).double()
    theirs.weight_var, theirs.bias_var = torch.tensor([weight, bias], dtype=torch.float64)
    x, z = inputs(7, 3), inputs(4, 3, seed=1)
    layer = shoal.activations.Affine(shoal.activations.ReLU(), math.sqrt(weight), 0.0)
    network = shoal.FullyConnected([layer] * depth, bias_variance=bias)
    ours = GPyTorchKernel(network, learn=[])
    scale = math.sqrt(weight / 3)
    with torch.no_grad():
        for left, right in ((x, x), (x, z)):
            found = ours(scale * left, scale * right).to_dense() + bias
            torch.testing.assert_close(found, theirs(left, right).to_dense(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            ours(scale * x, diag=True) + bias, theirs(x, diag=True), rtol=1e-10, atol=1e-10
        )


def model(**options) -> SingleTaskGP:
    x = inputs(12, 2)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:]
    deq = shoal.DEQ("relu", 0.2, 1.0, bias_variance=0.5)
    covariance = ScaleKernel(GPyTorchKernel(deq, **options))
    return SingleTaskGP(x, y, covar_module=covariance, outcome_transform=None)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"ard_num_dims": 2}])
def test_a_model_is_fitted(options: dict[str, int]) -> None:
    process = model(**options)
    likelihood = ExactMarginalLogLikelihood(process.likelihood, process)

    def value() -> float:
        process.train()
        with torch.no_grad():
            return float(likelihood(process(*process.train_inputs), process.train_targets))

    before = value()
    fit_gpytorch_mll(likelihood, optimizer_kwargs={"options": {"maxiter": 10}})
    assert value() > before


@pytest.mark.thorough
def test_a_posterior_of_batches_has_gradients() -> None:
    process = model().eval()
    x = inputs(5, 1, 2, seed=3).requires_grad_()
    improvement = LogExpectedImprovement(process, best_f=process.train_targets.max())
    value = improvement(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    step = torch.zeros_like(x)
    step[2, 0, 1] = 1e-5
    with torch.no_grad():
        slope = (improvement(x + step) - improvement(x - step))[2] / 2e-5
    torch.testing.assert_close(gradient[2, 0, 1], slope, rtol=1e-4, atol=1e-7)


@pytest.mark.thorough
def test_an_acquisition_function_is_optimized() -> None:
    process = model().eval()
    improvement = LogExpectedImprovement(process, best_f=process.train_targets.max())
    bounds = torch.tensor([[-2.0, -2.0], [2.0, 2.0]], dtype=torch.float64)
    torch.manual_seed(0)
    point, value = optimize_acqf(
        improvement, bounds, q=1, num_restarts=2, raw_samples=8, options={"maxiter": 10}
    )
    corner = improvement(bounds[:1, None])
    assert bool((point >= bounds[0]).all() and (point <= bounds[1]).all())
    assert value > corner
