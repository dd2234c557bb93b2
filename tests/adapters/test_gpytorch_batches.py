"""Batches of GPyTorch kernels, length scales of features and learned biases."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import shoal
from adapters.plain import relu_deq

gpytorch = pytest.importorskip("gpytorch", reason="GPyTorch is not installed")
GPyTorchKernel = shoal.adapters.GPyTorchKernel

DEQ = shoal.DEQ("relu", 0.3, 0.8)
RECURRENT = (0.1, 0.4, 0.7)


@pytest.fixture(autouse=True)
def double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def inputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch_of_three() -> GPyTorchKernel:
    covariance = GPyTorchKernel(DEQ, batch_shape=(3,))
    covariance.recurrent_variance = torch.tensor(RECURRENT)
    return covariance


@pytest.mark.parametrize("shape", [(), (3,), (1,), (2, 3), (2, 1)])
def test_a_batch_of_kernels_is_a_loop(shape: tuple[int, ...]) -> None:
    covariance = batch_of_three()
    x, z = inputs(*shape, 5, 2), inputs(*shape, 4, 2, seed=1)
    outer = torch.broadcast_shapes(shape, (3,))
    with torch.no_grad():
        own, cross = covariance(x).to_dense(), covariance(x, z).to_dense()
        diagonal = covariance(x, diag=True)
    assert own.shape == (*outer, 5, 5)
    assert cross.shape == (*outer, 5, 4)
    left, right = (t.expand(*outer, *t.shape[-2:]).numpy() for t in (x, z))
    for index in np.ndindex(*outer):
        variance = RECURRENT[index[-1]]
        expected = relu_deq(left[index], variance, 0.8)[0]
        np.testing.assert_allclose(own[index], expected, atol=1e-10)
        np.testing.assert_allclose(diagonal[index], np.diag(expected), atol=1e-10)
        expected = relu_deq(left[index], variance, 0.8, right[index])[0]
        np.testing.assert_allclose(cross[index], expected, atol=1e-10)


def test_gradients_reach_the_kernel_of_their_part_of_the_batch() -> None:
    covariance, x = batch_of_three(), inputs(5, 2)
    weights = torch.tensor([1.0, 0.0, 2.0])
    (covariance(x).to_dense().sum((1, 2)) * weights).sum().backward()
    h = 1e-6
    for place, variance in enumerate(RECURRENT):
        up, down = (relu_deq(x.numpy(), variance + s * h, 0.8)[0].sum() for s in (1, -1))
        slope = variance * (1 - variance) * (up - down) / (2 * h)  # raw, through the sigmoid
        found = covariance.raw_recurrent_variance.grad[place].item()
        assert found == pytest.approx(weights[place].item() * slope, rel=1e-6)


def test_a_batch_is_indexed_and_expanded() -> None:
    covariance, x = batch_of_three(), inputs(4, 2)
    assert [covariance[k].architecture.recurrent_variance for k in range(3)] == pytest.approx(
        RECURRENT
    )
    with pytest.raises(ValueError, match=r"kernel\[0\]\.architecture, got a batch of shape \(3,\)"):
        _ = covariance.architecture
    both = covariance[1:]
    assert both.batch_shape == (2,)
    wide = covariance.expand_batch(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(both(x).to_dense(), covariance(x).to_dense()[1:])
        torch.testing.assert_close(wide(x).to_dense()[1], covariance(x).to_dense())
    assert not covariance.is_stationary


def test_values_of_a_batch_are_checked_and_set() -> None:
    covariance = batch_of_three()
    covariance.input_variance = 2.0
    torch.testing.assert_close(covariance.input_variance, torch.full((3,), 2.0))
    with pytest.raises(ValueError, match=r"value must be a number or of shape \(3,\)"):
        covariance.recurrent_variance = torch.tensor([0.1, 0.2])
    with pytest.raises(ValueError, match="value must be between 0 and 1"):
        covariance.recurrent_variance = torch.tensor([0.1, 0.2, 1.5])


@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_length_scales_divide_the_features(which: str) -> None:
    covariance = GPyTorchKernel(DEQ, which=which, ard_num_dims=2)
    assert covariance.learned == ("recurrent_variance",)  # σ_b² is a factor of length scales
    scales = np.array([0.5, 3.0])
    covariance.lengthscale = torch.from_numpy(scales)
    x, z = inputs(6, 2), inputs(3, 2, seed=1)
    row = ("ck", "ntk").index(which)
    with torch.no_grad():
        found = covariance(x).to_dense()
        cross = covariance(x, z).to_dense()
    a, b = x.numpy() / scales, z.numpy() / scales
    np.testing.assert_allclose(found, relu_deq(a, 0.3, 0.8)[row], atol=1e-10)
    np.testing.assert_allclose(cross, relu_deq(a, 0.3, 0.8, b)[row], atol=1e-10)


def test_gradients_in_length_scales() -> None:
    covariance, x = GPyTorchKernel(DEQ, ard_num_dims=2), inputs(5, 2)
    covariance.lengthscale = torch.tensor([0.5, 3.0])
    weight = inputs(5, 5, seed=3)
    (covariance(x).to_dense() * weight).sum().backward()

    def value(scales: np.ndarray) -> float:
        return float((relu_deq(x.numpy() / scales, 0.3, 0.8)[0] * weight.numpy()).sum())

    scales, h = np.array([0.5, 3.0]), 1e-6
    for k in range(2):
        step = h * np.eye(2)[k]
        slope = (value(scales + step) - value(scales - step)) / (2 * h)
        slope *= 1 - math.exp(-scales[k])  # of the softplus
        assert covariance.raw_lengthscale.grad[0, k].item() == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ard_num_dims": 0}, ValueError, "ard_num_dims must be"),
        ({"lengthscale_constraint": 3}, ValueError, "ard_num_dims must be given"),
    ],
)
def test_bad_options(options, error, message: str) -> None:
    with pytest.raises(error, match=message):
        GPyTorchKernel(DEQ, **options)
