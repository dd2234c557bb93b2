"""Biases in the kernels of Gaussian processes."""

import numpy as np
import pytest
import torch

import shoal

pytest.importorskip("sklearn")
pytest.importorskip("gpytorch")

from shoal.adapters import GPyTorchKernel, SklearnKernel


def test_one_feature_is_enough_with_biases():
    x = np.linspace(-2, 2, 9)[:, None]
    assert np.linalg.matrix_rank(SklearnKernel("relu")(x), tol=1e-9) == 2
    assert np.linalg.matrix_rank(SklearnKernel("relu", bias_variance=0.5)(x), tol=1e-9) == 9
    assert "bias_variance=0.5" in repr(SklearnKernel("relu", bias_variance=0.5))


def test_no_biases_stay_none():
    assert SklearnKernel("relu").theta.shape == (2,)


def test_gpytorch_learns_them():
    deq = shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8, bias_variance=0.3)
    covariance = GPyTorchKernel(deq).double()
    covariance(torch.eye(3, dtype=torch.float64)).to_dense().sum().backward()
    assert covariance.raw_bias_variance.grad > 0
    covariance.bias_variance = 0.7
    assert covariance.architecture.bias_variance == pytest.approx(0.7, rel=1e-6)
