"""The activations as functions: values, derivatives, kinks, Lipschitz constants."""

import copy
import math
import pickle

import pytest
import torch
from reference import BUILT_IN
from torch.autograd import gradcheck

import shoal
from shoal.activations import (
    ELU,
    GELU,
    Affine,
    Cosine,
    Erf,
    HardTanh,
    Hermite,
    Identity,
    LeakyReLU,
    ReLU,
    Sigmoid,
    Sine,
    Softplus,
    Swish,
    Tanh,
)

# Away from every kink, and far out on both sides.
X = torch.tensor([-40.0, -7.3, -2.1, -1.2, -0.4, -1e-3, 1e-3, 0.3, 0.9, 1.7, 6.2, 40.0]).double()

FORMULAS = {
    "ReLU": lambda x: max(x, 0.0),
    "LeakyReLU": lambda x: max(x, 0.1 * x),
    "Tanh": math.tanh,
    "HardTanh": lambda x: min(max(x, -1.0), 1.0),
    "Swish": lambda x: x / (1 + math.exp(-x)),
    "GELU": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "Erf": math.erf,
    "Softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
    "Sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "ELU_1": lambda x: x if x > 0 else math.expm1(x),
    "ELU_0.5": lambda x: x if x > 0 else 0.5 * math.expm1(x),
    "Sine": math.sin,
    "Cosine": math.cos,
    "Identity": lambda x: x,
    "HermiteSeries": lambda x: (
        0.1 + 0.7 * x - 0.3 * (x**2 - 1) / math.sqrt(2) + 0.2 * (x**3 - 3 * x) / math.sqrt(6)
    ),
}


@pytest.mark.parametrize("name", BUILT_IN)
def test_values(name):
    expected = torch.tensor([FORMULAS[name](float(x)) for x in X], dtype=torch.float64)
    # relative to each value: the small tails of Swish, GELU and Softplus count too
    torch.testing.assert_close(BUILT_IN[name](X), expected, rtol=1e-13, atol=0.0)


@pytest.mark.parametrize("name", BUILT_IN)
def test_derivatives_are_those_of_the_function(name):
    phi, x = BUILT_IN[name], X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(phi(x).sum(), x)
    torch.testing.assert_close(phi.derivative(X), slope, rtol=1e-12, atol=1e-15)
    assert gradcheck(phi.function, X[3:10].clone().requires_grad_())
    for order in (1, 2):
        moved = X[3:10].clone().requires_grad_()
        assert gradcheck(lambda t, k=order: phi.derivative(t, k), moved)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes_are_kept(name, dtype):
    x = X.to(dtype)
    assert BUILT_IN[name](x).dtype == dtype
    assert BUILT_IN[name].derivative(x).dtype == dtype


@pytest.mark.parametrize(
    ("phi", "kinks"),
    [
        (ReLU(), {0.0: (0.0, 1.0, 0.0)}),
        (LeakyReLU(-0.5), {0.0: (0.0, 1.5, 0.0)}),
        (HardTanh(2.0), {-2.0: (0.0, 1.0, 0.0), 2.0: (0.0, -1.0, 0.0)}),
        (ELU(), {0.0: (0.0, 0.0, -1.0)}),
        (ELU(0.5), {0.0: (0.0, 0.5, -0.5)}),
        (Affine(HardTanh(), -3.0, 1.0), {-1.0: (0.0, -3.0, 0.0), 1.0: (0.0, 3.0, 0.0)}),
        (LeakyReLU(1.0), {}),
        (Tanh(), {}),
        (Hermite((1.0, 2.0, 3.0)), {}),
    ],
    ids=repr,
)
def test_kinks(phi, kinks):
    assert [kink.location for kink in phi.kinks] == list(kinks)
    for kink, jumps in zip(phi.kinks, kinks.values(), strict=True):
        assert kink.jumps == pytest.approx(jumps, abs=1e-14)


@pytest.mark.parametrize(
    ("phi", "constant"),
    [
        (ReLU(), 1.0),
        (LeakyReLU(-3.0), 3.0),
        (Tanh(), 1.0),
        (HardTanh(0.3), 1.0),
        (Sigmoid(), 0.25),
        (Softplus(), 1.0),
        (Erf(), 2 / math.sqrt(math.pi)),
        (ELU(0.5), 1.0),
        (ELU(2.0), 2.0),
        (Sine(), 1.0),
        (Cosine(), 1.0),
        (Identity(), 1.0),
        (Swish(), 1.099839320128867),  # max of σ(x)(1 + x(1-σ(x))), at x = 2.39935728052
        (GELU(), 1.128904145185155),  # Φ(√2) + √2 p(√2)
        (Hermite((5.0, -2.0), scale=4.0), 0.5),
        (Hermite((0.0, 0.0, 1.0)), math.inf),
        (Affine(Tanh(), -2.0, 9.0), 2.0),
        (Affine(Hermite((0.0, 0.0, 1.0)), 0.0, 1.0), 0.0),
    ],
    ids=repr,
)
def test_lipschitz_constants(phi, constant):
    assert phi.lipschitz == pytest.approx(constant, rel=1e-14)


@pytest.mark.parametrize("phi", [*BUILT_IN.values(), Affine(Tanh(), 2.0, 1.0)], ids=repr)
def test_activations_are_values(phi):
    assert pickle.loads(pickle.dumps(phi)) == phi
    assert copy.deepcopy(phi) == phi
    assert hash(copy.copy(phi)) == hash(phi)
    assert eval(repr(phi), vars(shoal.activations)) == phi
    with pytest.raises(AttributeError):
        phi.slope = 3.0


def test_different_activations_differ():
    assert len(set(BUILT_IN.values())) == len(BUILT_IN)
    assert LeakyReLU(0.1) != LeakyReLU(0.2)
    assert Affine(Tanh()) != Tanh()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: LeakyReLU(math.nan), ValueError, "slope must be finite, got nan"),
        (lambda: LeakyReLU("steep"), TypeError, "slope must be a real number, got 'steep'"),
        (lambda: HardTanh(0.0), ValueError, "bound must be > 0, got 0"),
        (lambda: ELU(math.inf), ValueError, "alpha must be finite"),
        (lambda: Hermite(()), ValueError, "coefficients must not be empty"),
        (lambda: Hermite("123"), TypeError, "coefficients must be a sequence"),
        (lambda: Hermite((1.0, None)), TypeError, r"coefficients\[1\] must be a real number"),
        (lambda: Hermite((1.0,), scale=-1.0), ValueError, "scale must be > 0, got -1"),
        (lambda: Affine(torch.tanh), TypeError, "activation must be an Activation"),
        (lambda: Affine(Tanh(), scale=True), TypeError, "scale must be a real number"),
        (lambda: Tanh()(1.0), TypeError, "x must be a floating-point tensor, got float"),
        (lambda: Tanh()(torch.arange(3)), TypeError, "got dtype torch.int64"),
        (lambda: Tanh().derivative(X, -1), ValueError, "order must be >= 0, got -1"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()
