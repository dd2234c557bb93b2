"""Coefficients and equivalents at the ends of their ranges, and their use in GPyTorch."""

import math
import warnings

import numpy as np
import pytest
import torch

import shoal

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)


@pytest.fixture(scope="module")
def found():
    x, labels = shoal.GaussianMixture.ling2024(100).sample(60, seed=0)
    return x, shoal.equivalent(RELU, x, labels)


@pytest.mark.parametrize("method", ["derivatives", "closed"])
@pytest.mark.parametrize("input_norm", [1e-6, 1e8])
def test_coefficients_of_relu_scale(input_norm, method):
    one = shoal.coefficients(RELU, input_norm=1.0, method=method)
    other = shoal.coefficients(RELU, input_norm=input_norm, method=method)
    powers = {"gamma2": 2, "kappa2": 2, "alpha1": 0, "alpha4": 0, "beta1": 0}
    powers |= dict.fromkeys(("alpha2", "alpha3", "beta2", "beta3"), -2)
    for name, power in powers.items():
        expected = getattr(one, name) * input_norm**power
        assert getattr(other, name) == pytest.approx(expected, rel=1e-9), name


@pytest.mark.parametrize("input_norm", [1e-300, 1e-100, 1e-8, 1e9, 1e200])
@pytest.mark.parametrize("function", [shoal.centered, shoal.coefficients])
def test_norms_out_of_range(function, input_norm):
    with pytest.raises(ValueError, match=r"input_norm must be [<>]= 1e"):
        function(RELU, input_norm=input_norm)


def test_layers_whose_arguments_vanish():
    with pytest.raises(shoal.AccuracyError, match=r"activations\[\d+\] cannot be centered"):
        shoal.coefficients(
            shoal.FullyConnected([shoal.activations.ReLU()] * 45), input_norm=1.0, method="closed"
        )


def test_messages_name_the_argument(found):
    x, eq = found
    with pytest.raises(TypeError, match=r"^x must be float32 or float64"):
        shoal.equivalent(RELU, x.half())
    with pytest.raises(ValueError, match=r"^x must be finite"):
        eq.cross(x * float("nan"))
    with pytest.raises(ValueError, match=r"^other must have 60 rows"):
        eq.ck.solve(torch.ones(59))
    with pytest.raises(TypeError, match="seed must be an integer"):
        eq.error(10, seed="0")
    with pytest.raises(shoal.AccuracyError, match="rtol below round-off"):
        eq.ck.solve(torch.ones(60), rtol=1e-30)


def test_one_sample_of_a_mixture():
    mixture = shoal.GaussianMixture(np.zeros((1, 2000)), 1.0)
    x, _ = mixture.sample(1, seed=0)
    with pytest.raises(ValueError, match="at least 2 samples, got 1 of class 0"):
        shoal.equivalent(RELU, x)
    eq = shoal.equivalent(RELU, x, mixture=mixture)
    exact = shoal.kernel(eq.coefficients.architecture, x).ck
    # the squared norm of one sample has a relative deviation of √(2/p)
    assert float(eq.ck.to_dense()) == pytest.approx(float(exact), rel=3 * math.sqrt(2 / 2000))


def test_labels_of_pandas(found):
    x, eq = found
    names = np.array(["one", "two"], dtype=object)[eq.statistics.indices.numpy()]
    named = shoal.equivalent(RELU, x, names)
    assert named.statistics.classes == ("one", "two")
    assert torch.equal(named.products, eq.products)


def test_entries_of_the_linear_operator(found):
    dense, operator = found[1].ck.to_dense(), found[1].ck.linear_operator()
    rows, columns = torch.tensor([1, 5, 7]), torch.tensor([2, 5, 0])
    torch.testing.assert_close(operator[rows, columns], dense[rows, columns])
    torch.testing.assert_close(operator.expand(2, 60, 60).to_dense(), dense.expand(2, 60, 60))
    torch.testing.assert_close(operator.unsqueeze(0).to_dense(), dense[None])


def test_gradients_give_no_warnings(found):
    noise = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found[1].ck.linear_operator().add_diagonal(noise).logdet().backward()
    inverse = torch.linalg.inv(found[1].ck.to_dense() + 0.1 * torch.eye(60).double())
    torch.testing.assert_close(noise.grad, inverse.trace())
