"""Exported networks are the same functions, without shoal."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file, save_file

import shoal
from shoal.activations import Activation

RELU = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)
TANH = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.2, input_variance=0.8)

# a design of each family, and what it takes
DESIGNS = {
    "hard_tanh": (
        TANH,
        {"match": "ck", "method": shoal.designs.MomentMatching(family="hard_tanh")},
    ),
    "leaky_relu": (
        RELU,
        {"match": "ck", "method": shoal.designs.MomentMatching(family="leaky_relu")},
    ),
    "sphere": (TANH, {"match": "ntk", "method": "sphere"}),
    "norm_gated": (RELU, {"match": "ck", "method": shoal.designs.SphereMatching(norm_gated=True)}),
}


# run without shoal: the outputs and gradients of exported networks
ALONE = """
import importlib, sys
sys.modules["shoal"] = None
folder, *names = sys.argv[1:]
sys.path.insert(0, folder)
import torch
from safetensors.torch import load_file, save_file
for name in names:
    model = importlib.import_module(name).load()
    x = load_file(f"{folder}/inputs.safetensors")["x"].requires_grad_()
    y = model(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    save_file({"y": y.detach(), "gradient": gradient}, f"{folder}/{name}_found.safetensors")
"""


def inputs(dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    return scale * torch.randn(40, 6, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.thorough
def test_designs_run_without_shoal(tmp_path):
    x = inputs(scale=3.0).requires_grad_()  # the tails of the activations too
    wanted = {}
    for name, (deq, options) in DESIGNS.items():
        architecture = shoal.design(deq, input_norm=1.0, **options).architecture
        net = shoal.build(
            architecture, in_features=6, width=50, out_features=2, dtype=torch.float64, seed=3
        )
        shoal.export(net, tmp_path / f"{name}.py")
        y = net(x)
        wanted[name] = y.detach(), *torch.autograd.grad(y.square().sum(), x)
    names = [f"{name}{ending}" for name in DESIGNS for ending in (".py", "_weights.safetensors")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    save_file({"x": x.detach()}, tmp_path / "inputs.safetensors")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-W", "error", "-c", ALONE, str(tmp_path), *DESIGNS]
    subprocess.run(command, check=True, timeout=120, env=environment)
    for name, (y, gradient) in wanted.items():
        found = load_file(tmp_path / f"{name}_found.safetensors")
        assert torch.allclose(found["y"], y, rtol=1e-12, atol=1e-12), name
        assert torch.allclose(found["gradient"], gradient, rtol=1e-11, atol=1e-11), name


@dataclass(frozen=True)
class Own(Activation):
    def function(self, x):
        return torch.atan(x)


def test_what_cannot_be_exported(tmp_path):
    net = shoal.build(shoal.FullyConnected((shoal.activations.Tanh(),)), in_features=2, width=3)
    own = shoal.build(shoal.FullyConnected((Own(),)), in_features=2, width=3)
    with pytest.raises(TypeError, match=r"activations of shoal.*Own"):
        shoal.export(own, tmp_path / "own.py")
    deq = shoal.build(TANH, in_features=2, width=3)
    with pytest.raises(TypeError, match=r"architecture, got one of DEQ: shoal\.design"):
        shoal.export(deq, tmp_path / "deq.py")
    with pytest.raises(TypeError, match=r"got one of DEQ, whose solver .* shoal\.distill"):
        torch.export.export(deq, (torch.ones(2, 2),))
    with pytest.raises(TypeError, match=r"made by shoal\.build, got Linear$"):
        shoal.export(torch.nn.Linear(2, 3), tmp_path / "linear.py")
    with pytest.raises(ValueError, match=r"end in \.py or \.onnx, got .*net\.pt"):
        shoal.export(net, tmp_path / "net.pt")
    with pytest.raises(ValueError, match=r"Python module, got '2-layers\.py'"):
        shoal.export(net, tmp_path / "2-layers.py")
    for name in ("torch", "math"):
        with pytest.raises(ValueError, match=f"a name of its own, got that of '{name}'"):
            shoal.export(net, tmp_path / f"{name}.py")
    with pytest.raises(ValueError, match=r"in a folder that exists, got .*nowhere"):
        shoal.export(net, tmp_path / "nowhere" / "net.py")
    with pytest.raises(ValueError, match=r"Python module, got 'class\.py'"):
        shoal.export(net, tmp_path / "class.py")
    assert list(tmp_path.iterdir()) == []


def test_onnx_says_what_to_install(tmp_path, monkeypatch):
    net = shoal.build(shoal.FullyConnected((shoal.activations.Tanh(),)), in_features=2, width=3)
    monkeypatch.setattr("shoal.networks.programs.exporting.find_spec", lambda _: None)
    with pytest.raises(
        ImportError, match=r"needs onnx and onnxscript.*pip install 'shoal\[onnx\]'"
    ):
        shoal.export(net, tmp_path / "net.onnx")
