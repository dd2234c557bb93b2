"""Values, slopes and constants of activations, against mpmath."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch

import shoal
from shoal.certificates.enclosures import evaluate, smoothness

ELU = shoal.activations.ELU(-0.7)


def _sigmoid(t: Any) -> Any:
    return 1 / (1 + mpmath.exp(-t))


FUNCTIONS: dict[shoal.Activation, Callable[[Any], Any]] = {
    shoal.activations.Tanh(): mpmath.tanh,
    shoal.activations.Sigmoid(): _sigmoid,
    shoal.activations.Softplus(): lambda t: mpmath.log1p(mpmath.exp(t)),
    shoal.activations.Swish(): lambda t: t * _sigmoid(t),
    ELU: lambda t: t if t > 0 else ELU.alpha * mpmath.expm1(t),
    shoal.activations.Affine(shoal.activations.Tanh(), -1.7, 0.3): lambda t: (
        mpmath.mpf(-1.7) * mpmath.tanh(t) + mpmath.mpf(0.3)
    ),
}
SLOPES: dict[shoal.Activation, Callable[[Any], Any]] = {
    shoal.activations.Tanh(): lambda t: 1 / mpmath.cosh(t) ** 2,
    shoal.activations.Sigmoid(): lambda t: 1 / (2 + 2 * mpmath.cosh(t)),
    shoal.activations.Softplus(): _sigmoid,
    shoal.activations.Swish(): lambda t: _sigmoid(t) + t / (2 + 2 * mpmath.cosh(t)),
    ELU: lambda t: mpmath.mpf(1) if t > 0 else ELU.alpha * mpmath.exp(t),
    shoal.activations.Affine(shoal.activations.Tanh(), -1.7, 0.3): lambda t: (
        mpmath.mpf(-1.7) / mpmath.cosh(t) ** 2
    ),
}


@pytest.mark.parametrize("phi", FUNCTIONS, ids=lambda phi: type(phi).__name__)
def test_values_and_slopes_are_within_their_bounds(phi: shoal.Activation) -> None:
    """Far out too."""
    points = torch.linspace(-5, 5, 301, dtype=torch.float64)
    far = [0.0, -0.0, 1e-300, -1e-9, 31.9, -32.1, 63.9, 64.1, -64.1, 700.0, -1e5]
    points = torch.cat([points, torch.tensor(far, dtype=torch.float64)])
    found = evaluate(phi, points)
    assert found.proved
    with mpmath.workdps(60):
        for index, point in enumerate(points.tolist()):
            for function, value, error in zip(
                (FUNCTIONS[phi], SLOPES[phi]), found[:2], found[2:4], strict=True
            ):
                true = function(mpmath.mpf(point))
                assert abs(true - float(value[index])) <= float(error[index])
                assert float(error[index]) < 1e-11 * (2 + abs(point))


def test_other_activations_are_not_proved() -> None:
    class Mine(shoal.activations.Activation):
        def function(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x) + 1e-3

    x = torch.linspace(-3, 3, 7, dtype=torch.float64)
    assert not evaluate(shoal.activations.GELU(), x).proved
    assert not evaluate(shoal.activations.Affine(shoal.activations.Erf(), scale=2.0), x).proved
    assert not evaluate(Mine(), x).proved
    assert not evaluate(shoal.activations.Affine(Mine()), x).proved
    assert torch.equal(evaluate(Mine(), x).values, Mine()(x))
    assert evaluate(shoal.activations.Identity(), x).proved
    assert evaluate(
        shoal.activations.Affine(shoal.activations.ReLU(), scale=-2.0, shift=1.0), x
    ).proved


@pytest.mark.parametrize(
    "phi",
    [
        shoal.activations.Tanh(),
        shoal.activations.Sigmoid(),
        shoal.activations.Softplus(),
        shoal.activations.Erf(),
        shoal.activations.GELU(),
        shoal.activations.Swish(),
        shoal.activations.Sine(),
        shoal.activations.Cosine(),
        shoal.activations.ELU(),
        shoal.activations.ELU(-2.5),
        shoal.activations.Affine(shoal.activations.Tanh(), scale=-2.0, shift=1.0),
    ],
    ids=repr,
)
def test_derivatives_stay_below_their_suprema(phi: shoal.Activation) -> None:
    x = torch.linspace(-12, 12, 200_000, dtype=torch.float64)  # not zero
    constants = smoothness(phi)
    for order, bound in ((1, constants.lipschitz), (2, constants.curvature)):
        largest = float(phi.derivative(x, order).abs().max())
        assert largest <= bound * (1 + 1e-12)
        assert bound <= largest * (1 + 1e-4)
    assert constants.jump == pytest.approx(3.5 if phi == shoal.activations.ELU(-2.5) else 0.0)


def test_constants_of_proofs_are_rounded_up() -> None:
    with mpmath.workdps(40):
        assert smoothness(shoal.activations.Tanh()).curvature >= 4 / (3 * mpmath.sqrt(3))
        assert smoothness(shoal.activations.Sigmoid()).curvature >= 1 / (6 * mpmath.sqrt(3))
        peak = mpmath.findroot(lambda t: t * mpmath.tanh(t / 2) - 2, 2.4)
        largest = SLOPES[shoal.activations.Swish()](peak)
        assert largest <= smoothness(shoal.activations.Swish()).lipschitz <= largest * (1 + 1e-6)
    twice = shoal.activations.Affine(
        shoal.activations.Affine(shoal.activations.LeakyReLU(3.3), 0.7), -0.3
    )
    found = smoothness(twice)
    scale = Fraction(0.7) * Fraction(0.3)
    assert Fraction(found.lipschitz) >= scale * Fraction(3.3)
    assert Fraction(found.jump) >= scale * (Fraction(3.3) - 1)
    assert found.lipschitz == pytest.approx(0.7 * 0.3 * 3.3, rel=1e-14)
    assert smoothness(shoal.activations.Affine(shoal.activations.Tanh(), 0.5)).lipschitz == 0.5
    assert smoothness(shoal.activations.Affine(shoal.activations.GELU(), 0.0)).lipschitz == 0.0
    assert math.isinf(
        smoothness(shoal.activations.Affine(shoal.activations.Hermite((0.0, 0.0, 1.0)))).lipschitz
    )


@pytest.mark.parametrize("slope", [0.01, 1 - 1e-12, 1 + 2.0**-45, -2.0])
def test_no_jump_is_too_small_to_count(slope: float) -> None:
    jump = Fraction(smoothness(shoal.activations.LeakyReLU(slope)).jump)
    assert abs(1 - Fraction(slope)) <= jump <= 2 * abs(1 - Fraction(slope))
