"""Piecewise polynomials against NumPy, finite differences and autograd's own checks."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from shoal import FullyConnected, PiecewisePolynomial, build, gaussian, load, save

HAT = PiecewisePolynomial((-1.0, 0.0, 2.0), ((0.5, 0.5), (0.5, -0.5)))  # a roof, then on downwards
CUBIC = PiecewisePolynomial((-2.0, 1.0), ((0.3, -1.0, 0.25, 2.0),), corners=(-2.0, 1.0))


def exact(x):
    """The cubic, and its tangents beyond the knots, by NumPy."""
    p = np.polynomial.Polynomial((0.3, -1.0, 0.25, 2.0))

    def inside(x):
        return p((x + 0.5) / 1.5)

    slope = p.deriv()(np.array([-1.0, 1.0])) / 1.5
    left, right = inside(-2.0) + slope[0] * (x + 2), inside(1.0) + slope[1] * (x - 1)
    return np.where(x < -2, left, np.where(x > 1, right, inside(x)))


def test_values_and_tangents():
    x = torch.linspace(-4, 4, 1001, dtype=torch.float64)
    torch.testing.assert_close(CUBIC(x), torch.from_numpy(exact(x.numpy())), rtol=1e-14, atol=1e-14)
    assert HAT(torch.tensor([-2.0, -1.0, 0.0, 1.0, 4.0])).tolist() == [-1.0, 0.0, 1.0, 0.5, -1.0]


def test_single_precision_and_shapes():
    x = torch.linspace(-4, 4, 60).view(3, 4, 5)
    value = CUBIC(x)
    assert value.dtype == torch.float32
    assert value.shape == x.shape
    torch.testing.assert_close(value.double(), CUBIC(x.double()), rtol=1e-5, atol=1e-5)


def test_derivatives():
    x = torch.tensor([-3.0, -1.5, 0.2, 0.9, 2.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(CUBIC, x)
    assert gradgradcheck(CUBIC, x)
    h = 1e-4
    with torch.no_grad():
        quotient = (CUBIC(x + h) - 2 * CUBIC(x) + CUBIC(x - h)) / h**2
        torch.testing.assert_close(CUBIC.derivative(x, 2), quotient, rtol=1e-6, atol=1e-6)
        assert CUBIC.derivative(x, 3).tolist() == [0.0, *[12 / 1.5**3] * 3, 0.0]
        assert not CUBIC.derivative(x, 4).any()


def test_gradients_under_vmap():
    x = torch.linspace(-3, 3, 7, dtype=torch.float64)
    slopes = torch.func.vmap(torch.func.grad(lambda t: CUBIC.function(t)))(x)
    torch.testing.assert_close(slopes, CUBIC.derivative(x))


def test_the_hat_is_piecewise_linear():
    assert [k.location for k in HAT.kinks] == [0.0]
    assert HAT.lipschitz == pytest.approx(1.0)
    m = gaussian.moments(HAT, 1.0)
    # 1 + x for x < 0, 1 - x/2 for x > 0
    assert float(m.mean) == pytest.approx(1 - 1.5 / np.sqrt(2 * np.pi), abs=1e-14)
    assert float(m.first) == pytest.approx(0.25, abs=1e-14)


def test_it_is_a_value(tmp_path):
    assert PiecewisePolynomial(HAT.knots, HAT.pieces) == HAT
    assert hash(copy.deepcopy(HAT)) == hash(pickle.loads(pickle.dumps(HAT)))
    assert len(repr(HAT)) < 120
    net = build(FullyConnected((CUBIC,)), in_features=2, width=8)
    save(net, tmp_path / "net")
    assert load(tmp_path / "net").architecture == net.architecture


@pytest.mark.parametrize(
    ("knots", "pieces", "error", "text"),
    [
        ((0.0,), (), ValueError, "knots"),
        ((1.0, 0.0), ((1.0,),), ValueError, "knots"),
        ((0.0, 1.0), ((1.0,), (2.0,)), ValueError, "one fewer"),
        ((0.0, 1.0, 2.0), ((1.0,), (2.0, 3.0)), ValueError, "equally many"),
        ((0.0, float("nan")), ((1.0,),), ValueError, "knots"),
        ((0.0, 1.0), 3.0, TypeError, "pieces"),
        ("ab", ((1.0,),), TypeError, "knots"),
    ],
)
def test_bad_arguments(knots, pieces, error, text):
    with pytest.raises(error, match=text):
        PiecewisePolynomial(knots, pieces)
