"""The fields of architectures are checked, and what they say of guarantees is true."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.activations import Activation, Affine, Hermite, ReLU, Softplus, Tanh
from shoal.architectures import (
    DEQ,
    ConvDEQ,
    ConvNet,
    ConvResNet,
    FullyConnected,
    ImplicitNetwork,
    ResNet,
)


class Steep(Activation):
    """A user's own activation that only states its function and Lipschitz constant."""

    lipschitz = 2.0

    def function(self, x: torch.Tensor) -> torch.Tensor:
        """Evaluate the function."""
        return 2 * torch.sin(x)


BAD_SCALES = [
    (-0.1, ValueError, "must be >= 0, got -0.1"),
    (math.nan, ValueError, "must be finite, got nan"),
    (math.inf, ValueError, "must be finite, got inf"),
    ("0.2", TypeError, "must be a real number, got '0.2'"),
    (None, TypeError, "must be a real number, got None"),
    (True, TypeError, "must be a real number, got True"),
    (1j, TypeError, "must be a real number, got 1j"),
]
BAD_ACTIVATION = [(v, TypeError, "must be an Activation, .* got") for v in (Tanh, torch.tanh, None)]
BAD_ACTIVATIONS = [
    ((), ValueError, "must have at least one entry, got none"),
    (Tanh(), TypeError, r"must be a sequence of .*, one per layer, got Tanh\(\)"),
    (None, TypeError, "must be a sequence of .*, one per layer, got None"),
    ("relu", TypeError, "must be a sequence of .*, got 'relu'"),
]
BAD_FLAG = [(v, TypeError, f"must be True or False, got {v!r}") for v in (1, None, "yes")]
BAD_DEPTH = [
    (0, ValueError, "must be >= 1, got 0"),
    (10**5 + 1, ValueError, "must be < 100001, got 100001"),
    (2.0, TypeError, "must be an integer, got 2.0"),
    (True, TypeError, "must be an integer, got True"),
]
BAD_PATCH = [
    (0, ValueError, "must be >= 1, got 0"),
    (4, ValueError, "must be odd, got 4"),
    ((3, 3), TypeError, r"must be an integer, got \(3, 3\)"),
]
BAD_PADDING = [("same", ValueError, "must be one of 'zeros', 'circular', got 'same'")]
BAD_POOLING = [("max", ValueError, "must be None or 'average', got 'max'")]
DEQ_FIELDS = {
    "activation": BAD_ACTIVATION,
    "recurrent_variance": BAD_SCALES,
    "input_variance": BAD_SCALES,
    "bias_variance": BAD_SCALES[:1],
}
IMAGE_FIELDS = {"kernel_size": BAD_PATCH, "padding": BAD_PADDING, "pooling": BAD_POOLING}
RESIDUAL_FIELDS = {
    "activation": BAD_ACTIVATION,
    "depth": BAD_DEPTH,
    "residual_scale": BAD_SCALES,
    "bias_variance": BAD_SCALES[:1],
}
CASES: list[tuple[Callable[..., object], dict[str, Any], dict[str, list[Any]]]] = [
    (
        DEQ,
        {"activation": Tanh(), "recurrent_variance": 0.2, "input_variance": 0.8},
        DEQ_FIELDS | {"parametrization": [("mup", ValueError, "must be one of 'ntk', 'standard'")]},
    ),
    (
        DEQ,
        {"activation": [Tanh(), Tanh()], "recurrent_variance": 0.2, "input_variance": 0.8},
        {
            "hidden_variances": [
                (3, TypeError, "must be a sequence of numbers"),
                ((1.0, 2.0), ValueError, "must be one for each activation but the first"),
            ]
        },
    ),
    (
        DEQ.ling2023,
        {"weight_variance": 0.1, "in_features": 3},
        {"weight_variance": BAD_SCALES, "in_features": BAD_DEPTH[:1] + BAD_DEPTH[2:]},
    ),
    (
        ConvDEQ,
        {"activation": Tanh(), "recurrent_variance": 0.2, "input_variance": 0.8},
        DEQ_FIELDS | IMAGE_FIELDS,
    ),
    (ImplicitNetwork, {"gamma": 0.1}, {"gamma": BAD_SCALES, "bias_variance": BAD_SCALES[:1]}),
    (
        FullyConnected,
        {"activations": [Tanh()]},
        {
            "activations": BAD_ACTIVATIONS,
            **dict.fromkeys(("normalized", "fixed_readout", "norm_gated"), BAD_FLAG),
        },
    ),
    (FullyConnected.du2018, {"activation": Tanh(), "depth": 2}, {"depth": BAD_DEPTH}),
    (ConvNet, {"activations": [Tanh()]}, {"activations": BAD_ACTIVATIONS} | IMAGE_FIELDS),
    (ResNet, {"activation": Tanh(), "depth": 2}, RESIDUAL_FIELDS),
    (
        ConvResNet,
        {"activation": Tanh(), "depth": 2},
        RESIDUAL_FIELDS | {"patch_size": BAD_PATCH, "padding": BAD_PADDING},
    ),
]


@pytest.mark.parametrize(
    ("make", "valid", "name", "bad"),
    [
        pytest.param(make, valid, name, bad, id=f"{make.__name__}-{name}-{number}")
        for make, valid, fields in CASES
        for name, values in fields.items()
        for number, bad in enumerate(values)
    ],
)
def test_bad_fields(make, valid, name, bad):
    value, error, message = bad
    with pytest.raises(error, match=f"^{name} {message}"):
        make(**valid | {name: value})


def test_a_tensor_is_told_where_it_belongs():
    with pytest.raises(TypeError, match="pass the tensor to kernel or kernel_function"):
        DEQ(Tanh(), torch.tensor(0.2), 0.8)


def test_any_iterable_of_activations():
    expected = FullyConnected((ReLU(), Steep()))
    assert expected.depth == 2
    assert FullyConnected([ReLU(), Steep()]) == FullyConnected(iter([ReLU(), Steep()])) == expected
    assert ResNet([Tanh(), Tanh()], 2) == ResNet(Tanh(), 2)


def test_papers():
    assert FullyConnected.du2018(Softplus(), depth=2) == FullyConnected(
        (Softplus(), Softplus()), normalized=True, fixed_readout=True
    )
    assert ResNet(Softplus(), 2) == ResNet(Softplus(), 2, residual_scale=1)


@pytest.mark.parametrize("number", [int, np.float64, np.float32, np.int64])
def test_numbers_become_floats(number):
    deq = DEQ(Tanh(), number(1), number(2))
    assert deq == DEQ(Tanh(), 1.0, 2.0)
    assert repr(deq) == repr(DEQ(Tanh(), 1.0, 2.0))
    assert type(ImplicitNetwork(number(1)).gamma) is float


def test_options_are_keyword_only():
    for call in (
        lambda: FullyConnected((Tanh(),), True),
        lambda: ResNet(Tanh(), 2, 0.5),
        lambda: ConvResNet(Tanh(), 2, 3),
    ):
        with pytest.raises(TypeError, match="positional argument"):
            call()


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
