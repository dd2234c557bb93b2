"""Finite convolutional equilibria: their function, gradients, limits, norms and files."""

import itertools
import math

import pytest
import torch

import shoal
from shoal import ConvDEQ, ConvNet
from shoal.activations import ReLU, Tanh
from shoal.networks.gain import ConvolutionNorm


def images(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def network(architecture, x, width=12, **options):
    options = {"pixels": tuple(x.shape[2:]), "dtype": torch.float64} | options
    return shoal.build(architecture, in_features=x.shape[1], width=width, **options)


BOTH = [
    ConvDEQ(Tanh(), 0.2, 0.8, bias_variance=0.3),
    ConvDEQ(ReLU(), 0.2, 0.8, pooling="average", padding="circular"),
]


def by_hand(net, x):
    """The outputs from the definition, iterated, with PyTorch's own padding and convolution."""
    deq, width = net.architecture, net.spec.width
    reach, patch = deq.kernel_size // 2, deq.kernel_size ** (x.dim() - 2)
    convolution = {3: torch.nn.functional.conv1d, 4: torch.nn.functional.conv2d}[x.dim()]
    mode = "constant" if deq.padding == "zeros" else "circular"

    def convolved(features, weight, variance):
        around = torch.nn.functional.pad(features, (reach,) * 2 * (x.dim() - 2), mode=mode)
        return math.sqrt(variance / patch) * convolution(around, weight)

    into = convolved(x, net.input, deq.input_variance)
    if deq.bias_variance:
        into = into + math.sqrt(deq.bias_variance) * net.bias.view(-1, *[1] * (x.dim() - 2))
    z = torch.zeros_like(into)
    for _ in range(60):
        inner = convolved(z, net.recurrent, deq.recurrent_variance) + into
        z = deq.activation.function(inner) / math.sqrt(width)
    pixels = z.flatten(2)
    seen = pixels.mean(2) if deq.pooling else pixels.flatten(1) / math.sqrt(pixels.shape[2])
    return seen @ net.readout.T


@pytest.mark.parametrize("shape", [(3, 2, 5), (2, 2, 4, 3)])
@pytest.mark.parametrize("deq", BOTH, ids=repr)
def test_outputs_and_gradients_are_those_of_the_definition(deq, shape):
    x = images(*shape).requires_grad_()
    net = network(deq, x, out_features=2)
    wanted = by_hand(net, x)
    torch.testing.assert_close(net(x), wanted, rtol=1e-9, atol=1e-9)
    weight = images(*wanted.shape, seed=1)
    named = [x, *net.parameters()]
    found = torch.autograd.grad((net(x) * weight).sum(), named)
    for mine, theirs in zip(
        found, torch.autograd.grad((wanted * weight).sum(), named), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("deq", BOTH, ids=repr)
def test_each_sample_has_a_status(deq):
    x = images(4, 2, 5)
    net = network(deq, x)
    found = net.solve(x)
    assert found.value.shape == (4, 12, 5)
    assert bool(found.converged.all())
    assert found.steps.shape == found.residual.shape == (4,)
    torch.testing.assert_close(net.features(x), found.value, rtol=1e-9, atol=1e-10)
    strict = network(deq, x, solver=shoal.Picard(max_steps=2), on_failure="status")
    assert not bool(strict.solve(x).converged.any())
    with pytest.raises(shoal.ConvergenceError, match="The equilibrium"):
        network(deq, x, solver=shoal.Picard(max_steps=2), on_failure="raise")(x)


@pytest.mark.parametrize("architecture", [*BOTH, ConvNet([ReLU(), Tanh()], bias_variance=0.2)])
def test_the_ntk_is_the_gram_matrix_of_gradients(architecture):
    x = images(3, 2, 4)
    net = network(architecture, x)
    rows = [
        torch.cat(
            [g.flatten() for g in torch.autograd.grad(net(one[None]).sum(), net.parameters())]
        )
        for one in x
    ]
    jacobian = torch.stack(rows)
    found = shoal.empirical_kernel(net, x)
    torch.testing.assert_close(found.ntk, jacobian @ jacobian.T, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("pooling", [None, "average"])
def test_images_of_one_pixel_are_vectors(pooling):
    x = images(3, 2)
    dense = shoal.build(
        shoal.DEQ(Tanh(), 0.2, 0.8), in_features=2, width=10, seed=4, dtype=torch.float64
    )
    conv = ConvDEQ(Tanh(), 0.2, 0.8, kernel_size=1, pooling=pooling)
    net = network(conv, x[:, :, None], width=10, seed=4)
    torch.testing.assert_close(net(x[:, :, None]), dense(x), rtol=1e-12, atol=1e-12)


def dense_matrix(weight, padding, sides):
    """The convolution as a matrix, from its definition."""
    pixels = list(itertools.product(*map(range, sides)))
    reach, (rows, columns) = weight.shape[2] // 2, weight.shape[:2]
    matrix = torch.zeros(rows, len(pixels), columns, len(pixels), dtype=torch.float64)
    for (i, p), k in itertools.product(
        enumerate(pixels), itertools.product(range(-reach, reach + 1), repeat=len(sides))
    ):
        seen = tuple(a + b for a, b in zip(p, k, strict=True))
        if padding == "circular":
            seen = tuple(a % side for a, side in zip(seen, sides, strict=True))
        if seen in pixels:
            tap = weight[(slice(None), slice(None), *(b + reach for b in k))]
            matrix[:, i, :, pixels.index(seen)] += tap
    return matrix.flatten(0, 1).flatten(1)


@pytest.mark.thorough("sides3")
@pytest.mark.parametrize("padding", ["zeros", "circular"])
@pytest.mark.parametrize("sides", [(7,), (4, 5), (2, 3), (2, 2, 3)])
def test_norms_of_convolutions(padding, sides):
    weight = images(3, 3, *[3] * len(sides))
    exact = float(torch.linalg.matrix_norm(dense_matrix(weight, padding, sides), 2))
    found = ConvolutionNorm(padding, 3 ** len(sides), sides).bounds(weight)
    assert found.lower <= exact * (1 + 1e-9)
    assert exact <= found.upper
    if padding == "circular":
        assert exact * 0.999 <= found.lower
        assert found.upper <= 1.001 * exact
    for_all = ConvolutionNorm(padding, 3 ** len(sides)).bounds(weight)
    assert exact <= for_all.upper


def test_the_bound_for_all_sizes_is_nearly_reached_by_large_images():
    weight = images(2, 2, 5)
    norm = ConvolutionNorm("zeros", 5).bounds(weight)
    large = float(torch.linalg.matrix_norm(dense_matrix(weight, "zeros", (90,)), 2))
    assert large <= norm.upper <= 1.02 * large


@pytest.mark.parametrize(
    "deq", [ConvDEQ(Tanh(), 2.0, 0.8), ConvDEQ(Tanh(), 2.0, 0.8, pooling="average")]
)
def test_the_gain_is_bounded_and_kept_small(deq):
    x = images(3, 2, 4, 3)
    net = network(deq, x)
    exact = math.sqrt(2.0 / (9 * 12)) * float(
        torch.linalg.matrix_norm(dense_matrix(net.recurrent.detach(), "zeros", (4, 3)), 2)
    )
    report = net.well_posedness()
    assert report.gain_lower <= exact <= report.gain_upper <= 1.4 * exact
    constraint = shoal.GainConstraint(net, max_gain=0.8)
    assert constraint.apply() <= 0.8
    with torch.no_grad():
        net.recurrent += 0.001 * images(*net.recurrent.shape, seed=3)
    followed = constraint.apply()
    after = math.sqrt(2.0 / (9 * 12)) * float(
        torch.linalg.matrix_norm(dense_matrix(net.recurrent.detach(), "zeros", (4, 3)), 2)
    )
    assert after <= followed <= 0.8
    assert net.well_posedness().contraction
    assert bool(net.solve(x).converged.all())


@pytest.mark.parametrize("warm", [False, True])
def test_training_and_its_monitor(warm):
    x = images(4, 1, 4, 4)
    y = x[:, 0, 0, 0]
    net = network(ConvDEQ(Tanh(), 0.15, 0.8), x, width=24, warm_start=warm, seed=2)
    run = shoal.train(net, x, y, steps=30, step_size="auto", monitor=10)
    assert run.status == "finished"
    assert run.losses[-1] < 0.5 * run.losses[0]
    seen = run.monitors
    assert bool((seen["gain"] <= seen["gain_upper"]).all())
    assert float(seen["gain_upper"].max()) < 1
    watch = shoal.Watch(net, x, y)
    watch.record(0)
    exact = math.sqrt(0.15 / (9 * 24)) * float(
        torch.linalg.matrix_norm(dense_matrix(net.recurrent.detach(), "zeros", (4, 4)), 2)
    )
    seen = watch.records.monitors
    assert 0.9 * exact < float(seen["gain"][-1]) <= exact * (1 + 1e-9)
    assert exact <= float(seen["gain_upper"][-1])


def test_pooled_networks_take_images_of_any_size():
    net = shoal.build(BOTH[1], in_features=2, width=8, dtype=torch.float64)
    for sides in ((3, 4), (6, 5)):
        assert net(images(2, 2, *sides)).shape == (2, 1)


BAD = [
    (BOTH[0], {}, ValueError, "pixels must be given for a ConvDEQ whose readout sees all pixels"),
    (BOTH[0], {"pixels": (3, 0)}, ValueError, r"pixels\[1\] must be"),
    (BOTH[0], {"pixels": (3, 3), "pixel_axes": 1}, ValueError, "pixel_axes must be the number of"),
    (BOTH[0], {"pixels": (3,) * 4}, ValueError, "pixel_axes must be 1, 2 or 3, got 4"),
    (BOTH[0], {"pixels": 28}, TypeError, "pixels must be"),
    (
        shoal.DEQ(Tanh(), 0.2, 0.8),
        {"pixels": (3, 3)},
        TypeError,
        "pixels is for networks of images",
    ),
]


@pytest.mark.parametrize(("architecture", "options", "error", "message"), BAD)
def test_bad_options(architecture, options, error, message):
    with pytest.raises(error, match=message):
        shoal.build(architecture, in_features=2, width=8, **options)


def test_what_is_refused(tmp_path):
    x = images(2, 2, 4, 4)
    net = network(BOTH[0], x)
    with pytest.raises(ValueError, match=r"must have the network's pixels, \(4, 4\)"):
        net(images(2, 2, 5, 4))
    with pytest.raises(TypeError, match=r"an explicit network, such as.*got one of ConvDEQ"):
        shoal.export(net, tmp_path / "net.onnx")
    with pytest.raises(TypeError, match="no theorem is known"):
        shoal.certify(net, x, x[:, 0, 0, 0])
