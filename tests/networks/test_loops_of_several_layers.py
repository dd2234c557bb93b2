"""Networks whose loop passes several layers, and networks with biases."""

import math

import pytest
import torch

import shoal
from shoal import DEQ, ConvResNet, FullyConnected, ImplicitNetwork, ResNet
from shoal.activations import ReLU, Softplus, Tanh

BFLOAT16 = 8 * torch.finfo(torch.bfloat16).eps  # of several roundings

LOOP = DEQ((Tanh(), Softplus()), 0.3, 0.8, hidden_variances=(0.5,), bias_variance=0.4)
STANDARD = DEQ((Tanh(), Softplus()), 0.3, 0.8, bias_variance=0.4, parametrization="standard")


def inputs(count=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=generator, dtype=torch.float64)


def network(architecture=LOOP, width=12, **options):
    options = {"in_features": 3, "out_features": 2, "dtype": torch.float64, "seed": 4, **options}
    return shoal.build(architecture, width=width, **options)


def iterated(net, x, turns=200):
    """The output by plain iteration of the definition, in the scale z = Z/√m."""
    deq, m, weights = net.architecture, net.spec.width, dict(net.groups)
    roots = {"recurrent": 0.3, "layer2": deq.hidden_variances[0], "input": 0.8, "readout": 1.0}
    roots |= {"bias": 0.4, "bias2": 0.4}
    act = {name: math.sqrt(v) * weights[name] for name, v in roots.items()}
    if deq.parametrization == "standard":
        grown = {"recurrent", "layer2", "readout"}
        act = {n: w * (math.sqrt(m) if n in grown else 1.0) for n, w in weights.items()}
    z = torch.zeros(len(x), m, dtype=x.dtype)
    for _ in range(turns):
        inner = z @ act["recurrent"].T + x @ act["input"].T + act["bias"]
        hidden = torch.tanh(inner) / math.sqrt(m)
        z = torch.nn.functional.softplus(hidden @ act["layer2"].T + act["bias2"]) / math.sqrt(m)
    return z @ act["readout"].T


@pytest.mark.parametrize("architecture", [LOOP, STANDARD], ids=["ntk", "standard"])
@pytest.mark.parametrize("gradient", [shoal.Implicit(), shoal.Unrolled()], ids=repr)
def test_outputs_and_gradients_are_those_of_plain_iteration(architecture, gradient):
    net, x = network(architecture, gradient=gradient), inputs()
    parameters = list(net.parameters())
    wanted = iterated(net, x)
    torch.testing.assert_close(net(x), wanted, rtol=1e-9, atol=1e-10)
    found = torch.autograd.grad(net(x).square().sum(), parameters)
    for one, other in zip(
        found, torch.autograd.grad(wanted.square().sum(), parameters), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("architecture", [LOOP, STANDARD], ids=["ntk", "standard"])
def test_weights_have_their_scales(architecture):
    net = network(architecture, width=400)
    shapes = {name: tuple(p.shape) for name, p in net.groups.items()}
    assert shapes == {
        "readout": (2, 400), "recurrent": (400, 400), "layer2": (400, 400), "input": (400, 3),
        "bias": (400,), "bias2": (400,),
    }  # fmt: skip
    second = architecture.hidden_variances[0]
    own = {"recurrent": 0.3 / 400, "layer2": second / 400, "input": 0.8, "bias": 0.4, "bias2": 0.4}
    for name, variance in own.items():
        wanted = variance if architecture.parametrization == "standard" else 1.0
        weights = net.groups[name].detach()
        error = wanted * (2 / weights.numel()) ** 0.5  # of the variance of so many Gaussians
        assert abs(float(weights.var()) - wanted) < 4 * error


def test_higher_derivatives():
    net, x = network(), inputs(2)
    weight = net.get_parameter("layer2")
    (first,) = torch.autograd.grad(net(x).sum(), weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), weight)
    (first,) = torch.autograd.grad(iterated(net, x).sum(), weight, create_graph=True)
    (wanted,) = torch.autograd.grad(first.square().sum(), weight)
    torch.testing.assert_close(second, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "solver", [shoal.Anderson(), shoal.Broyden(), shoal.NewtonKrylov()], ids=repr
)
def test_all_solvers_find_it(solver):
    net, x = network(), inputs()
    torch.testing.assert_close(network(solver=solver)(x), net(x), rtol=1e-9, atol=1e-10)
    solution = network(solver=solver).solve(x)
    assert bool(solution.converged.all())
    torch.testing.assert_close(solution.value, net.features(x), rtol=1e-9, atol=1e-10)


def test_autocast():
    net, x = network(dtype=torch.float32), inputs().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = net(x)
    torch.testing.assert_close(rough.float(), net(x), rtol=BFLOAT16, atol=BFLOAT16)


def test_the_watched_gain_is_that_of_the_loop():
    net, x = network(DEQ((Tanh(), Tanh()), 0.05, 0.8), width=30), inputs()
    norms = [
        float(torch.linalg.matrix_norm(net.get_parameter(n).detach(), 2))
        for n in ("recurrent", "layer2")
    ]
    exact = math.sqrt(0.05) / 30 * math.prod(norms)
    run = shoal.train(net, x, x[:, :2], steps=0, step_size=0.01)
    assert float(run.monitors["gain"][0]) == pytest.approx(exact, rel=1e-4)
    assert exact <= float(run.monitors["gain_upper"][0]) <= 1.01 * exact


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (DEQ(Tanh(), 0.1, 0.8, bias_variance=0.1), "with biases"),
        (DEQ((Tanh(), Tanh()), 0.1, 0.8), "with several layers in their loop"),
        (FullyConnected((Tanh(),), bias_variance=0.1), "with biases"),
        (ResNet(Tanh(), 2, bias_variance=0.1), "with biases"),
        (ImplicitNetwork(0.1, bias_variance=0.1), "with biases"),
    ],
    ids=repr,
)
def test_no_certificates(architecture, message):
    x = inputs()
    with pytest.raises(TypeError, match=message):
        shoal.certify(network(architecture), x, x[:, :2])


def test_biases_of_explicit_networks_by_hand():
    x = inputs()
    net = network(FullyConnected((Tanh(), ReLU()), bias_variance=0.4), width=9)
    w = dict(net.groups)
    first = torch.tanh(x @ w["layer1"].T + math.sqrt(0.4) * w["bias1"]) / 3
    second = torch.relu(first @ w["layer2"].T + math.sqrt(0.4) * w["bias2"]) / 3
    torch.testing.assert_close(net(x), second @ w["readout"].T)
    conv = shoal.build(
        ConvResNet(Tanh(), 1, bias_variance=0.4, patch_size=1), in_features=3, width=9,
        pixel_axes=1, dtype=torch.float64,
    )  # fmt: skip
    assert tuple(conv.groups["bias1"].shape) == (9,)
    scale = conv.layers.cells[0].gain / 3
    inner = torch.einsum("nip,ui->nup", x[:, :, None], conv.groups["layer1"][:, :, 0])
    inner = inner + math.sqrt(0.4) * conv.groups["bias1"][:, None]
    wanted = (scale * torch.tanh(inner)).sum(2) @ conv.readout.T
    torch.testing.assert_close(conv(x[:, :, None]), wanted)


def test_biases_of_implicit_networks_by_hand():
    x = inputs()
    net = network(ImplicitNetwork(0.3, bias_variance=0.4), width=9)
    w = dict(net.groups)
    mapped = torch.relu(x @ w["input"].T + math.sqrt(0.4) * w["bias"]) / 3
    z = torch.zeros_like(mapped)
    for _ in range(200):
        z = torch.relu(0.1 * z @ w["recurrent"].T + mapped)
    wanted = z @ w["readout"].T + mapped @ w["skip"].T
    torch.testing.assert_close(net(x), wanted, rtol=1e-6, atol=1e-8)
