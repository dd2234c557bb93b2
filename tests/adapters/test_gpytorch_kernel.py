"""The GPyTorch kernel: values, constraints, and variances that are learned."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

import shoal
from adapters.plain import log_marginal_likelihood, relu_deq

gpytorch = pytest.importorskip("gpytorch", reason="GPyTorch is not installed")
GPyTorchKernel = shoal.adapters.GPyTorchKernel

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.3, input_variance=0.8)


@pytest.fixture(autouse=True)
def double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def inputs(n: int, p: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(n, p, generator=torch.Generator().manual_seed(seed))


class Process(gpytorch.models.ExactGP):
    def __init__(self, x: Tensor, y: Tensor, covariance, noise: float) -> None:
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        likelihood.noise = noise
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(covariance)

    def forward(self, x: Tensor):
        mean, covariance = self.mean_module(x), self.covar_module(x)
        return gpytorch.distributions.MultivariateNormal(mean, covariance)


@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_values_are_those_of_the_equations(which: str) -> None:
    x, z = inputs(6), inputs(4, seed=1)
    covariance = GPyTorchKernel(RELU, which=which)
    row = ("ck", "ntk").index(which)
    own = relu_deq(x.numpy(), 0.3, 0.8)[row]
    cross = relu_deq(x.numpy(), 0.3, 0.8, z.numpy())[row]
    with torch.no_grad():
        np.testing.assert_allclose(covariance(x).to_dense(), own, atol=1e-10)
        np.testing.assert_allclose(covariance(x, z).to_dense(), cross, atol=1e-10)
        np.testing.assert_allclose(covariance(x, diag=True), np.diag(own), atol=1e-10)
        np.testing.assert_allclose(covariance(x, x.clone()).to_dense(), own, atol=1e-10)


def test_active_dimensions_batches_and_sums() -> None:
    x = inputs(10).view(2, 5, 3)
    part = GPyTorchKernel(RELU, active_dims=(0, 2))
    whole = part + gpytorch.kernels.RBFKernel() * GPyTorchKernel(RELU)
    with torch.no_grad():
        found, total = part(x).to_dense(), whole(x).to_dense()
        for b in range(2):
            expected = relu_deq(x[b][:, [0, 2]].numpy(), 0.3, 0.8)[0]
            np.testing.assert_allclose(found[b], expected, atol=1e-10)
            full = torch.from_numpy(relu_deq(x[b].numpy(), 0.3, 0.8)[0])
            radial = torch.exp(-(torch.cdist(x[b], x[b]) ** 2) / (2 * np.log(2) ** 2))
            np.testing.assert_allclose(total[b], found[b] + radial * full, atol=1e-8)


def test_an_architecture_without_variances() -> None:
    x = torch.nn.functional.normalize(inputs(5))
    covariance = GPyTorchKernel(shoal.FullyConnected([shoal.activations.ReLU()]))
    assert list(covariance.parameters()) == []
    angle = torch.arccos((x @ x.T).clamp(-1, 1))
    expected = (angle.sin() + (np.pi - angle) * angle.cos()) / (2 * np.pi)
    torch.testing.assert_close(covariance(x).to_dense(), expected, atol=1e-7, rtol=0)
    with pytest.raises(AttributeError, match="recurrent_variance"):
        _ = covariance.recurrent_variance


@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_gradients_of_the_marginal_likelihood(which: str) -> None:
    x = inputs(20)
    y = torch.sin(x.sum(1))
    model = Process(x, y, GPyTorchKernel(RELU, which=which), noise=0.05)
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    base = model.covar_module.base_kernel
    model.covar_module.outputscale = 1.0
    row = ("ck", "ntk").index(which)

    def exact(recurrent: float, injection: float) -> float:
        matrix = relu_deq(x.numpy(), recurrent, injection)[row] + 0.05 * np.eye(20)
        return log_marginal_likelihood(matrix, y.numpy()) / 20

    value = likelihood(model(x), y)
    np.testing.assert_allclose(value.item(), exact(0.3, 0.8), atol=1e-9)
    value.backward()
    h = 1e-5
    in_recurrent = (exact(0.3 + h, 0.8) - exact(0.3 - h, 0.8)) / (2 * h)
    in_injection = (exact(0.3, 0.8 + h) - exact(0.3, 0.8 - h)) / (2 * h)
    # the parameters are raw: σ_a² = sigmoid(r), σ_b² = softplus(r)
    np.testing.assert_allclose(
        base.raw_recurrent_variance.grad.item(), in_recurrent * 0.3 * 0.7, rtol=1e-6
    )
    np.testing.assert_allclose(
        base.raw_input_variance.grad.item(), in_injection * (1 - np.exp(-0.8)), rtol=1e-6
    )


def test_predictions_are_those_of_the_process() -> None:
    x, z = inputs(15), inputs(4, seed=1)
    y = torch.cos(x.sum(1))
    model = Process(x, y, GPyTorchKernel(RELU), noise=0.1).eval()
    model.covar_module.outputscale = 2.0
    own = 2 * relu_deq(x.numpy(), 0.3, 0.8)[0] + 0.1 * np.eye(15)
    cross = 2 * relu_deq(z.numpy(), 0.3, 0.8, x.numpy())[0]
    prior = 2 * relu_deq(z.numpy(), 0.3, 0.8)[0]
    with torch.no_grad():
        posterior = model(z)
    np.testing.assert_allclose(posterior.mean, cross @ np.linalg.solve(own, y.numpy()), atol=1e-8)
    covariance = prior - cross @ np.linalg.solve(own, cross.T)
    np.testing.assert_allclose(posterior.covariance_matrix, covariance, atol=1e-8)


def test_gradients_in_inputs() -> None:
    x = inputs(4).requires_grad_()
    GPyTorchKernel(RELU)(x).to_dense().sum().backward()
    z, h = x.detach().numpy(), 1e-6
    for i, j in ((0, 0), (2, 1)):
        step = np.zeros_like(z)
        step[i, j] = h
        up, down = (relu_deq(z + s * step, 0.3, 0.8)[0].sum() for s in (1, -1))
        assert x.grad[i, j].item() == pytest.approx((up - down) / (2 * h), rel=1e-6)


@pytest.mark.parametrize(
    ("activation", "limit"),
    [
        (shoal.activations.Tanh(), 1.0),
        (shoal.activations.LeakyReLU(2.0), 0.25),
        (shoal.activations.Erf(), np.pi / 4),
    ],
)
def test_constraints_are_those_of_well_posedness(activation, limit: float) -> None:
    deq = shoal.DEQ(activation, 0.05, 1.0)
    covariance = GPyTorchKernel(deq)
    constraint = covariance.raw_recurrent_variance_constraint
    assert float(constraint.upper_bound) == pytest.approx(limit, rel=1e-12)
    assert float(constraint.lower_bound) == 0
    with torch.no_grad():
        covariance.raw_recurrent_variance.fill_(8.0)
    assert 0.99 * limit < covariance.architecture.recurrent_variance < limit


def test_other_constraints_and_priors() -> None:
    wide = gpytorch.constraints.Interval(0.0, 1.9)
    deq = shoal.DEQ(shoal.activations.ReLU(), 1.5, 1.0)
    prior = gpytorch.priors.GammaPrior(2.0, 3.0)
    covariance = GPyTorchKernel(
        deq, constraints={"recurrent_variance": wide}, priors={"recurrent_variance": prior}
    )
    assert covariance.recurrent_variance.item() == pytest.approx(1.5)
    (found,) = covariance.named_priors()
    assert found[3](found[1]).item() == pytest.approx(1.5)
    covariance.initialize(recurrent_variance=1.2)
    assert covariance.architecture.recurrent_variance == pytest.approx(1.2)


def test_states_copies_and_pickles() -> None:
    first = GPyTorchKernel(RELU, active_dims=(0, 1))
    first.recurrent_variance = 0.7
    first.input_variance = torch.tensor(1.4)
    second = GPyTorchKernel(RELU, active_dims=(0, 1))
    second.load_state_dict(first.state_dict())
    for other in (second, copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert other.architecture == first.architecture
    assert first.architecture.recurrent_variance == pytest.approx(0.7)
    assert first.architecture.input_variance == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"which": "nngp"}, ValueError, "which must be one of 'ck', 'ntk', got 'nngp'"),
        ({"learn": ["gamma"]}, ValueError, "learn must be one of 'recurrent_variance'"),
        ({"learn": "recurrent_variance"}, TypeError, "learn must be a collection of names"),
        ({"trainable": {"bias"}}, ValueError, "trainable must be chosen from"),
        ({"learn": [], "constraints": {"input_variance": None}}, ValueError, "constraints must"),
        ({"constraints": {"input_variance": 3}}, TypeError, "constraints of GPyTorch, got 3"),
    ],
)
def test_bad_options(options, error, message: str) -> None:
    with pytest.raises(error, match=message):
        GPyTorchKernel(RELU, **options)


@pytest.mark.parametrize("variance", [0.0, 1.0, 1.5])
def test_variances_at_or_beyond_the_edge_are_not_learned(variance: float) -> None:
    deq = shoal.DEQ(shoal.activations.Tanh(), variance, 1.0)
    with pytest.raises(ValueError, match=r"recurrent_variance must lie between 0 and 1 to be lea"):
        GPyTorchKernel(deq)
    fixed = GPyTorchKernel(deq, learn=["input_variance"])
    assert fixed.recurrent_variance.item() == variance
    with pytest.raises(AttributeError, match="not among the learned"):
        fixed.recurrent_variance = 0.5


def test_what_is_no_architecture_or_not_lipschitz() -> None:
    with pytest.raises(TypeError, match="architecture must be an Architecture"):
        GPyTorchKernel(shoal.activations.Tanh())
    conv = GPyTorchKernel(shoal.ConvResNet(shoal.activations.GELU(), depth=2))
    with pytest.raises(ValueError, match="image_shape must be given for a ConvResNet"):
        conv(torch.eye(2)).to_dense()
    with pytest.raises(ValueError, match="learn must be empty"):
        GPyTorchKernel(shoal.ImplicitNetwork(0.4), learn=["gamma"])
    quadratic = shoal.DEQ(shoal.activations.Hermite((0.0, 0.1, 0.1)), 0.1, 1.0)
    with pytest.raises(ValueError, match="not Lipschitz"):
        GPyTorchKernel(quadratic)


@pytest.mark.thorough
def test_nothing_is_imported_before_it_is_used_and_errors_name_the_extra() -> None:
    code = """
import sys
import shoal
assert not {"gpytorch", "sklearn", "linear_operator"} & set(sys.modules)
for name in ("gpytorch", "sklearn"):
    sys.modules[name] = None
assert "GPyTorchKernel" in dir(shoal.adapters)
for name, extra in [("GPyTorchKernel", "gpytorch"), ("SklearnKernel", "sklearn"),
                    ("KernelRegressor", "sklearn")]:
    try:
        getattr(shoal.adapters, name)
    except ImportError as error:
        assert f"pip install 'shoal-deq[{extra}]'" in str(error), error
    else:
        raise AssertionError(name)
try:
    shoal.adapters.Whale
except AttributeError as error:
    assert "Whale" in str(error)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
