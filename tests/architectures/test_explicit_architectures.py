"""The fully connected and the residual networks: their fields."""

import math

import pytest
import torch

from shoal.activations import Activation, ReLU, Softplus, Tanh
from shoal.architectures import ConvResNet, FullyConnected, ResNet

makers = pytest.mark.parametrize("make", [FullyConnected.du2018, ResNet, ConvResNet])
residual = pytest.mark.parametrize("make", [ResNet, ConvResNet])


class Own(Activation):
    """A user's own activation."""

    def function(self, x: torch.Tensor) -> torch.Tensor:
        """Evaluate the function."""
        return torch.atan(x)


def test_any_iterable_of_activations():
    expected = FullyConnected((ReLU(), Own()))
    assert expected.depth == 2
    assert FullyConnected([ReLU(), Own()]) == expected
    assert FullyConnected(iter([ReLU(), Own()])) == expected
    assert hash(FullyConnected([ReLU(), Own()])) == hash(expected)
    assert not expected.normalized
    assert not expected.fixed_readout


@pytest.mark.parametrize(
    ("activations", "error", "message"),
    [
        ((), ValueError, "activations must have at least one entry, got none"),
        (Tanh(), TypeError, r"activations must be a sequence of .*, one per layer, got Tanh\(\)"),
        (None, TypeError, "activations must be a sequence of .*, one per layer, got None"),
        ((Tanh(), Tanh), TypeError, r"activations\[1\] must be an Activation, .* got <class"),
        ("relu", TypeError, "activations must be a sequence of .*, got 'relu'"),
    ],
)
def test_bad_activations(activations, error, message):
    with pytest.raises(error, match=f"^{message}"):
        FullyConnected(activations)


@pytest.mark.parametrize("name", ["normalized", "fixed_readout"])
@pytest.mark.parametrize("value", [1, None, "yes"])
def test_bad_flag(name, value):
    with pytest.raises(TypeError, match=f"^{name} must be True or False, got {value!r}"):
        FullyConnected((Tanh(),), **{name: value})


def test_du2018():
    assert FullyConnected.du2018(Softplus(), depth=2) == FullyConnected(
        (Softplus(), Softplus()), normalized=True, fixed_readout=True
    )


@makers
def test_own_activation(make):
    assert make(Own(), 2) == make(Own(), depth=2)
    assert make(Own(), 2) != make(Softplus(), 2)
    assert make(Own(), 1).parameter_groups == ("layer1",)


@makers
@pytest.mark.parametrize(
    ("depth", "error", "message"),
    [
        (0, ValueError, "must be >= 1, got 0"),
        (2**64, ValueError, "must be < 100001, got 18446744073709551616"),
        (10**5 + 1, ValueError, "must be < 100001, got 100001"),
        (2.0, TypeError, "must be an integer, got 2.0"),
        (True, TypeError, "must be an integer, got True"),
    ],
)
def test_bad_depth(make, depth, error, message):
    with pytest.raises(error, match=f"^depth {message}"):
        make(Softplus(), depth)


@makers
def test_bad_activation(make):
    with pytest.raises(TypeError, match=r"^activation must be an Activation, .* got <class"):
        make(Softplus, 2)


@residual
def test_residual_scale(make):
    assert make(Softplus(), 2) == make(Softplus(), 2, residual_scale=1)
    assert type(make(Softplus(), 2, residual_scale=0).residual_scale) is float


@residual
@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        (-0.5, ValueError, "must be >= 0, got -0.5"),
        (math.nan, ValueError, "must be finite, got nan"),
        (math.inf, ValueError, "must be finite, got inf"),
        ("1", TypeError, "must be a real number, got '1'"),
    ],
)
def test_bad_residual_scale(make, scale, error, message):
    with pytest.raises(error, match=f"^residual_scale {message}"):
        make(Softplus(), 2, residual_scale=scale)


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (0, ValueError, "must be >= 1, got 0"),
        (4, ValueError, "must be odd, got 4"),
        ((3, 3), TypeError, r"must be an integer, got \(3, 3\)"),
    ],
)
def test_bad_patch_size(size, error, message):
    with pytest.raises(error, match=f"^patch_size {message}"):
        ConvResNet(Softplus(), 2, patch_size=size)


def test_bad_padding():
    with pytest.raises(
        ValueError, match=r"^padding must be one of 'zeros', 'circular', got 'same'"
    ):
        ConvResNet(Softplus(), 2, padding="same")


def test_options_are_keyword_only():
    for call in (
        lambda: FullyConnected((Tanh(),), True),
        lambda: ResNet(Tanh(), 2, 0.5),
        lambda: ConvResNet(Tanh(), 2, 3),
    ):
        with pytest.raises(TypeError, match="positional argument"):
            call()
