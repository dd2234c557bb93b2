"""What holds for all architectures: they are values, and they check what is to be trained."""

import copy
import dataclasses
import pickle

import pytest
import torch

import shoal.activations
import shoal.architectures
from shoal.activations import Activation, LeakyReLU, ReLU, Softplus, Tanh
from shoal.architectures import (
    DEQ,
    ConvDEQ,
    ConvResNet,
    FullyConnected,
    ImplicitNetwork,
    ResNet,
)


@dataclasses.dataclass(frozen=True)
class Bent(Activation):
    """A user's own activation, with a parameter."""

    slope: float = 0.5

    def function(self, x: torch.Tensor) -> torch.Tensor:
        """Evaluate the function."""
        return torch.where(x > 0, x, self.slope * x)


NAMES = vars(shoal.activations) | vars(shoal.architectures) | {"Bent": Bent}
MAKERS = {
    "deq": lambda: DEQ(Tanh(), 0.2, 0.8),
    "deq_standard": lambda: DEQ(Tanh(), 0.2, 0.8, parametrization="standard"),
    "deq_own_activation": lambda: DEQ(Bent(0.3), recurrent_variance=0.1, input_variance=1 / 3),
    "deq_unguaranteed": lambda: DEQ(ReLU(), 5.0, 0.0),
    "ling2023": lambda: DEQ.ling2023(0.1, in_features=7),
    "implicit": lambda: ImplicitNetwork(0.4),
    "fully_connected": lambda: FullyConnected((Tanh(), LeakyReLU(0.1), Bent())),
    "du2018": lambda: FullyConnected.du2018(Softplus(), 3),
    "resnet": lambda: ResNet(Softplus(), 3, residual_scale=0.1),
    "conv": lambda: ConvResNet(Softplus(), 2, patch_size=5, residual_scale=0.3),
    "conv_deq": lambda: ConvDEQ(Tanh(), 0.2, 0.8),
    "conv_deq_pooled": lambda: ConvDEQ(Tanh(), 0.2, 0.8, kernel_size=5, pooling="average"),
    "conv_circular": lambda: ConvResNet(Softplus(), 2, padding="circular"),
}
GROUPS = {
    "deq": ("readout", "recurrent", "input"),
    "implicit": ("readout", "skip", "recurrent", "input"),
    "fully_connected": ("readout", "layer1", "layer2", "layer3"),
    "du2018": ("layer1", "layer2", "layer3"),
    "resnet": ("layer1", "layer2", "layer3"),
    "conv": ("layer1", "layer2"),
    "conv_deq": ("readout", "recurrent", "input"),
}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@every
def test_equal_if_made_alike(make):
    assert make() == make()
    assert hash(make()) == hash(make())


def test_different_if_made_differently():
    assert len({make() for make in MAKERS.values()}) == len(MAKERS)


@every
def test_copies_are_equal(make):
    value = make()
    copies = [copy.copy(value), copy.deepcopy(value), dataclasses.replace(value)]
    copies += [pickle.loads(pickle.dumps(value, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)]
    assert all(c == value and hash(c) == hash(value) and type(c) is type(value) for c in copies)


@every
def test_repr_rebuilds(make):
    assert eval(repr(make()), NAMES) == make()


@every
def test_frozen(make):
    value = make()
    for name in [f.name for f in dataclasses.fields(value)] + ["anything"]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 1)


def test_replace_checks_again():
    with pytest.raises(ValueError, match="input_variance must be >= 0, got -1"):
        dataclasses.replace(DEQ(Tanh(), 0.2, 0.8), input_variance=-1.0)


@pytest.mark.parametrize(("name", "groups"), GROUPS.items(), ids=GROUPS.keys())
def test_parameter_groups(name, groups):
    value = MAKERS[name]()
    assert value.parameter_groups == groups
    assert value.check_trainable() == value.check_trainable(None) == frozenset(groups)


@pytest.mark.parametrize(
    ("trainable", "error", "message"),
    [
        ({"hidden"}, ValueError, "chosen from 'readout', 'recurrent', 'input', got 'hidden'"),
        (["readout", 3], ValueError, "chosen from 'readout', 'recurrent', 'input', got 3"),
        ([["input"]], ValueError, "chosen from 'readout', 'recurrent', 'input', got \\['input'\\]"),
        (set(), ValueError, "at least one of 'readout', 'recurrent', 'input', got none"),
        ("readout", TypeError, "trainable must be a set of group names, got 'readout'"),
        (7, TypeError, "trainable must be a set of group names, got 7"),
    ],
)
def test_bad_trainable(trainable, error, message):
    with pytest.raises(error, match=message):
        DEQ(Tanh(), 0.2, 0.8).check_trainable(trainable)


def test_a_fixed_readout_is_not_trainable():
    with pytest.raises(ValueError, match="chosen from 'layer1', 'layer2', got 'readout'"):
        ResNet(Softplus(), 2).check_trainable({"readout"})
