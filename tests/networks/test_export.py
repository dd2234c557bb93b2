"""Exported networks are the same functions, without shoal."""

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch
from safetensors.torch import load_file, save_file

import shoal
from shoal.activations import Activation
from shoal.networks.programs.exporting import plain_module

RELU = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
TANH = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)

# a design of each family, and what it takes
DESIGNS = {
    "hard_tanh": (TANH, {"match": "ck", "method": shoal.MomentMatching(family="hard_tanh")}),
    "leaky_relu": (RELU, {"match": "ck", "method": shoal.MomentMatching(family="leaky_relu")}),
    # a Hermite series first
    "sinusoid": (RELU, {"match": "ntk", "method": shoal.MomentMatching(family="sinusoid")}),
    "sphere": (TANH, {"match": "ntk", "method": "sphere"}),
    "norm_gated": (RELU, {"match": "ck", "method": shoal.SphereMatching(norm_gated=True)}),
}

ACTIVATIONS = [
    shoal.Identity(),
    shoal.ReLU(),
    shoal.LeakyReLU(0.2),
    shoal.HardTanh(0.7),
    shoal.ELU(1.5),
    shoal.Tanh(),
    shoal.Sigmoid(),
    shoal.Erf(),
    shoal.Swish(),
    shoal.GELU(),
    shoal.Softplus(),
    shoal.Sine(),
    shoal.Cosine(),
    shoal.Sinusoid(1.3, 0.4, -0.2),
    shoal.Sinusoid(0.7),
    shoal.Hermite((0.3, -0.5, 0.2, 0.1, 0.05), 1.4),
    shoal.Affine(shoal.Affine(shoal.Hermite((0.1, 1.0)), -2.0, 0.3), 0.5, 0.0),
    shoal.PiecewisePolynomial((-1.0, 1.0), ((1.0, 0.0, -1.0),)),
    shoal.PiecewisePolynomial((-1.0, 0.0, 2.0), ((0.5,), (0.5,))),
    shoal.Affine(shoal.PiecewisePolynomial((-1.0, 0.5, 2.0), ((0.0, 1.0), (2.0, 1.0))), 3.0, -1.0),
]

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


def imported(path):
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_designs_run_without_shoal(tmp_path):
    x = inputs(scale=3.0).requires_grad_()  # the tails of the activations too
    wanted = {}
    for name, (deq, options) in DESIGNS.items():
        architecture = shoal.design(deq, tau0=1.0, **options).architecture
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


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_activations(activation):
    architecture = shoal.FullyConnected((activation, shoal.Tanh(), activation))
    net = shoal.build(architecture, in_features=6, width=20, dtype=torch.float64)
    x = inputs()
    assert torch.allclose(plain_module(net)(x), net(x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-6), (torch.float64, 1e-13), (torch.bfloat16, 3e-2)],
    ids=str,
)
def test_dtypes(tmp_path, dtype, tolerance):
    bump = shoal.PiecewisePolynomial((-1.0, 0.0, 1.0), ((0.5, 0.5), (0.5, -0.5)))
    net = shoal.build(shoal.FullyConnected((bump,)), in_features=6, width=64, dtype=dtype)
    shoal.export(net, tmp_path / "small.py")
    model = imported(tmp_path / "small.py").load()
    y = model(inputs(dtype))
    assert y.dtype == dtype
    assert torch.allclose(y, net(inputs(dtype)), rtol=tolerance, atol=tolerance)


@pytest.mark.thorough("bfloat16", "True")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("by_bits", [True, False])
def test_tables_in_half_precision(dtype, by_bits):
    design = shoal.design(RELU, tau0=1.0, match="ntk", method="sphere")  # steepest at zero
    net = shoal.build(design.architecture, in_features=6, width=50, dtype=dtype)
    x = inputs(dtype, scale=2.0)
    exact = net.to(torch.float64)(x.double())
    model = plain_module(net.to(dtype), by_bits=by_bits)
    rounding = 8 * torch.finfo(dtype).eps
    assert torch.allclose(model(x).double(), exact, rtol=rounding, atol=rounding)


def test_tables_in_single_precision(tmp_path):
    design = shoal.design(RELU, tau0=1.0, match="ntk", method="sphere")
    net = shoal.build(design.architecture, in_features=6, width=50, dtype=torch.float32)
    shoal.export(net, tmp_path / "table.py")
    assert "GradedPolynomial(5.5, " in (tmp_path / "table.py").read_text()
    found = []
    for model in (net, imported(tmp_path / "table.py").load(), plain_module(net, by_bits=False)):
        x = inputs(torch.float32, scale=2.0).requires_grad_()
        y = model(x)
        found.append((y.detach(), *torch.autograd.grad(y.square().sum(), x)))
    for y, gradient in found[1:]:
        assert torch.allclose(y, found[0][0], rtol=3e-6, atol=3e-6)
        assert torch.allclose(gradient, found[0][1], rtol=3e-5, atol=3e-5)
    double = imported(tmp_path / "table.py").load().double()  # a table of single precision still
    assert torch.allclose(double(inputs(scale=2.0)).float(), found[0][0], rtol=3e-6, atol=3e-6)


def test_trained_and_frozen_weights(tmp_path):
    net = shoal.build(
        shoal.FullyConnected.du2018(shoal.Softplus(), depth=2),
        in_features=6,
        width=30,
        trainable={"layer2"},
        dtype=torch.float64,
    )
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.5)
    net(inputs()).square().sum().backward()
    optimizer.step()
    shoal.export(net, tmp_path / "trained.py")
    model = imported(tmp_path / "trained.py").load()
    assert torch.allclose(model(inputs()), net(inputs()), rtol=1e-13, atol=1e-13)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == {
        "layer1.weight": False,
        "layer2.weight": True,
        "readout.weight": False,
    }


IMAGES = [
    (shoal.ConvNet([shoal.ReLU(), shoal.Tanh()], bias_variance=0.3), (5, 4)),
    (shoal.ConvNet([shoal.ReLU()] * 2, kernel_size=5, padding="circular"), (6,)),
    (shoal.ConvNet([shoal.Tanh()], pooling="average"), (5, 7)),
    (shoal.ConvResNet(shoal.Softplus(), 3, padding="circular"), (4, 3)),
]


@pytest.mark.parametrize(("architecture", "sides"), IMAGES, ids=repr)
def test_networks_of_images(tmp_path, architecture, sides):
    fixed = {"pixels": sides} if architecture.pooling is None else {"pixel_axes": len(sides)}
    net = shoal.build(
        architecture, in_features=2, width=8, out_features=3, dtype=torch.float64, **fixed
    )
    shoal.export(net, tmp_path / "small.py")
    more = 0 if architecture.pooling is None else 2  # pixels that were not said before
    shape = (3, 2, *(side + more for side in sides))
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = imported(tmp_path / "small.py").load()(x)
    torch.testing.assert_close(found, net(x), rtol=1e-13, atol=1e-13)


def test_extreme_inputs():
    phi = shoal.PiecewisePolynomial((-1.0, 0.0, 2.0), ((0.5, 0.5), (0.5, -0.5)))
    net = shoal.build(shoal.FullyConnected((phi,)), in_features=1, width=1, dtype=torch.float64)
    with torch.no_grad():
        net.layer1.fill_(1.0)
    table = plain_module(net).table1
    x = torch.tensor([-1e300, -1.0, 0.0, 2.0, 1e300, torch.nan, torch.inf], dtype=torch.float64)
    torch.testing.assert_close(table(x)[:5], phi(x)[:5], rtol=1e-14, atol=1e-15)
    assert table(x)[5].isnan()
    assert table(x)[6] == phi(x)[6] == -torch.inf


def test_the_source_is_readable(tmp_path):
    phi = shoal.Affine(shoal.HardTanh(1.25), 0.75)
    net = shoal.build(shoal.FullyConnected((phi,)), in_features=6, width=64, dtype=torch.float32)
    shoal.export(net, tmp_path / "readable.py")
    lines = (tmp_path / "readable.py").read_text().splitlines()
    body = [line.strip() for line in lines if line.startswith("        x = ")]
    assert body == [
        "x = self.layer1(x)",
        "x = 0.75 * x.clamp(-1.25, 1.25)",
        "x = x / math.sqrt(64)",
    ]
    assert len(lines) < 45


def test_the_plain_module_can_be_traced():
    design = shoal.design(TANH, tau0=1.0, match="ck", method="sphere")
    net = shoal.build(design.architecture, in_features=6, width=20, dtype=torch.float64)
    samples = torch.export.Dim("samples")
    program = torch.export.export(plain_module(net), (inputs(),), dynamic_shapes=({0: samples},))
    x = inputs()[:7]
    assert torch.allclose(program.module()(x), net(x), rtol=1e-13, atol=1e-13)
    assert not any("bucketize" in str(node.target) for node in program.graph.nodes)


@dataclass(frozen=True)
class Own(Activation):
    def function(self, x):
        return torch.atan(x)


def test_what_cannot_be_exported(tmp_path):
    net = shoal.build(shoal.FullyConnected((shoal.Tanh(),)), in_features=2, width=3)
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
    net = shoal.build(shoal.FullyConnected((shoal.Tanh(),)), in_features=2, width=3)
    monkeypatch.setattr("shoal.networks.programs.exporting.find_spec", lambda _: None)
    with pytest.raises(
        ImportError, match=r"needs onnx and onnxscript.*pip install 'shoal\[onnx\]'"
    ):
        shoal.export(net, tmp_path / "net.onnx")


def test_only_exports_are_replaced(tmp_path):
    net = shoal.build(shoal.FullyConnected([shoal.ReLU()]), in_features=3, width=4)
    for _ in range(2):
        shoal.export(net, tmp_path / "small.py")
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"path must not replace a file that is no export, got"):
        shoal.export(net, tmp_path / "mine.py")
    assert (tmp_path / "mine.py").read_text() == "x = 1\n"
    (tmp_path / "net_weights.safetensors").write_text("mine")
    with pytest.raises(ValueError, match=r"is no export, got '.*net_weights\.safetensors'"):
        shoal.export(net, tmp_path / "net.py")
    assert (tmp_path / "net_weights.safetensors").read_text() == "mine"
    assert not (tmp_path / "net.py").exists()
