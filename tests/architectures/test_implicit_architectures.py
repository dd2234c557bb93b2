"""The DEQ and the implicit network: their fields and their guarantees."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.activations import Activation, Affine, Hermite, ReLU, Tanh
from shoal.architectures import DEQ, ImplicitNetwork

BAD_NUMBERS = [
    (-0.1, ValueError, "must be >= 0, got -0.1"),
    (math.nan, ValueError, "must be finite, got nan"),
    (math.inf, ValueError, "must be finite, got inf"),
    ("0.2", TypeError, "must be a real number, got '0.2'"),
    (None, TypeError, "must be a real number, got None"),
    (True, TypeError, "must be a real number, got True"),
    (1j, TypeError, "must be a real number, got 1j"),
]
bad_numbers = pytest.mark.parametrize(("value", "error", "message"), BAD_NUMBERS)


class Steep(Activation):
    """A user's own activation that only states its function and Lipschitz constant."""

    lipschitz = 2.0

    def function(self, x: torch.Tensor) -> torch.Tensor:
        """Evaluate the function."""
        return 2 * torch.sin(x)


@bad_numbers
@pytest.mark.parametrize("name", ["recurrent_variance", "input_variance"])
def test_bad_variance(name, value, error, message):
    with pytest.raises(error, match=f"^{name} {message}"):
        DEQ(Tanh(), **({"recurrent_variance": 0.2, "input_variance": 0.8} | {name: value}))


@bad_numbers
def test_bad_weight_variance(value, error, message):
    with pytest.raises(error, match=f"^weight_variance {message}"):
        DEQ.ling2023(value, in_features=3)


@bad_numbers
def test_bad_gamma(value, error, message):
    with pytest.raises(error, match=f"^gamma {message}"):
        ImplicitNetwork(value)


@pytest.mark.parametrize("value", [Tanh, torch.tanh, torch.nn.Linear(1, 1), None])
def test_bad_activation(value):
    with pytest.raises(TypeError, match=r"^activation must be an Activation, .* got"):
        DEQ(value, 0.2, 0.8)


@pytest.mark.parametrize("value", ["mup", None, 1])
def test_bad_parametrization(value):
    with pytest.raises(ValueError, match=r"^parametrization must be one of 'ntk', 'standard', got"):
        DEQ(Tanh(), 0.2, 0.8, parametrization=value)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [(0, ValueError, "must be >= 1, got 0"), (2.0, TypeError, "must be an integer, got 2.0")],
)
def test_bad_in_features(value, error, message):
    with pytest.raises(error, match=f"^in_features {message}"):
        DEQ.ling2023(0.1, value)


@pytest.mark.parametrize("number", [int, np.float64, np.float32, np.int64])
def test_numbers_become_floats(number):
    deq = DEQ(Tanh(), number(1), number(2))
    assert deq == DEQ(Tanh(), 1.0, 2.0)
    assert repr(deq) == repr(DEQ(Tanh(), 1.0, 2.0))
    assert type(ImplicitNetwork(number(1)).gamma) is float


def test_parametrization_is_part_of_the_value():
    assert DEQ(Tanh(), 0.2, 0.8).parametrization == "ntk"
    assert DEQ(Tanh(), 0.2, 0.8) != DEQ(Tanh(), 0.2, 0.8, parametrization="standard")


@given(st.floats(0, 10), st.integers(1, 10**6))
def test_ling2023(weight_variance, in_features):
    deq = DEQ.ling2023(weight_variance=weight_variance, in_features=in_features)
    expected = (2 * weight_variance, 2 / in_features)
    assert deq == DEQ(ReLU(), *expected, parametrization="standard")
    assert deq.contraction_guaranteed == (weight_variance < 1 / 8)  # Ling 2023, Assumption 1


@pytest.mark.parametrize(
    ("variance", "kernel", "contraction"),
    [
        (0.0, True, True),
        (math.nextafter(0.25, 0), True, True),
        (0.25, True, False),
        (math.nextafter(1, 0), True, False),
        (1.0, False, False),
        (5.0, False, False),
        (1e308, False, False),
    ],
)
def test_guarantees(variance, kernel, contraction):
    deq = DEQ(ReLU(), variance, 0.8)
    assert (deq.kernel_guaranteed, deq.contraction_guaranteed) == (kernel, contraction)
    # scaling the activation by 2 divides the admissible variance by 4, also for a user's own
    for activation in (Affine(ReLU(), scale=2.0), Steep()):
        deq = DEQ(activation, variance / 4, 0.8)
        assert (deq.kernel_guaranteed, deq.contraction_guaranteed) == (kernel, contraction)


@given(st.floats(0, 4))
def test_implicit_network_guarantees(gamma):
    network = ImplicitNetwork(gamma)
    assert network.kernel_guaranteed == (gamma < 1)
    assert network.contraction_guaranteed == (gamma < 0.5)


def test_no_guarantee_without_a_lipschitz_constant():
    square = Hermite((0.0, 0.0, 1.0))
    assert not DEQ(square, 1e-300, 0.8).kernel_guaranteed
    assert DEQ(square, 0.0, 0.8).contraction_guaranteed


def test_an_own_lipschitz_constant_is_found():
    class Half(Activation):
        def function(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x / 2)

    assert DEQ(Half(), 0.9, 0.8).contraction_guaranteed
    assert not DEQ(Half(), 1.1, 0.8).contraction_guaranteed


def test_the_contraction_guarantee_is_about_wide_networks():
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(400, 400, generator=generator, dtype=torch.float64)
    norm = torch.linalg.matrix_norm(weights, 2).item() / 400**0.5
    assert DEQ(Tanh(), 0.24, 1.0).contraction_guaranteed
    assert 0.24 * norm**2 < 1 < 0.27 * norm**2
    assert not DEQ(Tanh(), 0.27, 1.0).contraction_guaranteed
