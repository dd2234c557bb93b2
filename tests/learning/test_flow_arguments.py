"""What predictions of training accept and return, and what they refuse."""

import math

import numpy as np
import pytest
import torch

import shoal
from shoal import DEQ, gradient_flow
from shoal.activations import ReLU
from shoal.kernels import Kernels
from shoal.learning import LinearTraining

DEQ_RELU = DEQ(ReLU(), 0.3, 1.0)
X = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
Y = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
X_TEST = torch.tensor([[0.0, 1.0]], dtype=torch.float64)


def flow(x=X, y=Y, x_test=X_TEST, times=1.0, architecture=DEQ_RELU, **options):
    return gradient_flow(architecture, x, y, x_test, times, **options)


def test_arrays_come_back_where_arrays_came_in():
    expected = flow()
    found = flow(X.numpy(), Y.numpy(), X_TEST.numpy(), np.array([1.0]))
    for name in ("times", "loss", "loss_std", "train_mean", "test_mean", "test_std"):
        assert isinstance(getattr(found, name), np.ndarray)
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name).numpy())
    assert isinstance(found.training.run(2.0).loss, np.ndarray)


def test_the_dtype_follows_the_inputs():
    found = flow(X.float(), Y.float(), X_TEST.float(), [0, 1, 3])
    expected = flow(times=[0, 1, 3])
    for name in ("times", "loss", "loss_std", "train_mean", "test_mean", "test_std"):
        value = getattr(found, name)
        assert value.dtype == torch.float32
        # X was rounded, all else is done in float64
        torch.testing.assert_close(value.double(), getattr(expected, name), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "times",
    [1, 1.0, [1], (1.0,), torch.tensor([1.0]), torch.tensor(1), np.array([1]), np.float32(1)],
)
def test_times_may_be_one_or_several(times):
    torch.testing.assert_close(flow(times=times).loss, flow(times=[0.5, 1.0]).loss[1:])


def test_what_is_not_asked_for_is_not_there():
    found = flow(x_test=None)
    assert found.test_mean is found.test_std is found.test_covariance is found.steps is None
    assert flow(covariance="none").test_std is None
    assert flow().test_covariance is None
    assert flow(covariance="full").test_covariance.shape == (1, 1, 1)
    assert flow(initial="zero").test_std is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"x": X[0]}, r"x must have shape \(samples, features\), got \(2,\)"),
        ({"x": X[:0]}, "x must not be empty"),
        ({"x_test": X_TEST[0]}, "x_test must have shape"),
        ({"x_test": torch.ones(1, 3).double()}, "x_test must have the 2 features of x, got 3"),
        ({"y": Y[:2]}, r"y must have shape \(n,\) or \(n, outputs\) with n = 3, got \(2,\)"),
        ({"y": Y * math.nan}, "y must be finite"),
        ({"times": -1.0}, "times must be >= 0, got -1"),
        ({"times": [0, math.nan]}, "times must be >= 0, got nan"),
        ({"times": []}, "times must not be empty"),
        ({"times": None, "steps": 1.5, "step_size": 0.1}, "steps must be whole numbers"),
        ({"times": None, "steps": 1, "step_size": 1e3}, "step_size must be < 2 divided by"),
        ({"initial": "ones"}, "initial must be one of"),
        ({"initial": (Y, Y[:1]), "x_test": None}, r"initial\[1\] must hold"),
        ({"initial": (Y[:2], Y[:1])}, r"initial\[0\] must have shape \(3\), got \(2,\)"),
        ({"reduction": "max"}, "reduction must be one of 'sum', 'mean'"),
        ({"covariance": "all"}, "covariance must be one of"),
        ({"trainable": {"layer1"}}, "trainable must be chosen from"),
        ({"width": 8}, "width has no meaning"),
        ({"readout_scale": math.inf}, "readout_scale must be finite"),
    ],
)
def test_bad_values(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        flow(**options)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"x": [[1.0]]}, "x must be a floating-point tensor"),
        ({"y": torch.tensor([1, 0, 1])}, "y must be a floating-point tensor"),
        ({"y": Y.float()}, "y must have the dtype and device of x"),
        ({"x_test": X_TEST.float()}, "x_test must have the dtype and device of x"),
        ({"times": "1"}, "times must be a number or a sequence"),
        ({"times": torch.ones(2, 2)}, "times must be a real number"),
        ({"times": None}, "either times or steps must be given, got neither"),
        ({"step_size": 1.0}, "steps and step_size must be given together"),
        ({"initial": Y}, 'initial must be "random", "zero", a network or a pair'),
        ({"architecture": "deq"}, "architecture must be an Architecture"),
    ],
)
def test_bad_types(options, complaint):
    with pytest.raises(TypeError, match=complaint):
        flow(**options)


def test_bad_kernels():
    k = shoal.kernel(DEQ_RELU, X)
    cross = shoal.kernel(DEQ_RELU, X_TEST, X)
    ck = k.ck
    cases = [
        ({"kernels": Kernels(ck, ck[:2])}, r"kernels.ntk must have shape \(3, 3\)"),
        ({"kernels": Kernels(ck, ck[:2, :2])}, r"kernels.ntk must have shape \(3, 3\)"),
        ({"kernels": Kernels(ck, ck.triu())}, "kernels.ntk must be symmetric"),
        ({"kernels": Kernels(ck, -ck)}, "kernels.ntk must be positive semidefinite"),
        ({"kernels": Kernels(ck, ck * math.nan)}, "kernels.ntk must be finite"),
        ({"cross": Kernels(*(c.T for c in cross))}, r"cross.ck must have shape \(any, 3\)"),
        ({"cross": cross, "prior": ck}, r"prior must have shape \(1, 1\)"),
        ({"prior": ck}, "prior requires cross"),
    ]
    for options, complaint in cases:
        with pytest.raises(ValueError, match=complaint):
            LinearTraining(**{"kernels": k, "y": Y, **options})
    with pytest.raises(TypeError, match="kernels must be Kernels, got Tensor"):
        LinearTraining(ck, Y)
    diagonal = LinearTraining(k, Y, cross=cross, prior=shoal.kernel(DEQ_RELU, X_TEST).ck[0])
    assert diagonal.run(1.0).test_std.shape == (1, 1)
    with pytest.raises(ValueError, match="requires the full prior"):
        diagonal.run(1.0, covariance="full")
    with pytest.raises(ValueError, match="loss must be > 0"):
        diagonal.time_to(0.0)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 1e300), (torch.float32, 1e25)])
def test_losses_that_overflow_are_refused(dtype, scale):
    x, y = X.to(dtype), torch.full((len(X),), scale, dtype=dtype)
    with pytest.raises(shoal.AccuracyError, match="the initial loss overflows"):
        flow(x, y=y, x_test=x[:1])
