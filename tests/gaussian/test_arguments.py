"""Shapes, dtypes, degenerate covariances, and what bad input is told."""

import math

import pytest
import torch

from shoal import AccuracyError
from shoal.activations import ELU, GELU, Cosine, Erf, HardTanh, Hermite, ReLU, Sine, Tanh
from shoal.gaussian import dual, dual_derivative, hermite, moments
from shoal.gaussian.mixed import mixed_dual


def test_shapes_broadcast():
    a = torch.rand(4, 1, dtype=torch.float64) + 1
    b = torch.rand(3, dtype=torch.float64) + 1
    result = dual(Tanh(), a, b, torch.tensor(0.5, dtype=torch.float64))
    assert result.shape == (4, 3)
    torch.testing.assert_close(result[2, 1], dual(Tanh(), a[2, 0], b[1], 0.5), rtol=1e-13, atol=0.0)


def test_scalars_give_a_scalar_in_double_precision():
    result = dual(ReLU(), 1.0, 1.0, 1.0)
    assert result.shape == ()
    assert result.dtype == torch.float64
    assert result.item() == pytest.approx(0.5, rel=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_dtype_of_tensors_is_kept(dtype):
    c = torch.tensor([0.25, 0.5], dtype=dtype)
    result = dual(Tanh(), 1.0, 1.0, c)
    assert result.dtype == dtype
    exact = dual(Tanh(), 1.0, 1.0, c.double())
    assert torch.equal(result, exact.to(dtype))


@pytest.mark.parametrize("phi", [ReLU(), Tanh(), ELU(), HardTanh(), Sine()], ids=repr)
def test_degenerate_variances(phi):
    zero, one = torch.zeros(1).double(), torch.ones(1).double()
    at_zero = float(phi(zero))
    mean = float(moments(phi, 1.0).mean)
    assert dual(phi, zero, one, zero).item() == pytest.approx(at_zero * mean, abs=1e-60)
    assert dual(phi, zero, zero, zero).item() == pytest.approx(at_zero**2, abs=1e-60)


def test_a_vanishing_variance_is_the_limit_at_a_right_angle():
    assert dual_derivative(ReLU(), 0.0, 1.0, 0.0).item() == pytest.approx(0.25, rel=1e-15)
    assert dual_derivative(ELU(0.5), 0.0, 1.0, 0.0).item() == pytest.approx(
        dual_derivative(ELU(0.5), 1e-30, 1.0, 0.0).item(), rel=1e-12
    )


def test_rounding_beyond_the_domain_is_allowed():
    c = torch.tensor(1 + 1e-15, dtype=torch.float64)
    assert dual(ReLU(), 1.0, 1.0, c) == pytest.approx(0.5)
    x = torch.randn(64, 500, generator=torch.Generator().manual_seed(0))
    gram = x @ x.T
    diagonal = (x * x).sum(1)
    assert dual(ReLU(), diagonal[:, None], diagonal, gram).isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1.0, 1.0, torch.tensor(math.nan)), ValueError, "c must be finite"),
        ((math.inf, 1.0, 0.0), ValueError, "a must be finite"),
        ((1.0, -1.0, 0.0), ValueError, "b must be >= 0, got -1"),
        ((1.0, 1.0, 1.001), ValueError, r"c must satisfy \|c\| <= sqrt\(a b\), got a = 1, b = 1"),
        ((1.0, 1.0, 1 + 1e-9), ValueError, "c must satisfy"),
        ((0.0, 1.0, 1e-9), ValueError, "c must satisfy"),
        ((1.0, 1.0, torch.ones(0)), ValueError, "c must not be empty"),
        (
            (torch.ones(2), torch.ones(3), 0.0),
            ValueError,
            r"broadcastable shapes, got \(2,\), \(3,\)",
        ),
        (
            (torch.ones(2, dtype=torch.int64), 1.0, 0.0),
            TypeError,
            "a must be a floating-point tensor",
        ),
        ((1.0, "1", 0.0), TypeError, "b must be a floating-point tensor or a number, got str"),
        ((1.0, 1.0, [0.5]), TypeError, "c must be a floating-point tensor or a number, got list"),
        ((1.0, 1.0, True), TypeError, "c must be"),
        ((torch.ones(1, dtype=torch.complex128), 1.0, 0.0), TypeError, "a must be"),
    ],
)
def test_bad_covariances(arguments, error, message):
    for function in (dual, dual_derivative):
        with pytest.raises(error, match=message):
            function(Tanh(), *arguments)


def test_bad_activations_and_tolerances():
    with pytest.raises(TypeError, match="phi must be an Activation"):
        dual(torch.tanh, 1.0, 1.0, 0.0)
    with pytest.raises(TypeError, match="phi must be an Activation"):
        moments(torch.tanh, 1.0)
    with pytest.raises(TypeError, match="phi must be an Activation"):
        hermite(torch.tanh, 1.0, 3)
    with pytest.raises(AccuracyError, match="below 1e-13"):
        dual(Tanh(), 1.0, 1.0, 0.0, tolerance=1e-16)
    with pytest.raises(ValueError, match="tolerance must be > 0"):
        dual(Tanh(), 1.0, 1.0, 0.0, tolerance=0.0)


def test_bad_scales_and_orders():
    with pytest.raises(ValueError, match="tau must be > 0, got 0"):
        moments(Tanh(), 0.0)
    with pytest.raises(ValueError, match="tau must be >= 0, got -1"):
        hermite(Tanh(), -1.0, 3)
    with pytest.raises(ValueError, match="order must be >= 0"):
        hermite(Tanh(), 1.0, -1)
    for phi in (Tanh(), ReLU()):
        with pytest.raises(ValueError, match="order must be <= 1000000, got 2147483648"):
            hermite(phi, 1.0, 2**31)
    with pytest.raises(TypeError, match="order must be an integer"):
        hermite(Tanh(), 1.0, 2.5)
    with pytest.raises(TypeError, match="tau must be a floating-point tensor"):
        moments(Tanh(), torch.arange(3))


def test_overflow_is_not_returned():
    with pytest.raises(AccuracyError, match="overflow"):
        dual(Hermite((0.0,) * 60 + (1.0,)), 1e12, 1e12, 1e12)


def test_a_scale_of_zero_has_the_value_at_zero():
    assert hermite(ELU(), 0.0, 2).tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-60)
    shifted = hermite(Hermite((0.5, 1.0)), 0.0, 2)
    assert shifted.tolist() == [0.5, 0.0, 0.0]


def test_low_precision_has_no_licence():
    for dtype, beyond in ((torch.bfloat16, 1.1), (torch.float16, 1.01)):
        with pytest.raises(ValueError, match="c must satisfy"):
            dual(Tanh(), 1.0, 1.0, torch.tensor(beyond, dtype=dtype))


def test_whole_numbers_are_numbers():
    assert dual(ReLU(), 1, 1, 1).item() == pytest.approx(0.5, rel=1e-15)


def test_tiny_and_huge_variances_keep_their_correlation():
    for scale in (1e-170, 1e160):
        c = torch.tensor([-1.0, 0.0, 1.0]).double() * scale
        found = dual_derivative(ReLU(), scale, scale, c)
        assert found.tolist() == [0.0, 0.25, 0.5]


def test_variances_beyond_all_panels_are_refused():
    with pytest.raises(AccuracyError, match="cannot be integrated up to"):
        dual(Tanh(), 1e300, 1e300, 0.0)


@pytest.mark.parametrize("phi", [Erf(), GELU()], ids=repr)
def test_closed_forms_at_large_variances(phi):
    """Near full correlation ab - c² must not cancel; the quadrature does not use it."""
    a = torch.tensor([1e2, 1e4], dtype=torch.float64)
    c = a * (1 - 3e-7)
    found, exact = dual_derivative(phi, a, a, c), mixed_dual(phi, 1, 1, a, a, c)
    torch.testing.assert_close(found, exact, rtol=1e-12, atol=0.0)


def test_an_infinite_derivative_is_infinite():
    c = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(dual_derivative(ReLU(), 1.0, 1.0, c), c)
    assert slope == math.inf


@pytest.mark.parametrize("phi", [Sine(), Cosine()], ids=repr)
def test_waves_at_large_variances(phi):
    """E[sin²] and E[cos²] are one half there; and nothing breaks where the formula changes."""
    assert dual(phi, 2e3, 2e3, 2e3).item() == pytest.approx(0.5, rel=1e-12)
    c = torch.tensor([1 - 1e-12, 1.0, 1 + 1e-12], dtype=torch.float64)
    torch.testing.assert_close(
        dual(phi, 2.0, 2.0, c), mixed_dual(phi, 0, 0, 0 * c + 2, 0 * c + 2, c)
    )
