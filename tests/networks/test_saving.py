"""Saved networks come back as they were, and damaged or foreign files do not."""

import dataclasses
import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from shoal import (
    DEQ,
    Anderson,
    ConvDEQ,
    ConvResNet,
    FullyConnected,
    ImplicitNetwork,
    ResNet,
    build,
    load,
    save,
)
from shoal.activations import Activation, Affine, Hermite, LeakyReLU, ReLU, Softplus, Tanh
from shoal.core.files import checksum

ARCHITECTURES = [
    DEQ(Affine(Tanh(), 0.9, -0.1), 0.2, 0.8),
    DEQ.ling2023(0.1, 3),
    DEQ(Hermite((0.1, 0.2), 1.5), 0.1, 0.2),
    ImplicitNetwork(gamma=0.3),
    FullyConnected((ReLU(), LeakyReLU(0.2))),
    FullyConnected.du2018(Softplus(), depth=2),
    ResNet(Softplus(), depth=2, residual_scale=0.3),
    ConvResNet(Softplus(), depth=2, padding="circular"),
    DEQ((Tanh(), Softplus()), 0.3, 0.8, hidden_variances=(0.5,), bias_variance=0.4),
    FullyConnected((Tanh(), ReLU()), bias_variance=0.4, norm_gated=True),
    ImplicitNetwork(0.3, bias_variance=0.3),
    ConvDEQ(Tanh(), 0.2, 0.8, bias_variance=0.3),
]


@dataclasses.dataclass(frozen=True)
class Bent(Activation):
    strength: float = 0.5

    def function(self, x):
        return self.strength * torch.atan(x)


def network(architecture, **options):
    pixels = {"pixel_axes": 1} if isinstance(architecture, ConvResNet) else {}
    pixels |= {"pixels": (5,)} if isinstance(architecture, ConvDEQ) else {}
    options = {"dtype": torch.float64, **pixels, **options}
    return build(architecture, in_features=3, width=8, out_features=2, **options)


def inputs(architecture):
    shape = (4, 3, 5) if isinstance(architecture, ConvResNet | ConvDEQ) else (4, 3)
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=repr)
@pytest.mark.parametrize("trainable", [None, "all"])
def test_round_trip(tmp_path, architecture, trainable):
    net = network(architecture, weights="uniform", readout_scale=0.5, trainable=trainable)
    save(net, tmp_path / "net.safetensors")
    again = load(tmp_path / "net.safetensors")
    assert again.spec == net.spec
    assert type(again) is type(net)
    x = inputs(architecture)
    assert torch.equal(again(x), net(x))
    assert {n: p.requires_grad for n, p in again.named_parameters()} == {
        n: p.requires_grad for n, p in net.named_parameters()
    }
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]


def test_options_are_given_when_loading(tmp_path):
    path = tmp_path / "net"
    save(network(DEQ(Tanh(), 0.2, 0.8), dtype=torch.float32), path)
    net = load(path, solver=Anderson(), on_failure="warn", warm_start=True)
    assert net.equilibrium.options.solver == Anderson()
    assert net.equilibrium.options.on_failure == "warn"
    assert net.equilibrium.warm_start
    assert net.recurrent.dtype == torch.float32
    with pytest.raises(ValueError, match="on_failure must be one of"):
        load(path, on_failure="no")


def test_an_activation_of_ones_own(tmp_path):
    net = network(DEQ(Bent(0.7), 0.2, 0.8))
    save(net, tmp_path / "net")
    with pytest.raises(ValueError, match=r"unknown class .*Bent"):
        load(tmp_path / "net")
    assert load(tmp_path / "net", activations=[Bent]).architecture == net.architecture


def saved(tmp_path):
    path = tmp_path / "net"
    save(network(DEQ(Tanh(), 0.2, 0.8)), path)
    return path


def rewrite(path, change=None, *, honest=True, **metadata):
    """Write the file anew with other tensors or another description, and an honest checksum."""
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    tensors, described = load_file(path), {**header["__metadata__"], **metadata}
    if change is not None:
        change(tensors)
    if honest:
        described["sha256"] = checksum(described, tensors)
    save_file(tensors, path, metadata=described)


def test_flipped_bits_are_found(tmp_path):
    path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged: its checksum"):
        load(path)


def test_a_loaded_network_does_not_depend_on_the_file(tmp_path):
    path = saved(tmp_path)
    net = load(path)
    before = net.recurrent.detach().clone()
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(net.recurrent, before)


@pytest.mark.parametrize("size", [0, 20, -1])
def test_truncated_files(tmp_path, size):
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        load(path)


def test_foreign_files(tmp_path):
    path = tmp_path / "foreign"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        load(path)
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(ValueError, match=r"not written by shoal\.save"):
        load(path)
    with pytest.raises(FileNotFoundError, match="path must be a file"):
        load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="path must be a file"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": "shoal network 99"}, "not written by"),
        ({"architecture": "{"}, "cannot be read"),
        ({"architecture": '{"class": "os.system", "command": "true"}'}, "unknown class"),
        ({"architecture": '{"class": "Tanh"}'}, "does not describe an architecture"),
        ({"architecture": '{"class": "DEQ", "activation": 3}'}, "cannot be read"),
        ({"network": "[]"}, "cannot be read"),
        ({"network": '{"width": 3}'}, "cannot be read"),
        ({"trainable": '["everything"]'}, "trainable must be chosen"),
    ],
)
def test_wrong_descriptions(tmp_path, metadata, message):
    path = saved(tmp_path)
    rewrite(path, **metadata)
    with pytest.raises(ValueError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("change", "metadata"),
    [
        (None, {"requires_grad": "[]"}),
        (None, {"more": "of it"}),
        (lambda t: t.update(extra=torch.ones(2)), {}),
        (lambda t: t.update(input=-t["input"]), {}),
    ],
)
def test_changed_files_are_damaged(tmp_path, change, metadata):
    path = saved(tmp_path)
    rewrite(path, change, honest=False, **metadata)
    with pytest.raises(ValueError, match="checksum"):
        load(path)


@pytest.mark.parametrize(
    "change", [lambda t: t.pop("input"), lambda t: t.update(input=torch.ones(8, 4).double())]
)
def test_wrong_tensors(tmp_path, change):
    path = saved(tmp_path)
    rewrite(path, change)
    with pytest.raises(ValueError, match="holds tensors of shapes"):
        load(path)


@pytest.mark.parametrize("trainable", [None, "all"])
@pytest.mark.parametrize("frozen", [["recurrent"], ["recurrent", "input", "readout"]])
def test_frozen_weights_stay_frozen(tmp_path, trainable, frozen):
    net = network(ARCHITECTURES[0], trainable=trainable)
    for name in frozen:
        net.get_parameter(name).requires_grad_(False)
    save(net, tmp_path / "net")
    other = load(tmp_path / "net")
    assert other.spec == net.spec
    assert {name: p.requires_grad for name, p in other.groups.items()} == {
        name: name not in frozen for name in net.groups
    }


def test_only_networks_are_saved(tmp_path):
    with pytest.raises(TypeError, match=r"must be a network made by shoal\.build, got Linear$"):
        save(torch.nn.Linear(2, 2), tmp_path / "net")
