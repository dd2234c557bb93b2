"""Activations that a user defines by a function alone."""

import math
import re
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from reference import AbsCubed, Mish, ShiftedReLU, Step

import shoal
from shoal import AccuracyError
from shoal.activations import Activation
from shoal.gaussian import dual, moments


def own(function, *, derivative=None, kinks=None):
    """A subclass of Activation with the given parts, as a user would write it."""
    parts = {"function": lambda _, x: function(x)}
    if derivative is not None:
        parts["first_derivative"] = lambda _, x: derivative(x)
    if kinks is not None:
        parts["kink_locations"] = property(lambda _: kinks)
    return type("Own", (Activation,), parts)()


@pytest.mark.parametrize(
    ("phi", "kinks"),
    [
        (ShiftedReLU(), {0.7: (0, 1, 0)}),
        (Step(), {0.3: (1, 0, 0)}),
        (AbsCubed(), {}),  # its third derivative jumps
        (Mish(), {}),
        (own(F.relu6), {0.0: (0, 1, 0), 6.0: (0, -1, 0)}),
        (own(F.hardswish), {-3.0: (0, -0.5, 1 / 3), 3.0: (0, -0.5, -1 / 3)}),
        (own(F.softshrink), {-0.5: (0, -1, 0), 0.5: (0, 1, 0)}),
        (own(F.hardshrink), {-0.5: (0.5, -1, 0), 0.5: (0.5, 1, 0)}),
        (own(lambda x: (x - 0.123456789).abs()), {0.123456789: (0, 2, 0)}),
        (own(lambda x: x.clamp(-300.0, 200.0)), {-300.0: (0, 1, 0), 200.0: (0, -1, 0)}),
        (own(lambda x: F.relu(x - 1e-3) - F.relu(x - 2e-3)), {1e-3: (0, 1, 0), 2e-3: (0, -1, 0)}),
        (own(lambda x: torch.where(x > 2, x * x, 4 * x - 4)), {2.0: (0, 0, 2)}),
        (own(lambda x: x.clamp(1.0, 1.7)), {1.0: (0, 1, 0), 1.7: (0, -1, 0)}),
        (own(lambda x: x**4 + 1e-7 * F.relu(x - 0.3)), {0.3: (0, 1e-7, 0)}),
        (own(lambda x: 1e-50 * F.relu(x - 0.5)), {0.5: (0, 1e-50, 0)}),
        (own(F.silu), {}),
        (own(lambda x: x + torch.sin(x) ** 2), {}),
    ],
)
def test_kinks_are_found(phi, kinks):
    found = {kink.location: kink.jumps for kink in phi.kinks}
    assert list(found) == pytest.approx(list(kinks), rel=1e-15, abs=1e-15)
    for jumps, expected in zip(found.values(), kinks.values(), strict=True):
        assert jumps == pytest.approx(expected, abs=1e-12)


def test_five_lines_are_enough():
    @dataclass(frozen=True)
    class Bent(Activation):
        at: float = 0.0

        def function(self, x):
            return torch.relu(x - self.at)

    assert Bent(0.7) == Bent(0.7) != Bent(0.8)
    assert repr(Bent(0.7)).endswith("Bent(at=0.7)")
    one = torch.tensor(1.0, dtype=torch.float64)
    # E[(ξ-t)₊] = p(t) - t(1 - Φ(t))
    t = torch.tensor(0.7, dtype=torch.float64)
    expected = torch.exp(-t * t / 2) / (2 * torch.pi) ** 0.5 - t * torch.special.ndtr(-t)
    torch.testing.assert_close(moments(Bent(0.7), one).mean, expected, rtol=1e-14, atol=0.0)


@pytest.mark.parametrize(
    ("function", "constant"),
    [
        (F.mish, 1.0884981612517279),  # the maximum of its derivative, at x = 1.4906
        (lambda x: x + torch.sin(x) ** 2, 2.0),
        (F.hardswish, 1.5),
        (lambda x: torch.sqrt(1 + x * x), 1.0),
        (lambda x: F.relu(x - 600), 1.0),
        (lambda x: x**2, float("inf")),
        (lambda x: (x > 0).to(x.dtype), float("inf")),
    ],
)
def test_lipschitz_constants_are_found(function, constant):
    assert own(function).lipschitz == pytest.approx(constant, rel=1e-12)


def test_a_wrong_derivative_is_refused():
    wrong = own(torch.tanh, derivative=lambda x: 1 - torch.tanh(x))
    with pytest.raises(ValueError, match=r"the derivative of .*Own\(\) is .* difference quotient"):
        dual(wrong, 1.0, 1.0, 0.5)


def test_a_function_that_autograd_cannot_follow_is_refused():
    opaque = own(lambda x: torch.from_numpy(x.detach().numpy() ** 2))
    with pytest.raises(ValueError, match="write function in differentiable torch operations"):
        moments(opaque, 1.0)


def test_such_a_function_works_with_its_derivative():
    opaque = own(lambda x: torch.from_numpy(x.detach().numpy() ** 2), derivative=lambda x: 2 * x)
    assert moments(opaque, 2.0).mean == pytest.approx(4.0, rel=1e-14)


def test_missing_kinks_are_refused():
    with pytest.raises(
        ValueError, match=r"kink_locations .* \(0.0,\), but it is not smooth near x = 6"
    ):
        moments(own(F.relu6, kinks=(0.0,)), 1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("location", [0.3, 0.0])
def test_unbounded_derivatives_are_refused(location):
    phi = own(lambda x: (x - location).abs().sqrt())
    with pytest.raises(AccuracyError, match="not piecewise smooth near x = "):
        moments(phi, 1.0)


def test_functions_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="not finite at x = "):
        moments(own(torch.log), 1.0)


@pytest.mark.thorough
def test_wild_oscillations_are_refused():
    with pytest.raises(AccuracyError, match="oscillates or jumps too often"):
        moments(own(lambda x: torch.sin(1e5 * x)), 1.0)


class Bent(Activation):
    """With a parameter, written as plain Python."""

    def __init__(self, at):
        self.at = at

    def function(self, x):
        return torch.relu(x - self.at)


@pytest.mark.thorough
def test_parameters_tell_activations_apart():
    assert Bent(0.7) == Bent(0.7) != Bent(1.9)
    for at in (0.7, 1.9):
        expected = math.exp(-at * at / 2) / math.sqrt(2 * math.pi)
        assert moments(Bent(at), 1.0).second.item() == pytest.approx(expected, rel=1e-14)


def test_tensors_are_no_parameters():
    with pytest.raises(TypeError, match="at of Bent must be a number, got a tensor"):
        moments(Bent(torch.tensor(0.7)), 1.0)


def test_kinks_far_out_count():
    assert moments(Bent(600.0), 300.0).second.item() == pytest.approx(
        math.exp(-2) / (300 * math.sqrt(2 * math.pi)), rel=1e-13
    )
    # E[(τξ-t)₊²] = (τ²+t²)Φ(-z) - τ t p(z), z = t/τ
    z = 3.0
    tail = math.erfc(z / math.sqrt(2)) / 2
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    expected = (200**2 + 600**2) * tail - 200 * 600 * density
    assert dual(Bent(600.0), 4e4, 4e4, 4e4).item() == pytest.approx(expected, rel=1e-11)


def test_a_narrow_peak_is_seen():
    phi = own(lambda x: torch.tanh(x) + torch.exp(-(((x - 0.3) / 0.02) ** 2) / 2))
    expected = 0.02 * math.exp(-0.045 / 1.0004) / math.sqrt(1.0004)
    assert moments(phi, 1.0).mean.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("variance", [1.0, 9.0, 25.0])
def test_fast_growth(variance):
    phi = own(torch.exp)
    assert dual(phi, variance, variance, variance).item() == pytest.approx(
        math.exp(2 * variance), rel=1e-13
    )
    with pytest.raises(AccuracyError, match="grows too fast"):
        moments(phi, 30.0)


@pytest.mark.parametrize("offset", [1e-14, 1e-10])
@pytest.mark.parametrize("place", [0.3, 27.3])
def test_a_kink_declared_a_little_off_is_refused(place, offset):
    phi = own(lambda x: torch.relu(x - place), kinks=(place * (1 + offset),))
    with pytest.raises(ValueError, match=rf"but the kink is at {place}$"):
        moments(phi, 1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("place", [0.3, 27.3, 273.0])
def test_a_place_may_be_declared_where_the_function_is_steep_but_smooth(place):
    # the limits that are compared are taken at a distance that grows with the place
    phi = own(lambda x: torch.sin(10 * x), kinks=(place,))
    assert moments(phi, 0.3).square.item() == pytest.approx(-math.expm1(-18) / 2, rel=1e-12)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.softmax(x, -1), "must be elementwise"),
        (torch.rand_like, "must be elementwise"),
        (
            lambda x: x.sum(),
            r"must return a tensor like its argument, .* got torch.float64 of shape",
        ),
        (lambda x: x.float(), "got torch.float32"),
        (lambda x: x > 0, "got torch.bool"),
        (F.hardsigmoid, "fails on a float64 vector: derivative for .* is not implemented"),
        (lambda x: x.add_(1), "fails on a float64 vector"),
    ],
)
def test_functions_that_are_no_activations(function, message):
    with pytest.raises(ValueError, match=message):
        moments(own(function), 1.0)


def test_a_function_of_single_numbers_is_refused_in_the_words_of_its_author():
    phi = own(lambda x: x if x > 0 else 0 * x)
    with pytest.raises(ValueError, match=rf"function of {re.escape(repr(phi))} fails on a float64"):
        shoal.kernel(shoal.DEQ(phi, 0.2, 0.8), torch.eye(2, dtype=torch.float64))


def test_a_slightly_wrong_derivative_is_refused():
    wrong = own(torch.tanh, derivative=lambda x: (1 - torch.tanh(x) ** 2) * (1 + 1e-4))
    with pytest.raises(ValueError, match="difference quotient"):
        moments(wrong, 1.0)


def test_kink_locations_must_be_numbers():
    with pytest.raises(TypeError, match=r"must be a tuple of numbers, got 0\.5"):
        moments(own(torch.tanh, kinks=0.5), 1.0)
    with pytest.raises(ValueError, match="must be finite, got nan"):
        moments(own(torch.tanh, kinks=(float("nan"),)), 1.0)


def test_derivatives_that_autograd_loses_far_out_are_refused_with_a_remedy():
    phi = own(lambda x: x * torch.tanh(torch.log1p(torch.exp(x))))  # e^x overflows in its third
    square = float(moments(phi, 1.0).square)
    assert square == pytest.approx(float(moments(Mish(), 1.0).square), rel=1e-11)
    with pytest.raises((ValueError, AccuracyError), match=r"softplus\(x\), say"):
        moments(phi, 300.0)


@pytest.mark.thorough
def test_a_derivative_that_is_lost_for_good_is_told_in_the_users_words():
    phi = own(lambda x: torch.log1p(torch.exp(x)) ** 1.5)
    with pytest.raises(AccuracyError, match=r"^Own\(\) is not .* x = 24.*softplus"):
        moments(phi, 300.0)


def test_another_function_in_place_of_a_known_one_is_refused() -> None:
    with pytest.raises(TypeError, match="Doubled must subclass Activation itself"):

        class Doubled(shoal.activations.ReLU):
            def function(self, x):
                return 2 * torch.relu(x) - 1
